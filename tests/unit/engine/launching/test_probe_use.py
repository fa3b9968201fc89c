"""A probe is used by runs that it was made for, whichever way it is named and however the ranks are launched."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest
from probes import capacity_row, make_probe, probe_record

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.probe_use import device_name, measured_settings, probe_warnings
from dynbench.engine.launching.resolve import Machine, Resolved, launch_warnings, resolve
from dynbench.engine.launching.run_launch import create_run, plan_launch
from dynbench.engine.plan_check import check_plan
from dynbench.engine.planning import build_capacity
from dynbench.errors import ConfigError, RunLookupError
from dynbench.plugins import POLICIES, STRATEGIES, WORKLOADS, Section, WorkloadEntry
from dynbench.plugins.code import content_digest
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import policy_class
from dynbench.workloads.text_classification import TextClassification

CPU = ("launch.device=cpu", "train.global_batch=64")
LAUNCHERS = {
    "torchrun": (Machine(cores=4, gpus=0, bf16=False), ("launch.nproc=2",)),
    "virtual": (Machine(cores=4, gpus=0, bf16=False), ("launch.launcher=virtual", "launch.world_size=2")),
    "attached": (Machine(cores=4, gpus=0, bf16=False, ranks_given=(2, 2)), ()),
    "nodes": (
        Machine(cores=4, gpus=0, bf16=False),
        ("launch.nproc=1", "launch.nnodes=2", "launch.rdzv_endpoint=a:1"),
    ),
}
GPUS = Machine(cores=8, gpus=2, bf16=True, gpu_names=("A", "A"))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> tuple[Machine, tuple[str, ...]]:
    return LAUNCHERS[request.param]


def decide(store: RunStore, machine: Machine, *overrides: str) -> Resolved:
    return resolve(load_config(None, overrides), machine, store)


@pytest.mark.parametrize("key", ["probe.run", "schedule.capacity"])
@pytest.mark.parametrize(
    ("setting", "ours", "theirs"),
    [
        ("workload.size", "base", "small"),
        ("workload.dropout", 0.0, None),
        ("workload.max_length", 512, 256),
        ("workload.weights", "pretrained", "random"),
        ("workload.pad_to_multiple_of", 8, 1),
    ],
)
def test_a_run_of_another_model_is_refused(
    store: RunStore,
    launcher: tuple[Machine, tuple[str, ...]],
    key: str,
    setting: str,
    ours: object,
    theirs: object,
) -> None:
    machine, settings = launcher
    probe = make_probe(store)
    with pytest.raises(ConfigError) as caught:
        decide(store, machine, *CPU, *settings, f"{key}=probed", f"{setting}={ours}")
    assert caught.value.problems == (f"{setting}: {ours!r}, but {key} {probe.id} was made with {theirs!r}",)
    assert "dynbench probe" in caught.value.hint


def test_every_key_that_differs_is_named_at_once(store: RunStore) -> None:
    make_probe(store, "workload.dropout=0.0", pad_to_multiple_of=8, precision="bf16", device="cuda")
    with pytest.raises(ConfigError) as caught:
        decide(store, *_flat(LAUNCHERS["torchrun"]), *CPU, "probe.run=probed", "workload.size=base")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "launch.device", "train.precision", "workload.pad_to_multiple_of", "workload.dropout", "workload.size",
    ]  # fmt: skip


def _flat(launcher: tuple[Machine, tuple[str, ...]]) -> tuple[Machine, str, ...]:
    return launcher[0], *launcher[1]


def test_two_probes_are_both_checked(store: RunStore) -> None:
    make_probe(store, "workload.size=base", name="a")
    make_probe(store, "workload.dropout=0.5", name="b")
    with pytest.raises(ConfigError) as caught:
        decide(store, *_flat(LAUNCHERS["torchrun"]), *CPU, "probe.run=a", "schedule.capacity=b")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["workload.size", "workload.dropout"]


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.in_train and not entry.needs])
def test_the_same_model_takes_capacities_cost_and_speeds(
    store: RunStore, launcher: tuple[Machine, tuple[str, ...]], policy: str
) -> None:
    machine, settings = launcher
    probe = make_probe(store, speeds=[1.0, 0.5])
    shorter = ("workload.max_length=128", "launch.threads=3")
    config = decide(store, machine, *CPU, *settings, *shorter, f"schedule.policy={policy}", "probe.run=probed").config
    assert config.schedule.capacity == (probe.id if POLICIES[policy].capped else None)
    assert (config.schedule.cost_type, config.schedule.speeds) == ("measured", (1.0, 0.5))


@pytest.mark.parametrize(("servers", "nproc", "refused"), [(0, 3, "launch.nproc"), (1, 3, None), (1, 4, "workers of")])
def test_capacities_hold_for_as_many_workers_as_were_probed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, servers: int, nproc: int, refused: str | None
) -> None:
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=servers))
    probe = make_probe(store, ranks=2)
    machine, settings = LAUNCHERS["torchrun"][0], (*CPU, "schedule.mode=dynamic", "probe.run=probed")
    if refused is None:
        config = decide(store, machine, *settings, f"launch.nproc={nproc}").config
        assert config.schedule.capacity == probe.id
    else:
        with pytest.raises(ConfigError, match=rf"{refused}.*: 3, but .* was made with 2"):
            decide(store, machine, *settings, f"launch.nproc={nproc}", f"schedule.capacity={probe.id}")


@pytest.mark.parametrize(
    ("probed", "asked", "ranks", "refused"),
    [
        ({}, "ddp", 2, None),
        ({}, "bucketed", 2, None),
        ({}, "fsdp", 2, None),
        ({}, "flat", 2, "sync.name: 'flat', but .* was made with 'ddp'"),
        ({}, "diloco", 2, "sync.name: 'diloco', but .* was made with 'ddp'"),
        ({"sync": "fsdp", "copies_held": 1.0}, "ddp", 2, "sync.name: 'ddp', but .* was made with 'fsdp'"),
        ({"sync": "fsdp", "copies_held": 2.0}, "fsdp", 2, None),
        ({"sync": "fsdp", "copies_held": 1.0}, "fsdp", 2, "workers: 2, but .* was made with 4"),
    ],
)
def test_capacities_hold_where_ranks_hold_no_more_under_their_strategy(
    store: RunStore, probed: dict[str, object], asked: str, ranks: int, refused: str | None
) -> None:
    world = 4 if refused and "workers" in refused else ranks
    probe = make_probe(store, ranks=world, **probed)
    settings = (*CPU, "schedule.mode=dynamic", "probe.run=probed", f"launch.nproc={ranks}", f"sync.name={asked}")
    if refused is None:
        assert decide(store, LAUNCHERS["torchrun"][0], *settings).config.schedule.capacity == probe.id
    else:
        with pytest.raises(ConfigError, match=refused):
            decide(store, LAUNCHERS["torchrun"][0], *settings)


@pytest.mark.parametrize(
    ("sync", "probed", "more", "held"),
    [
        ("ddp", 2.0, "train.optimizer=adamw", "4.0, but .* 2.0"),
        ("fsdp", 2.0, "sync.reshard=false", "3.0, but .* 2.0"),
        ("diloco", 8.0, "sync.overlap_steps=1", "9.0, but .* 8.0"),
    ],
)
def test_capacities_of_the_same_strategy_that_held_less_are_refused(
    store: RunStore, sync: str, probed: float, more: str, held: str
) -> None:
    make_probe(store, ranks=2, sync=sync, copies_held=probed)
    settings = (*CPU, "schedule.mode=dynamic", "probe.run=probed", "launch.nproc=2", f"sync.name={sync}", more)
    with pytest.raises(ConfigError, match=f"copies of the parameters.*: {held}"):
        decide(store, LAUNCHERS["torchrun"][0], *settings)


def test_a_record_that_says_nothing_of_strategies_is_held_against_one_with_options(store: RunStore) -> None:
    make_probe(store, ranks=2)
    options = ("sync.name=diloco", "sync.inner_steps=5", "sync.outer_rate=0.5")
    settings = (*CPU, "schedule.mode=dynamic", "probe.run=probed", "launch.nproc=2", *options)
    with pytest.raises(ConfigError, match=r"sync\.name: 'diloco', but .* was made with 'ddp'"):
        decide(store, LAUNCHERS["torchrun"][0], *settings)


class Depth(Section):
    """Of a workload from outside."""

    shape_of: tuple[int, int] = (2, 3)
    """Layers and heads."""


def test_a_registered_workload_of_the_users_own_has_a_digest_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_config(None).workload
    assert "code_digest" not in measured_settings(ours)
    monkeypatch.setitem(WORKLOADS.entries, "deep", WorkloadEntry("deep", "", TextClassification, Depth))
    deep = ours.model_copy(update={"name": "deep", "shape_of": (2, 3)})
    digest = content_digest(Path(inspect.getfile(TextClassification)).read_bytes())
    measured = measured_settings(deep)
    assert (measured["code_digest"], measured["shape_of"], measured["dataset"]) == (digest, [2, 3], "embedded")
    assert probe_record(workload=measured).workload == measured
    assert measured_settings(deep.model_copy(update={"shape_of": (4, 3)})) != measured


def test_settings_without_effect_may_differ(store: RunStore) -> None:
    machine = LAUNCHERS["torchrun"]
    make_probe(store, "workload.weights=pretrained", "workload.size=base", name="pretrained")
    decide(store, *_flat(machine), *CPU, "workload.weights=pretrained", "probe.run=pretrained")
    make_probe(store, "workload.size=base", "workload.dataset=sst2", name="base")
    decide(store, *_flat(machine), *CPU, "workload.size=base", "probe.run=base")


def test_a_small_random_model_has_an_embedding_of_the_vocabularys_size(store: RunStore) -> None:
    make_probe(store)
    machine = LAUNCHERS["torchrun"]
    decide(store, *_flat(machine), *CPU, "probe.run=probed", "workload.dataset=lognormal")
    with pytest.raises(ConfigError, match=r"workload.vocabulary: 'distilbert-base-uncased', but .* 'generated'"):
        decide(store, *_flat(machine), *CPU, "probe.run=probed", "workload.dataset=sst2")


def test_another_accelerator_is_refused(store: RunStore) -> None:
    probe = make_probe(store, device="cuda", device_name="B", precision="bf16", pad_to_multiple_of=8)
    with pytest.raises(ConfigError, match=f"device: 'A', but probe.run {probe.id} was made with 'B'"):
        decide(store, GPUS, "probe.run=probed")
    make_probe(store, name="same", device="cuda", device_name="A", precision="bf16", pad_to_multiple_of=8)
    assert decide(store, GPUS, "probe.run=same").device_name == "A"
    with pytest.raises(ConfigError, match=r"train.precision: 'fp32', but .* 'bf16'"):
        decide(store, GPUS, "probe.run=same", "train.precision=fp32")


def test_names_of_devices() -> None:
    assert device_name("cuda", ("B", "A", "B")) == "A and B"
    assert device_name("cuda", ()) is None
    assert device_name("cpu", ("A",)) != "A"


def test_speeds_measured_under_another_slowdown_are_refused_unless_given(store: RunStore) -> None:
    make_probe(store, "launch.slowdown={1: 2.0}", speeds=[1.0, 0.5])
    machine, plans = _flat(LAUNCHERS["torchrun"]), "schedule.policy=partition"
    with pytest.raises(ConfigError, match=r"launch.slowdown: \{\}, but probe.run .* made with \{1: 2.0\}"):
        decide(store, *machine, *CPU, plans, "probe.run=probed")
    decide(store, *machine, *CPU, plans, "probe.run=probed", "launch.slowdown={1: 2.0}")
    decide(store, *machine, *CPU, plans, "probe.run=probed", "schedule.speeds=[1.0, 1.0]")
    decide(store, *machine, *CPU, plans, "schedule.capacity=probed")


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.in_train and not entry.needs])
@pytest.mark.parametrize("ranks", [2, 4])
def test_another_slowdown_is_refused_only_where_speeds_are_taken(store: RunStore, policy: str, ranks: int) -> None:
    make_probe(store, "launch.slowdown={1: 2.0}", speeds=[1.0, 0.5], tables=[[(256, 40)]] * 4)
    machine = Machine(cores=4, gpus=0, bf16=False)
    asked = ("launch.launcher=virtual", f"launch.world_size={ranks}", f"schedule.policy={policy}", "probe.run=probed")
    if POLICIES[policy].speeds != "never" and ranks == 2:
        with pytest.raises(ConfigError, match=r"launch\.slowdown"):
            decide(store, machine, *CPU, *asked)
    else:
        assert decide(store, machine, *CPU, *asked).config.schedule.speeds is None


def test_processes_of_a_cpu_do_not_share_what_one_was_probed_with(store: RunStore) -> None:
    make_probe(store, ranks=1)
    machine = Machine(cores=4, gpus=0, bf16=False)
    with pytest.raises(ConfigError, match=r"launch.nproc: 2, but probe.run .* made with 1"):
        decide(store, machine, *CPU, "launch.nproc=2", "probe.run=probed")
    decide(store, machine, *CPU, "launch.launcher=virtual", "launch.world_size=4", "probe.run=probed")
    decide(store, machine, *CPU, "launch.nproc=2", "probe.run=probed", "schedule.capacity=32")


def test_records_of_the_first_version_are_compared_in_what_they_know(store: RunStore) -> None:
    old = {"device_name": None, "slowdown": None, "schema_version": 1}
    workload = {"name": "text_classification", "model": "other", "weights": "random", "size": "small", "dropout": None}
    make_probe(store, workload={**workload, "max_length": 256}, **old)
    machine = LAUNCHERS["torchrun"]
    decide(store, *_flat(machine), *CPU, "probe.run=probed", "launch.slowdown={1: 2.0}")
    with pytest.raises(ConfigError, match=r"workload.size: 'base'"):
        decide(store, *_flat(machine), *CPU, "probe.run=probed", "workload.size=base")


def test_a_probe_cannot_be_made_by_ranks_that_run_already(store: RunStore) -> None:
    machine, _ = LAUNCHERS["attached"]
    with pytest.raises(ConfigError, match=r"probe\.run: auto, but torchrun or srun has started the ranks"):
        decide(store, machine, *CPU, "probe.run=auto", "schedule.mode=dynamic")


def test_a_probe_that_is_gone_is_named_by_its_setting(store: RunStore) -> None:
    with pytest.raises(RunLookupError, match=r"probe\.run: run 'p7'"):
        decide(store, *_flat(LAUNCHERS["torchrun"]), *CPU, "probe.run=p7")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("schedule.mode=dynamic",), True),
        (("schedule.mode=dynamic", "probe.run=off"), False),
        (("schedule.mode=dynamic", "schedule.capacity=64"), False),
        (("schedule.mode=static",), False),
    ],
)
def test_ranks_that_make_no_probe_by_themselves_say_so(store: RunStore, overrides: tuple[str, ...], said: bool) -> None:
    attached = Machine(cores=8, gpus=2, bf16=True, ranks_given=(2, 2))
    resolved = decide(store, attached, *overrides)
    for attached_too in (True, False):
        warnings = launch_warnings(None, resolved, store.root, attached=attached_too)
        run = create_run(resolved, store, warnings)
        told = [warning for warning in run.record().warnings if "no probe is made by itself" in warning]
        assert len(told) == (said and attached_too)
    assert probe_warnings(decide(store, LAUNCHERS["attached"][0], *overrides, *CPU).config, 2, store.root) == []


def untested(config: Config, store: RunStore) -> list[str]:
    return [warning for warning in probe_warnings(config, 2, store.root) if "nothing is known" in warning]


@pytest.mark.parametrize(
    ("policy", "batch", "largest"),
    [("static", 64, 32), ("partition", 64, 63), ("window", 64, 63), ("prefix", 64, 48), ("static", 40, None)],
)
def test_plans_beyond_what_was_tried_are_warned_of_not_refused(
    store: RunStore, policy: str, batch: int, largest: int | None
) -> None:
    rows = [capacity_row(rank, 256, 31, None) for rank in range(2)]
    probe = make_probe(store, global_batch=32, capacity=rows, tables=[[(256, None)]] * 2)
    settings = (f"schedule.policy={policy}", f"train.global_batch={batch}", "schedule.buffer=48", "launch.device=cpu")
    config = load_config(None, (*settings, "probe.run=probed", "launch.nproc=2"))
    config = plan_launch(config, store, machine=Machine(cores=4, gpus=0, bf16=False)).resolved.config
    assert config.schedule.capacity == probe.id
    found = untested(config, store)
    if largest is None:
        assert found == []
    else:
        (line,) = found
        assert "tested up to 31 samples at length 256 and found no limit" in line
        assert f"may plan up to {largest}," in line and f"--global-batch {batch}" in line


def test_a_limit_that_was_found_needs_no_warning(store: RunStore) -> None:
    make_probe(store)
    config = decide(store, *_flat(LAUNCHERS["torchrun"]), "train.global_batch=78", "probe.run=probed").config
    assert untested(config, store) == []


def test_unequal_speeds_of_other_ranks_are_not_left_out_silently(store: RunStore) -> None:
    make_probe(store, speeds=[1.0, 0.5])
    given = ("launch.nproc=4", "schedule.capacity=64", "probe.run=probed", "launch.device=cpu")
    config = decide(store, Machine(cores=4, gpus=0, bf16=False), *given).config
    assert [line.partition(":")[0] for line in probe_warnings(config, 4, store.root)] == ["schedule.speeds"]


UNEQUAL = {"numbers": [[(64, 45), (256, 40)], [(128, 46), (256, 39)]], "null": [[(256, None)], [(256, 39)]]}
SPLITTING = [
    name for name, entry in POLICIES.items()
    if entry.in_train and not entry.needs and policy_class(name).splits and POLICIES[name].capped
]  # fmt: skip


@pytest.mark.parametrize("policy", SPLITTING)
@pytest.mark.parametrize("micro_batches", [2, "auto"])
@pytest.mark.parametrize("tables", UNEQUAL)
@pytest.mark.parametrize("key", ["probe.run", "schedule.capacity"])
def test_with_micro_batches_the_least_of_the_ranks_capacities_holds(
    store: RunStore, policy: str, micro_batches: object, tables: str, key: str
) -> None:
    probe = make_probe(store, tables=UNEQUAL[tables])
    settings = (f"schedule.policy={policy}", f"schedule.micro_batches={micro_batches}", f"{key}=probed")
    config = decide(store, *_flat(LAUNCHERS["torchrun"]), *CPU, *settings).config
    check_plan(config, 2, store.root)
    capacity = build_capacity(config, 2, store.root)
    assert [capacity.limit(rank, 200) for rank in (0, 1)] == [39, 39]
    assert [capacity.limit(rank, 100) for rank in (0, 1)] == ([40, 40] if tables == "numbers" else [39, 39])
    (line,) = probe_warnings(config, 2, store.root)
    assert line.startswith(f"schedule.capacity: {probe.id} measured ranks of unequal capacity")
    whole = decide(store, *_flat(LAUNCHERS["torchrun"]), *CPU, f"schedule.policy={policy}", f"{key}=probed").config
    assert build_capacity(whole, 2, store.root).limit(0, 200) > 39
    assert probe_warnings(whole, 2, store.root) == []


def test_images_of_another_size_cost_something_else() -> None:
    def measured(*given: str) -> dict[str, object]:
        return measured_settings(load_config(None, ["workload.name=image_classification", *given]).workload)

    assert measured("workload.image_size=64") != measured("workload.image_size=32")
    assert measured("workload.image_size=64", "workload.workers=2") == measured("workload.image_size=64")
