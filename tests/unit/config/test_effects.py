"""Every field says when it is read, and one that was changed and is not read is named once."""

from __future__ import annotations

from typing import get_args

import pytest

from dynbench.config.describe import all_keys
from dynbench.config.effects import EFFECTS
from dynbench.config.layers import load_config
from dynbench.config.rules import makes_probe
from dynbench.config.schema import Config
from dynbench.config.situation import Command, Situation
from dynbench.config.unread import INSTEAD, unread
from dynbench.plugins import WORKLOADS

TEXTS = "workload.dataset=sst2"
OWN = "workload.name=mine:Workload"
FILES = ("workload.dataset=tsv", "workload.data_path=x.tsv")
JSON = ("workload.name=causal_lm", "workload.dataset=json", "workload.data_path=x.json")
IMAGES = ("workload.name=image_classification",)
WIKIPEDIA = ("workload.name=causal_lm", "workload.dataset=wikipedia")
TRACE = ("workload.dataset=lengths", "workload.data_path=x.parquet")
DYNAMIC = "schedule.mode=dynamic"
PREFIX = "schedule.policy=prefix"
WINDOW = ("schedule.policy=window", "schedule.window=4")
MEASURED = ("schedule.cost_coefficients=[1, 1, 0]",)
VIRTUAL, REAL = "launch.launcher=virtual", "launch.launcher=torchrun"
NODES = ("launch.nnodes=2", "launch.rdzv_endpoint=a:1")
PROBE = "probe.run=auto"

VALUES: dict[str, str] = {
    "workload.name": "mine:Workload",
    "workload.import_from": "there",
    "workload.code_digest": "0123456789abcdef",
    "workload.dataset": "lognormal",
    "workload.text_column": "text",
    "workload.label_column": "class",
    "workload.length_column": "tokens",
    "workload.model": "bert-base-uncased",
    "workload.weights": "pretrained",
    "workload.size": "base",
    "workload.dropout": "0.2",
    "workload.max_length": "100",
    "workload.megabytes": "20",
    "workload.edition": "20231101.de",
    "workload.image_size": "64",
    "workload.workers": "2",
    "workload.max_unreadable": "0.2",
    "workload.blocks": "true",
    "workload.subset": "500",
    "workload.pad_to_multiple_of": "16",
    "workload.layout": "packed",
    "workload.cache_dir": "there",
    "schedule.mode": "dynamic",
    "schedule.policy": "partition",
    "schedule.solver": "greedy",
    "schedule.cost_type": "attention",
    "schedule.attention_a": "0.5",
    "schedule.cost_coefficients": "[1, 1, 0]",
    "schedule.further_ms": "2.5",
    "schedule.buffer": "70",
    "schedule.window": "5",
    "schedule.micro_batches": "auto",
    "schedule.objective": "slots",
    "schedule.capacity": "40",
    "schedule.second_weight": "0.5",
    "schedule.speeds": "[1, 0.5]",
    "schedule.replan_steps": "4",
    "sync.bucket_mb": "5",
    "sync.find_unused": "true",
    "sync.reshard": "false",
    "sync.reduce_scatter": "native",
    "sync.gather_bf16": "true",
    "sync.inner_steps": "4",
    "sync.outer_rate": "0.5",
    "sync.outer_momentum": "0.8",
    "sync.fragments": "3",
    "sync.overlap_steps": "2",
    "sync.own_share": "0.25",
    "sync.communicate": "false",
    "compress.error_feedback": "false",
    "compress.start_step": "3",
    "compress.min_elements": "7",
    "compress.shared_seed": "4",
    "compress.ratio": "0.1",
    "compress.contractive": "true",
    "compress.threshold": "0.5",
    "compress.rounding": "stochastic",
    "compress.num_bits": "4",
    "compress.format": "e5m2",
    "compress.rank": "4",
    "compress.slice_elements": "32",
    "compress.components": "8",
    "compress.refresh_every": "5",
    "compress.error_every": "5",
    "compress.sketch_rows": "3",
    "compress.sketch_columns": "0.5",
    "compress.bits": "8",
    "compress.bucket_elements": "128",
    "train.steps": "7",
    "train.epochs": "2",
    "train.warmup_steps": "3",
    "train.profile_steps": "1",
    "train.exposed": "true",
    "train.memory_parts": "true",
    "train.global_batch": "32",
    "train.batch_per_worker": "8",
    "train.seed": "5",
    "train.precision": "fp32",
    "train.optimizer": "adam",
    "train.momentum": "0.5",
    "train.learning_rate": "0.1",
    "train.schedule": "cosine",
    "train.lr_warmup_steps": "4",
    "train.max_grad_norm": "1.5",
    "train.weight_decay": "0.2",
    "train.eval_every": "9",
    "train.eval_samples": "8",
    "train.save_model": "true",
    "train.tensorboard": "true",
    "launch.launcher": "torchrun",
    "launch.nproc": "8",
    "launch.world_size": "8",
    "launch.threads": "1",
    "launch.slowdown": "{1: 2.0}",
    "launch.comm_model": "none",
    "launch.link_gbps": "2.5",
    "launch.device": "cpu",
    "launch.rdzv_endpoint": "b:2",
    "launch.rdzv_id": "q",
    "launch.timeout_s": "30",
    "probe.run": "off",
    "probe.lengths": "[32, 64]",
    "probe.memory_fraction": "0.5",
    "probe.memory_limit": "1GB",
    "probe.margin": "0.2",
    "probe.gap": "0.2",
    "probe.trials": "5",
    "probe.repeats": "7",
    "probe.soak_steps": "3",
    "analysis.noise_threshold": "0.1",
    "analysis.confidence": "0.9",
    "analysis.loss_tolerance": "0.1",
    "analysis.target_perplexity": "20.0",
    "analysis.time_budget_s": "60.0",
}
"""A value other than the default for every field that takes one by itself."""

