"""Rules of configurations, also where some ranks serve; and what ranks store of the parameters, by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from unit.config.conftest import refused

from dynbench.config.layers import load_config
from dynbench.config.part_rules import image_warnings, whole_window_steps
from dynbench.config.ranks import Ranks, copies_text, parameter_copies, ranks_under, server_copies
from dynbench.config.rules import check_rules, known_world_size, rule_warnings
from dynbench.config.schema import Config, changed
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS


def config_of(settings: str) -> Config:
    """A configuration without its rules checked."""
    return load_config(None, settings.split(), rules=False)


BROKEN = (
    "schedule.micro_batches=9 train.global_batch=16",
    "schedule.capacity=[8,8,8]",
    "schedule.speeds=[1.0]",
    "train.profile_steps=3 train.steps=3 train.warmup_steps=3",
    "train.profile_steps=3 launch.launcher=virtual",
    "launch.link_gbps=1.0 launch.launcher=virtual",
    "launch.link_gbps=1.0 launch.device=cuda",
    "launch.link_gbps=1.0 sync.name=zero1_torch",
    "workload.data_path=null workload.dataset=tsv",
    "workload.data_path=null workload.dataset=lengths",
    "workload.data_path=x.tsv",
    "workload.tokenizer=x",
    "workload.tokenizer=x workload.dataset=lengths workload.data_path=x",
    "workload.label_column=label workload.text_column=label",
    "workload.subset=10",
    "schedule.policy=prefix schedule.mode=static",
    "schedule.exchange=gather",
    "schedule.speeds=auto schedule.policy=prefix schedule.mode=dynamic schedule.exchange=gather",
    "schedule.cost_type=measured",
    "schedule.exchange=gather schedule.policy=prefix launch.launcher=virtual",
    "sync.communicate=false launch.launcher=virtual",
    "compress.name=topk launch.launcher=virtual",
    "compress.gather=int8",
    "schedule.cost_coefficients=[0.0,0.0,0.0]",
    "launch.nnodes=2 launch.launcher=virtual launch.rdzv_endpoint=h:1",
    "launch.rdzv_endpoint=null launch.nnodes=2",
    "probe.run=auto launch.nnodes=2 launch.rdzv_endpoint=h:1",
    "train.exposed=true launch.launcher=virtual",
    "train.exposed=true sync.communicate=false",
    "train.exposed=true train.profile_steps=2",
    "train.memory_parts=true launch.launcher=virtual",
    "train.memory_parts=true train.warmup_steps=0",
    "launch.node_rank=1",
    "launch.world_size=4 launch.launcher=torchrun launch.nproc=2",
    "probe.memory_limit=much",
)
"""Settings of which the first breaks a rule, by itself or with those behind it."""


@pytest.mark.parametrize("settings", BROKEN)
def test_each_rule_names_its_key(settings):
    (found,) = check_rules(config_of(settings), 2)
    assert found.startswith(f"{settings.partition('=')[0]}: ") and "\n" not in found


def test_the_nearest_batches_that_work_are_offered():
    for batch in range(1, 40):
        config = config_of(f"train.global_batch={batch}")
        for ranks in range(1, 9):
            texts = (problem.partition("nearest that works: ")[2] for problem in check_rules(config, ranks))
            nearest = {batch // ranks * ranks, -(-batch // ranks) * ranks} - {0}
            assert [{*map(int, re.findall(r"\d+", text))} for text in texts] == [nearest] * (batch % ranks > 0)


def test_the_nearest_buffer_offered_is_the_least_that_works():
    for ranks, buffer in product((2, 3, 7), (1, 5, 9, 30)):
        least = -(-64 // ranks)
        found = check_rules(config_of(f"schedule.policy=prefix schedule.buffer={buffer}"), ranks)
        assert [int(problem.partition("nearest that works: ")[2]) for problem in found] == [least] * (buffer < least)


@pytest.mark.parametrize(
    ("policy", "key", "mended"), [("prefix schedule.buffer=40", "buffer", 64), ("window", "window", 2)]
)
def test_what_leaves_no_choice_warns(policy, key, mended):
    config = config_of(f"schedule.policy={policy}")
    (warning,) = rule_warnings(config, 2)
    assert warning.startswith(f"schedule.{key}: ")
    assert rule_warnings(changed(config, {f"schedule.{key}": mended}), 2) == []


OF_EIGHT = "schedule.policy=window schedule.window=8"


def test_steps_that_split_a_window_warn_and_say_what_to_set():
    for warmup, steps in product((0, 8, 10), (8, 38, 50)):
        given = {"train.warmup_steps": warmup, "train.steps": steps}
        config = changed(config_of(OF_EIGHT), given)
        wanted = {key: -(-value // 8) * 8 for key, value in given.items() if value % 8}
        assert whole_window_steps(config) == wanted and whole_window_steps(changed(config, wanted)) == {}
        warnings = rule_warnings(config, 2, ())
        assert len(warnings) == bool(wanted)
        assert all(f"{key} to {value}" in warnings[0] for key, value in wanted.items())
        assert rule_warnings(changed(config, {"schedule.policy": "partition"}), 2, ()) == []


@pytest.mark.parametrize(("warmup", "steps", "whole"), [(24, 32, 24), (28, 28, 28), (30, 26, 36)])
def test_the_last_window_of_an_epoch_ends_with_it(warmup, steps, whole):
    """28 steps an epoch: windows end at 8, 16, 24, 28, 36, …"""
    given = {"train.warmup_steps": warmup, "train.steps": steps, "train.epochs": 2}
    config = changed(config_of(OF_EIGHT), given)
    wanted = {"train.warmup_steps": whole} if whole > warmup else {}
    assert whole_window_steps(config) == wanted and len(rule_warnings(config, 2, ())) == len(wanted)
    assert whole_window_steps(changed(config, wanted | {"train.steps": warmup + steps - whole})) == {}


@pytest.mark.parametrize("sync", [name for name, entry in STRATEGIES.items() if entry.reads("inner_steps")])
@pytest.mark.parametrize(
    ("every", "steps", "warmup", "met"),
    [(500, 7, 5, 0), (8, 20, 5, 3), (8, 12, 5, 2), (8, 100, 5, None), (8, 24, 5, None), (1, 7, 3, None)],
)
def test_measured_steps_without_their_share_of_averagings_warn(sync, every, steps, warmup, met):
    config = config_of(f"sync.name={sync} sync.inner_steps={every} train.steps={steps} train.warmup_steps={warmup}")
    found = [text for text in rule_warnings(config, 2, ()) if text.startswith("sync.inner_steps")]
    assert [f"{met} times in the {steps} measured ones" in text for text in found] == [True] * (met is not None)


def test_a_part_does_not_meet_anew_before_it_has_met():
    for inner, overlap in ((4, 3), (4, 4), (1, 0), (1, 1)):
        found = check_rules(config_of(f"sync.name=diloco sync.inner_steps={inner} sync.overlap_steps={overlap}"), 2)
        assert [problem.partition(": ")[0] for problem in found] == ["sync.overlap_steps"] * (overlap >= inner)


@pytest.mark.parametrize(
    "name", [name for name, entry in COMPRESSORS.items() if entry.reads("contractive") and "+" not in name]
)
def test_unbiased_forms_are_refused_with_error_feedback(name):
    config = config_of(f"compress.name={name} compress.error_feedback=true")
    (problem,) = check_rules(config, 2)
    assert problem.startswith("compress.error_feedback: true") and "compress.contractive to true" in problem
    for change in ({"compress.contractive": True}, {"compress.error_feedback": "auto"}):
        assert check_rules(changed(config, change), 2) == []


@pytest.mark.parametrize(
    ("bits", "ranks", "other"), [(4, 4, "num_bits to 8"), (4, 64, "fp8 or qsgd"), (8, 64, "fp8 or qsgd")]
)
def test_integers_need_levels_for_every_rank(bits, ranks, other):
    config = config_of(f"compress.name=int8 compress.num_bits={bits}")
    (problem,) = check_rules(config, ranks)
    assert problem.startswith("compress.num_bits: ") and other in problem
    assert check_rules(config, 2) == []


def test_world_size_is_known_only_where_the_configuration_says_it():
    assert known_world_size(Config()) is None
    for settings in ("launcher=virtual launch.world_size=6", "launcher=torchrun launch.nproc=2 launch.nnodes=3"):
        assert known_world_size(config_of(f"launch.{settings}")) == 6
    assert known_world_size(config_of("launch.launcher=virtual")) == 4


@pytest.mark.parametrize("option", ["bucket_mb", "inner_steps", "fragments", "outer_rate"])
@pytest.mark.parametrize("value", ["0", "-1", ".nan", "many", "[1]", "null"])
def test_sizes_and_numbers_are_above_zero(option, value):
    name = next(name for name, entry in STRATEGIES.items() if entry.reads(option))
    (line,) = refused(load_config, None, [f"sync.name={name}", f"sync.{option}={value}"])
    assert line.startswith(f"--set sync.{option}: ") and "\n" not in line


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not STRATEGIES[name].virtual])
def test_virtual_ranks_play_no_strategy_that_sends(name):
    (line,) = refused(load_config, None, [f"sync.name={name}", "launch.launcher=virtual"])
    assert f"sync.name: '{name}' needs real ranks" in line
    assert "set it to ddp" in line


IMAGES = "workload.name=image_classification"


def test_data_sets_of_another_kind_are_refused_by_name():
    for workload, dataset in product(WORKLOADS, DATASETS):
        path = ("workload.data_path=x",) if DATASETS[dataset].of_files else ()
        said = refused(load_config, None, [f"workload.name={workload}", f"workload.dataset={dataset}", *path])
        unfit = [line for line in said if f"{workload} learns from" in line]
        assert bool(unfit) == (WORKLOADS[workload].samples not in DATASETS[dataset].samples), (workload, dataset)
        assert all("embedded" in line and repr(dataset) in line for line in unfit)


def test_policies_that_live_on_lengths_are_refused_where_there_are_none():
    for workload, policy in product(WORKLOADS, (name for name, entry in POLICIES.items() if entry.in_train)):
        more = ("schedule.window=4",) if policy == "window" else ()
        said = refused(load_config, None, [f"workload.name={workload}", f"schedule.policy={policy}", *more])
        useless = WORKLOADS[workload].lengths is None and not POLICIES[policy].without_lengths
        found = [f"{policy!r} deals samples by their lengths" in line for line in said]
        assert found == [True] * useless, (workload, policy)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("launch.launcher=virtual",), "virtual ranks are measured one after another"),
        (("schedule.policy=partition", "schedule.speeds=auto"), "schedule.speeds 'auto' plans a step when"),
        (("schedule.policy=prefix", "schedule.exchange=gather"), "with schedule.exchange 'gather'"),
    ],
)
def test_images_are_not_decoded_in_the_time_of_others(given, said):
    assert not [line for line in refused(load_config, None, [IMAGES, *given]) if "workers" in line]
    (line,) = refused(load_config, None, [IMAGES, "workload.workers=2", *given])
    assert line.startswith("--set workload.workers: 2") and said in line


def test_batch_normalisation_is_warned_of_where_counts_may_differ():
    (line,) = image_warnings(load_config(None, [IMAGES, "schedule.policy=partition"]))
    assert line.startswith("schedule.policy: under 'partition'") and "are not compared" in line
    for given in ([IMAGES], ["workload.name=mlp", "schedule.policy=partition"], ["schedule.policy=partition"]):
        assert image_warnings(load_config(None, given)) == []


@pytest.fixture
def two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy of the configuration has two ranks serve."""
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=2))


