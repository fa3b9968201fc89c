from __future__ import annotations

import re
from itertools import product

import pytest

from dynbench.config.layers import Settings, load_config
from dynbench.config.part_rules import image_warnings, whole_window_steps
from dynbench.config.rules import check_rules, known_world_size, rule_warnings
from dynbench.config.schema import Config, changed
from dynbench.config.yaml_strict import read_yaml
from dynbench.errors import ConfigError
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS


def config_of(text: str) -> Config:
    """A configuration without its rules checked."""
    return Settings.of(read_yaml(text, "test")).config(rules=False)


UNREAD = "is not read by dataset 'embedded'; set workload.dataset to tsv, jsonl, csv"


@pytest.mark.parametrize(
    ("text", "world_size", "expected"),
    [
        ("schedule: {micro_batches: 9}\ntrain: {global_batch: 32}", 4, "schedule.micro_batches: 9 on 4 ranks need 36"),
        ("schedule: {capacity: [8, 8]}", 4, "schedule.capacity: [8, 8] has 2 values for 4 ranks"),
        ("schedule: {speeds: [1.0]}", 2, "schedule.speeds: [1.0] has 1 values for 2 ranks"),
        ("train: {profile_steps: 3, warmup_steps: 3}", 2, "train.profile_steps: 3 of 3 steps of the"),
        ("train: {profile_steps: 3}\nlaunch: {launcher: virtual}", 2, "train.profile_steps: 3, but one process plays"),
        ("launch: {link_gbps: 1.0, launcher: virtual}", 2, "launch.link_gbps: 1, but virtual ranks send nothing"),
        ("launch: {link_gbps: 1.0, device: cuda}", 2, "launch.link_gbps: 1, but a link is emulated on CPUs only"),
        ("launch: {link_gbps: 1.0}\nsync: {name: zero1_torch}", 2, "launch.link_gbps: 1, but sync.name 'zero1_torch'"),
        ("workload: {dataset: tsv}", None, "workload.data_path: null"),
        ("workload: {dataset: lengths}", None, "workload.data_path: null, but dataset 'lengths' reads a file"),
        ("workload: {data_path: x.tsv}", None, f"workload.data_path: 'x.tsv' {UNREAD}, parquet, json or lengths, or"),
        ("workload: {tokenizer: x}", None, f"workload.tokenizer: 'x' {UNREAD}, parquet or json, or"),
        ("workload: {dataset: lengths, data_path: x, tokenizer: x}", None, "workload.tokenizer: 'x' is not read by da"),
        ("workload: {text_column: label}", None, "workload.label_column: 'label' is the text column too"),
        ("workload: {subset: 10}", None, "workload.subset: 10 samples are fewer than train.global_batch 64"),
        ("schedule: {mode: static, policy: prefix}", None, "schedule.policy: 'prefix' needs schedule.mode dynamic"),
        ("schedule: {exchange: gather}", None, "schedule.exchange: 'gather' is for policy prefix, not 'static'"),
        ("schedule: {policy: prefix, mode: dynamic, speeds: auto, exchange: gather}", None, "schedule.speeds: 'auto'"),
        ("schedule: {cost_type: measured}", None, "schedule.cost_type: 'measured' has no coefficients"),
        ("schedule: {policy: prefix, exchange: gather}\nlaunch: {launcher: virtual}", None, "schedule.exchange: "),
        ("sync: {communicate: false}\nlaunch: {launcher: virtual}", None, "sync.communicate: 'false' needs real ranks"),
        ("compress: {name: topk}\nlaunch: {launcher: virtual}", None, "compress.name: 'topk' needs real ranks"),
        ("compress: {gather: int8}", None, "compress.gather: 'int8', but under sync.name 'ddp' no parameters are"),
        ("schedule: {cost_coefficients: [0.0, 0.0, 0.0]}", None, "schedule.cost_coefficients: [0.0, 0.0, 0.0] costs"),
        ("launch: {launcher: virtual, nnodes: 2, rdzv_endpoint: h:1}", None, "launch.nnodes: 2 nodes cannot share"),
        ("launch: {nnodes: 2}", None, "launch.rdzv_endpoint: null, but 2 nodes"),
        ("launch: {nnodes: 2, rdzv_endpoint: h:1}\nprobe: {run: auto}", None, "probe.run: auto, but each of several"),
        ("train: {memory_parts: true}\nlaunch: {launcher: virtual}", None, "train.memory_parts: true, but one process"),
        ("train: {memory_parts: true, warmup_steps: 0}", None, "train.memory_parts: true, but there is no warm-up to"),
        ("launch: {node_rank: 1}", None, "launch.node_rank: 1 is not below launch.nnodes 1"),
        ("launch: {launcher: torchrun, nproc: 2, world_size: 4}", None, "launch.world_size: 4 is not nproc x nnodes"),
        ("probe: {memory_limit: much}", None, "probe.memory_limit: 'much' is not a size"),
    ],
)
def test_each_rule_names_its_key(text, world_size, expected):
    (found,) = check_rules(config_of(text), world_size)
    assert found.startswith(expected) and "\n" not in found