NEEDING = {
    "workload.data_path": ("x.tsv", ("workload.dataset=tsv",)),
    "workload.eval_path": ("y.tsv", FILES),
    "workload.second_column": ("patches", TRACE),
    "workload.tokenizer": ("vocab.txt", (TEXTS,)),
    "schedule.exchange": ("gather", (PREFIX,)),
    "workload.use_cache": ("true", ("workload.name=causal_lm", "workload.size=tiny", "workload.layout=flattened")),
    "launch.nnodes": ("2", ("launch.rdzv_endpoint=a:1",)),
    "launch.node_rank": ("1", NODES),
}
"""Fields that rules allow in some configurations only: a value, and such a configuration."""

SINGLE = ("sync.name", "compress.name")
"""Registries of one name."""

UNREAD_AND_READ: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "workload.import_from": ((), (OWN,)),
    "workload.code_digest": ((), (OWN,)),
    "workload.text_column": ((TEXTS,), FILES),
    "workload.label_column": ((), FILES),
    "workload.length_column": (FILES, TRACE),
    "workload.model": ((TEXTS, "workload.tokenizer=vocab.txt"), (TEXTS,)),
    **{f"workload.{name}": ((), IMAGES) for name in ("image_size", "workers", "max_unreadable")},
    **{f"workload.{name}": (IMAGES, ()) for name in ("dropout", "max_length")},
    "workload.megabytes": ((), WIKIPEDIA),
    "workload.edition": ((), WIKIPEDIA),
    "workload.blocks": (("workload.name=causal_lm",), (*JSON,)),
    "workload.size": (("workload.weights=pretrained",), ()),
    "workload.cache_dir": (("workload.dataset=lognormal",), FILES),
    "workload.pad_to_multiple_of": (("workload.layout=packed",), ()),
    "schedule.solver": (WINDOW, (PREFIX, "schedule.buffer=99")),
    "schedule.cost_type": (("schedule.policy=token_budget",), (PREFIX, "schedule.buffer=99")),
    "schedule.attention_a": ((DYNAMIC,), (DYNAMIC, "schedule.cost_type=attention")),
    "schedule.cost_coefficients": ((DYNAMIC, "schedule.cost_type=tokens"), (DYNAMIC,)),
    "schedule.further_ms": ((DYNAMIC, *MEASURED), (DYNAMIC, *MEASURED, "schedule.micro_batches=auto")),
    "schedule.buffer": ((DYNAMIC,), (PREFIX,)),
    "schedule.window": (("schedule.policy=partition",), (DYNAMIC,)),
    "schedule.micro_batches": ((DYNAMIC,), (DYNAMIC, *MEASURED)),
    "schedule.objective": ((DYNAMIC,), (DYNAMIC, "schedule.micro_batches=2")),
    "schedule.capacity": (("schedule.policy=lpt",), ()),
    "schedule.second_weight": ((DYNAMIC,), (DYNAMIC, *TRACE, "workload.second_column=patches")),
    "schedule.speeds": (("schedule.policy=group_by_length",), ("schedule.policy=sorted_equal",)),
    "schedule.replan_steps": ((DYNAMIC,), (DYNAMIC, "schedule.speeds=auto")),
    "sync.bucket_mb": ((VIRTUAL,), (REAL,)),
    "sync.find_unused": ((VIRTUAL,), (REAL,)),
    "sync.reshard": ((REAL,), (REAL, "sync.name=fsdp")),
    "sync.reduce_scatter": ((REAL,), (REAL, "sync.name=zero1")),
    "sync.gather_bf16": ((REAL,), (REAL, "sync.name=fsdp")),
    "sync.inner_steps": ((REAL,), (REAL, "sync.name=local_sgd")),
    "sync.outer_rate": ((REAL, "sync.name=local_sgd"), (REAL, "sync.name=diloco")),
    "sync.outer_momentum": ((REAL,), (REAL, "sync.name=diloco")),
    "sync.fragments": ((REAL,), (REAL, "sync.name=diloco")),
    "sync.overlap_steps": ((REAL,), (REAL, "sync.name=diloco")),
    "sync.own_share": ((REAL,), (REAL, "sync.name=diloco", "sync.overlap_steps=1")),
    "train.eval_samples": (("sync.communicate=false",), ()),
    "train.momentum": ((), ("train.optimizer=sgd",)),
    **{
        f"compress.{name}": ((REAL,), (REAL, f"compress.name={reader}"))
        for name, reader in {
            "error_feedback": "topk",
            "start_step": "fp16",
            "min_elements": "int8",
            "shared_seed": "randomk",
            "ratio": "topk",
            "contractive": "natural",
            "threshold": "threshold",
            "rounding": "bf16",
            "num_bits": "int8",
            "format": "fp8",
            "rank": "powersgd",
            "slice_elements": "gradiveq",
            "components": "gradiveq",
            "refresh_every": "gradiveq",
            "error_every": "topk",
            "sketch_rows": "sketch",
            "sketch_columns": "sketch",
            "bits": "qsgd",
            "bucket_elements": "qsgd",
        }.items()
    },
    "train.eval_every": (("train.eval_samples=0",), ()),
    "launch.nproc": ((VIRTUAL,), (REAL,)),
    "launch.comm_model": ((REAL,), (VIRTUAL,)),
    "launch.rdzv_endpoint": ((VIRTUAL,), ("launch.nnodes=2",)),
    "launch.rdzv_id": ((), NODES),
    "launch.timeout_s": ((VIRTUAL,), (REAL,)),
    "probe.memory_fraction": ((PROBE, "launch.device=cpu"), (PROBE, "launch.device=cuda")),
    "probe.memory_limit": ((PROBE, "launch.device=cuda"), (PROBE, "launch.device=cpu")),
    "analysis.noise_threshold": ((), (PROBE,)),
    **{f"analysis.{name}": ((), ("workload.name=causal_lm",)) for name in ("target_perplexity", "time_budget_s")},
    **{f"probe.{name}": ((), (PROBE,)) for name in ("lengths", "margin", "gap", "trials", "repeats", "soak_steps")},
}
"""For every field that is not always read in training, a configuration in which it is not, and one in which it is."""