OF_FIVE = {
    "train.global_batch=3": "",
    "train.global_batch=9": "",
    "train.global_batch=2": "train.global_batch: 2 is less than the 3 workers (of 5 ranks)",
    "train.global_batch=10": "cannot be dealt equally to 3 workers (of 5 ranks), as static must; nearest",
    "train.global_batch=6 schedule.micro_batches=3": "3 on 3 workers (of 5 ranks) need 9 samples",
    "schedule.policy=partition schedule.speeds=1.0,2.0,1.0": "",
    "schedule.policy=partition schedule.capacity=4,4,4,4,4": "one per worker",
    "launch.slowdown=2:3.0,4:2.0": "",
    "launch.slowdown=1:3.0": "rank 1 trains nothing under sync.name 'ddp'",
    "launch.slowdown=5:3.0": "no rank 5 among 5; greatest: 4",
    "schedule.policy=prefix schedule.buffer=2": "nearest that works: 3",
    "train.precision=bf16": "",
    "train.precision=fp16": "train.precision: 'fp16' scales the loss, which ranks that",
}


@pytest.mark.parametrize("settings", OF_FIVE)
@pytest.mark.usefixtures("two_servers")
def test_rules_count_workers(settings):
    problems = check_rules(load_config(None, ["train.global_batch=9", *settings.split()]), 5)
    said = OF_FIVE[settings]
    assert [said in problem for problem in problems] == [True] * bool(said)