def test_the_nearest_batch_offered_works():
    configs = {batch: config_of(f"train: {{global_batch: {batch}}}") for batch in range(1, 48)}
    for batch, world_size in product(range(1, 40), range(1, 9)):
        found = check_rules(configs[batch], world_size)
        assert bool(found) == (batch % world_size != 0)
        for problem in found:
            offered = [int(n) for n in re.findall(r"\d+", problem.partition("nearest that works: ")[2])]
            assert offered
            assert all(check_rules(configs[value], world_size) == [] for value in offered)
            assert all(abs(value - batch) <= world_size for value in offered)


def test_the_nearest_buffer_offered_is_the_least_that_works():
    for world_size, buffer in product((2, 3, 7), (1, 5, 9, 30)):

        def found(k: int, ranks: int = world_size) -> list[str]:
            return check_rules(config_of(f"schedule: {{mode: dynamic, policy: prefix, buffer: {k}}}"), ranks)

        assert bool(found(buffer)) == (world_size * buffer < 64)
        for problem in found(buffer):
            least = int(problem.partition("nearest that works: ")[2])
            assert found(least) == [] and found(least - 1) != []


@pytest.mark.parametrize(
    ("text", "said", "mended"),
    [
        ("policy: prefix, buffer: 40", "schedule.buffer: 2 ranks hold 80 samples", "policy: prefix, buffer: 64"),
        ("policy: window", "schedule.window: 1 global batch", "policy: window, window: 2"),
    ],
)
def test_what_leaves_no_choice_warns(text, said, mended):
    (warning,) = rule_warnings(config_of(f"schedule: {{{text}}}"), 2)
    assert warning.startswith(said)
    assert rule_warnings(config_of(f"schedule: {{{mended}}}"), 2) == []


@pytest.mark.parametrize(
    ("train", "wanted"),
    [
        ("warmup_steps: 16, steps: 40", {}),
        ("warmup_steps: 0, steps: 8", {}),
        ("warmup_steps: 10, steps: 40", {"train.warmup_steps": 16}),
        ("warmup_steps: 10, steps: 38", {"train.warmup_steps": 16, "train.steps": 40}),
        ("warmup_steps: 8, steps: 50", {"train.steps": 56}),
        ("warmup_steps: 24, steps: 32, epochs: 2", {}),  # 28 steps an epoch: windows end at 8, 16, 24, 28, 36, …
        ("warmup_steps: 28, steps: 28, epochs: 2", {}),
        ("warmup_steps: 30, steps: 26, epochs: 2", {"train.warmup_steps": 36}),
    ],
)
def test_steps_that_split_a_window_warn_and_say_what_to_set(train, wanted):
    config = config_of(f"schedule: {{policy: window, window: 8}}\ntrain: {{{train}}}")
    assert whole_window_steps(config) == wanted
    warnings = rule_warnings(config, 2, ())
    assert len(warnings) == bool(wanted)
    assert all(f"{key} to {steps}" in warnings[0] for key, steps in wanted.items())
    mended = {"train.steps": config.train.warmup_steps + config.train.steps - wanted.get("train.warmup_steps", 0)}
    assert whole_window_steps(changed(config, (mended if wanted and config.train.epochs else {}) | wanted)) == {}
    assert rule_warnings(changed(config, {"schedule.policy": "partition"}), 2, ()) == []


@pytest.mark.parametrize("sync", [name for name, entry in STRATEGIES.items() if entry.reads("inner_steps")])
@pytest.mark.parametrize(
    ("every", "steps", "warmup", "met"),
    [(500, 7, 5, 0), (8, 20, 5, 3), (8, 12, 5, 2), (8, 100, 5, None), (8, 24, 5, None), (1, 7, 3, None)],
)
def test_measured_steps_without_their_share_of_averagings_warn(sync, every, steps, warmup, met):
    text = f"sync.name={sync} sync.inner_steps={every} train.steps={steps} train.warmup_steps={warmup}"
    settings = text.split()
    found = [text for text in rule_warnings(load_config(None, settings), 2, ()) if text.startswith("sync.inner_steps")]
    assert [f"{met} times in the {steps} measured ones" in text for text in found] == ([] if met is None else [True])
    whole = [f"train.steps={-(-steps // every) * every}"]
    assert not any("times in the" in text for text in rule_warnings(load_config(None, [*settings, *whole]), 2, ()))


@pytest.mark.parametrize(("inner", "overlap", "refused"), [(4, 3, False), (4, 4, True), (1, 0, False), (1, 1, True)])
def test_a_part_does_not_meet_anew_before_it_has_met(inner, overlap, refused):
    found = check_rules(config_of(f"sync: {{name: diloco, inner_steps: {inner}, overlap_steps: {overlap}}}"), 2)
    assert [problem.startswith("sync.overlap_steps: ") for problem in found] == [True] * refused