ELSEWHERE = {
    "sync.name": "solve, for which it says what several micro-batches are planned for",
    "workload.dataset": "solve names its data set as a trace",
    "launch.world_size": "real ranks, where the launcher was chosen by the machine",
    "launch.nnodes": "ranks that torchrun has started",
    "launch.node_rank": "ranks that torchrun has started",
}
"""Conditions that no configuration alone decides; each has a test of its own below."""


def situation(config: Config, command: Command = "train", **changes: object) -> Situation:
    """As the engine makes it, where everything is decided that the configuration decides."""
    ranks = config.launch.world_size or (4 if config.launch.launcher == "virtual" else 2)
    probes = makes_probe(config, on_gpus=False)
    facts: dict[str, object] = {"world_size": ranks, "probes": probes, "plans_data": True, **changes}
    return Situation(command, config, config, **facts)  # type: ignore[arg-type]  # the test's callers know the types


def with_value(key: str, base: tuple[str, ...] = ()) -> Config:
    """A configuration in which a field has a value of its own."""
    if key in SINGLE:
        section, _, name = key.partition(".")
        config = load_config(None, base)
        return config.model_copy(update={section: getattr(config, section).model_copy(update={name: "another"})})
    value, needed = NEEDING[key] if key in NEEDING else (VALUES[key], ())
    return load_config(None, [*needed, *base, f"{key}={value}"])