@pytest.mark.usefixtures("two_servers")
def test_somebody_has_to_train():
    config = load_config(None, ["train.global_batch=1"])
    (problem,) = check_rules(config, 2)
    assert problem.startswith("sync.name: 'ddp' has 2 of 2 ranks serve") and problem.endswith("that works: 3")
    assert check_rules(config, 3) == []


@pytest.mark.usefixtures("two_servers")
def test_buffers_are_those_of_the_workers():
    settings = ["train.global_batch=9", "schedule.policy=prefix", "schedule.buffer=4"]
    (warning,) = rule_warnings(load_config(None, settings), 5, ())
    assert "3 workers (of 5 ranks) hold 12 samples for a global batch of 9" in warning


PLAIN = "sgd train.momentum=0"
COPIES = {
    "4 ddp adamw": 4,
    "4 ddp sgd": 3,
    f"4 ddp {PLAIN}": 2,
    "4 zero1 adamw": 2 + (1 + 2) / 4,
    "1 zero1 adamw": 5,
    "4 zero1_torch adamw": 2 + 2 / 4,
    "4 fsdp adamw": 4 / 4,
    f"2 fsdp {PLAIN}": 2 / 2,
    "4 ps adamw": 2,
    "4 local_sgd sgd": 4,
    "4 diloco adamw": 6,
}
"""Workers, strategy and optimizer, and how many copies of the parameters a worker holds."""


@pytest.mark.parametrize("given", COPIES)
def test_copies_between_steps(given):
    workers, sync, optimizer, *more = given.split()
    config = load_config(None, [f"sync.name={sync}", f"train.optimizer={optimizer}", *more])
    ranks = ranks_under(sync, int(workers) + STRATEGIES[sync].servers)
    assert parameter_copies(config, ranks) == COPIES[given]
    assert f"a rank holds {COPIES[given]:.3g} copies" in copies_text(config, ranks)


@pytest.mark.parametrize("sync", STRATEGIES)
def test_more_ranks_never_store_more_each(sync):
    config, servers = load_config(None, [f"sync.name={sync}"]), STRATEGIES[sync].servers
    stored = [parameter_copies(config, Ranks(workers + servers, servers), in_step=True) for workers in (1, 2, 4)]
    assert stored == sorted(stored, reverse=True)
    assert stored[0] >= parameter_copies(config, Ranks(1 + servers, servers))
    assert (server_copies(config) > 0) == (servers > 0)