@pytest.mark.parametrize(
    "name", [name for name, entry in COMPRESSORS.items() if entry.reads("contractive") and "+" not in name]
)
def test_unbiased_forms_are_refused_with_error_feedback(name):
    section = f"name: {name}, error_feedback: true"
    (problem,) = check_rules(config_of(f"compress: {{{section}}}"), 2)
    assert problem.startswith(f"compress.error_feedback: true diverges with the unbiased form of {name}")
    assert "compress.contractive to true" in problem
    assert check_rules(config_of(f"compress: {{{section}, contractive: true}}"), 2) == []
    assert check_rules(config_of(f"compress: {{name: {name}}}"), 2) == []


@pytest.mark.parametrize(
    ("bits", "ranks", "other"), [(4, 4, "num_bits to 8"), (4, 64, "fp8 or qsgd"), (8, 64, "fp8 or qsgd")]
)
def test_integers_need_levels_for_every_rank(bits, ranks, other):
    config = config_of(f"compress: {{name: int8, num_bits: {bits}}}")
    (problem,) = check_rules(config, ranks)
    assert problem.startswith(f"compress.num_bits: {bits} bits have less than 2 levels for each of {ranks} ranks")
    assert other in problem
    assert check_rules(config, 2) == []


def test_world_size_is_known_only_where_the_configuration_says_it():
    assert known_world_size(Config()) is None
    assert known_world_size(config_of("launch: {launcher: virtual}")) == 4
    assert known_world_size(config_of("launch: {launcher: virtual, world_size: 6}")) == 6
    assert known_world_size(config_of("launch: {launcher: torchrun, nproc: 2, nnodes: 3}")) == 6


def problems(*given: str) -> tuple[str, ...]:
    try:
        load_config(None, given)
    except ConfigError as error:
        return error.problems
    return ()


NUMBERS = ("bucket_mb", "inner_steps", "fragments", "outer_rate")


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", ".nan", "many", "[1]", "null"])
def test_sizes_and_numbers_are_above_zero(option, value):
    name = next(name for name, entry in STRATEGIES.items() if entry.reads(option))
    (line,) = problems(f"sync.name={name}", f"sync.{option}={value}")
    assert line.startswith(f"--set sync.{option}: ") and "\n" not in line


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not STRATEGIES[name].virtual])
def test_virtual_ranks_play_no_strategy_that_sends(name):
    (line,) = problems(f"sync.name={name}", "launch.launcher=virtual")
    assert f"sync.name: '{name}' needs real ranks" in line
    assert "set it to ddp" in line


IMAGES = "workload.name=image_classification"


def test_data_sets_of_another_kind_are_refused_by_name():
    for workload, dataset in product(WORKLOADS, DATASETS):
        path = ("workload.data_path=x",) if DATASETS[dataset].of_files else ()
        said = problems(f"workload.name={workload}", f"workload.dataset={dataset}", *path)
        refused = [line for line in said if f"{workload} learns from" in line]
        assert bool(refused) == (WORKLOADS[workload].samples not in DATASETS[dataset].samples), (workload, dataset)
        assert all("embedded" in line and repr(dataset) in line for line in refused)


def test_policies_that_live_on_lengths_are_refused_where_there_are_none():
    for workload, policy in product(WORKLOADS, (name for name, entry in POLICIES.items() if entry.in_train)):
        more = ("schedule.window=4",) if policy == "window" else ()
        said = problems(f"workload.name={workload}", f"schedule.policy={policy}", *more)
        useless = WORKLOADS[workload].lengths is None and not POLICIES[policy].without_lengths
        wanted = [True] * useless
        assert [f"{policy!r} deals samples by their lengths" in line for line in said] == wanted, (workload, policy)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("launch.launcher=virtual",), "virtual ranks are measured one after another"),
        (("schedule.policy=partition", "schedule.speeds=auto"), "schedule.speeds 'auto' plans a step when"),
        (("schedule.policy=prefix", "schedule.exchange=gather"), "with schedule.exchange 'gather'"),
    ],
)
def test_images_are_not_decoded_in_the_time_of_others(given, said):
    assert not [line for line in problems(IMAGES, *given) if "workers" in line]
    (line,) = problems(IMAGES, "workload.workers=2", *given)
    assert line.startswith("--set workload.workers: 2") and said in line


def test_batch_normalisation_is_warned_of_where_counts_may_differ():
    (line,) = image_warnings(load_config(None, [IMAGES, "schedule.policy=partition"]))
    assert line.startswith("schedule.policy: under 'partition'") and "are not compared" in line
    for given in ([IMAGES], ["workload.name=mlp", "schedule.policy=partition"], ["schedule.policy=partition"]):
        assert image_warnings(load_config(None, given)) == []