def named(warnings: list[str], key: str) -> list[str]:
    return [warning for warning in warnings if key in warning]


def test_every_field_says_when_it_is_read_and_has_a_value_to_try() -> None:
    assert list(EFFECTS) == list(all_keys())
    assert sorted([*VALUES, *NEEDING, *SINGLE]) == sorted(all_keys())
    conditional = [key for key, effect in EFFECTS.items() if effect.otherwise]
    assert sorted(conditional) == sorted([*UNREAD_AND_READ, *ELSEWHERE])


@pytest.mark.parametrize("command", get_args(Command))
def test_defaults_warn_of_nothing(command: Command) -> None:
    assert unread([situation(Config(), command)]) == []


@pytest.mark.parametrize("key", UNREAD_AND_READ)
def test_a_value_is_named_where_it_is_not_read_and_only_there(key: str) -> None:
    without_effect, in_use = (with_value(key, base) for base in UNREAD_AND_READ[key])
    (warning,) = named(unread([situation(without_effect)]), f"{key}: ")
    assert " has no effect: " in warning
    assert "{" not in warning.partition("has no effect")[2]
    assert unread([situation(in_use)]) == []


@pytest.mark.parametrize("key", UNREAD_AND_READ)
def test_nothing_else_is_named_beside_it(key: str) -> None:
    assert len(unread([situation(with_value(key, UNREAD_AND_READ[key][0]))])) == 1


OF_OURS = {"workload.layout", "workload.use_cache"}
"""Of the workload, what code of one's own is refused."""


@pytest.mark.parametrize("key", [key for key in EFFECTS if key.startswith("workload.") and key not in OF_OURS])
def test_code_of_ones_own_may_read_every_setting_of_its_section(key: str) -> None:
    value, needed = NEEDING[key] if key in NEEDING else (VALUES[key], ())
    bare = load_config(None, [OWN, f"{key}={value}"])
    assert unread([situation(bare)]) == []
    assert unread([situation(load_config(None, [*needed, OWN, f"{key}={value}"]))]) == []


@pytest.mark.parametrize("key", [key for key, effect in EFFECTS.items() if not effect.otherwise])
def test_what_is_always_read_is_never_named_in_training(key: str) -> None:
    expected = 0 if "train" in EFFECTS[key].commands.split() else 1
    assert len(unread([situation(with_value(key))])) == expected


@pytest.mark.parametrize("command", [command for command in get_args(Command) if command != "compare"])
@pytest.mark.parametrize("key", all_keys())
def test_what_a_command_never_looks_at_is_one_warning(key: str, command: Command) -> None:
    warnings = named(unread([situation(with_value(key), command)]), key)
    if EFFECTS[key].in_scope(situation(Config(), command)):
        assert all(" has no effect: " in warning for warning in warnings)
    else:
        (warning,) = warnings
        assert f"no effect on `dynbench {command}`" in warning


@pytest.mark.parametrize(
    "key", ["sync.name", "sync.bucket_mb", "sync.communicate", "compress.name", "compress.error_feedback"]
)
def test_a_probe_times_splits_under_the_runs_synchronisation(key: str) -> None:
    config = with_value(key, (REAL,)) if key != "compress.error_feedback" else with_value(key)
    if key == "compress.error_feedback":
        config = config.model_copy(update={"compress": config.compress.model_copy(update={"name": "another"})})
    assert unread([situation(config, "probe")]) == []


def test_a_registered_workload_of_the_users_own_may_read_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["workload.weights=pretrained", "workload.size=base", "workload.cache_dir=there"])
    assert len(unread([situation(config)])) == 2
    monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    assert unread([situation(config)]) == []


def test_settings_beyond_a_command_share_a_line_that_names_its_own_options() -> None:
    config = load_config(None, ["train.steps=5", "launch.nproc=3", "workload.subset=500"])
    (line,) = unread([situation(config, "solve", plans_data=False, policies=("static",))])
    for part in ("train.steps (--steps)", "launch.nproc,", "workload.subset (name a data set, --dataset)"):
        assert part in line or part.rstrip(",") in line
    assert set(INSTEAD["solve"]) <= set(all_keys())


def test_ranks_that_torchrun_has_started() -> None:
    config = load_config(None, ["launch.nproc=2", "launch.node_rank=1", *NODES, "launch.rdzv_id=q"])
    assert unread([situation(config)]) == []
    warnings = unread([situation(config, attached=True)])
    assert [line.partition(":")[0] for line in warnings] == [
        "launch.nproc", "launch.nnodes", "launch.node_rank", "launch.rdzv_endpoint", "launch.rdzv_id",
    ]  # fmt: skip


def test_a_number_of_virtual_ranks_beside_other_real_ones() -> None:
    given = load_config(None, ["launch.nproc=2", "launch.world_size=8"])
    real = given.model_copy(update={"launch": given.launch.model_copy(update={"launcher": "torchrun"})})
    (warning,) = unread([Situation("train", given, real, world_size=2)])
    assert warning == "launch.world_size: 8 has no effect: there are 2 real ranks (launch.nproc)"
    assert unread([Situation("train", given, real, world_size=8)]) == []


def test_a_trace_named_beside_a_data_set() -> None:
    given, planned = load_config(None, [TEXTS]), Config()
    (warning,) = unread([Situation("solve", given, planned, plans_data=True)])
    assert warning.startswith("workload.dataset: 'sst2' has no effect: the trace that is named is dataset 'embedded'")


@pytest.mark.parametrize("nproc", ["1", "4"])
def test_as_many_processes_as_virtual_ranks_say_the_same_twice(nproc: str) -> None:
    config = load_config(None, [VIRTUAL, "launch.world_size=4", f"launch.nproc={nproc}"])
    assert unread([situation(config)]) == []


def test_a_probe_to_come_reads_what_it_will_decide() -> None:
    config = load_config(None, [DYNAMIC, PROBE, "schedule.micro_batches=auto", "schedule.attention_a=0.5"])
    assert unread([situation(config)]) == []


def test_solve_reads_for_the_policies_that_it_plans() -> None:
    config = load_config(None, ["schedule.solver=greedy", "schedule.cost_type=attention", "schedule.window=4"])
    assert unread([situation(config, "solve", policies=("prefix", "window"))]) == []
    keys = [line.partition(":")[0] for line in unread([situation(config, "solve", policies=("static",))])]
    assert keys == ["schedule.window", "schedule.solver", "schedule.cost_type"]


def test_solve_reads_the_strategy_where_it_says_what_several_micro_batches_are_planned_for() -> None:
    split = ("sync.name=fsdp", "schedule.micro_batches=2")
    assert unread([situation(load_config(None, split), "solve", policies=("partition",))]) == []
    for given in (split[:1], (*split, "schedule.objective=sum")):
        (warning,) = unread([situation(load_config(None, given), "solve", policies=("partition",))])
        assert warning.startswith("sync.name: 'fsdp' has no effect")


def test_arms_share_what_one_of_them_reads() -> None:
    def arm(*overrides: str) -> Situation:
        return situation(load_config(None, overrides), "compare")

    shared = arm("schedule.window=16"), arm("schedule.policy=partition", "schedule.window=16")
    (warning,) = unread(shared)
    assert warning.startswith("schedule.window: 16 has no effect: policy 'static, partition'")
    assert unread([*shared, arm("schedule.policy=window", "schedule.window=16")]) == []
    (own,) = unread([arm("schedule.policy=partition", "schedule.window=4"), arm(*WINDOW[:1], "schedule.window=8")])
    assert own.startswith("schedule.window: 4 has no effect")


@pytest.mark.parametrize(
    ("given", "kept"),
    [((*IMAGES, "workload.dataset=image_folder"), True), (("workload.name=mlp", "workload.dataset=mnist"), False)],
)
def test_what_is_found_in_images_of_files_is_kept_in_the_cache(given: tuple[str, ...], kept: bool) -> None:
    config = load_config(None, [*given, "workload.data_path=x", "workload.cache_dir=y"])
    said = [line for line in unread([situation(config)]) if line.startswith("workload.cache_dir")]
    assert bool(said) != kept
