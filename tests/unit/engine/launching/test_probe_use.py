"""A probe is used by runs that it was made for, whichever way it is named and however the ranks are launched."""

from __future__ import annotations

import inspect
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from architectures import write_config
from probes import capacity_row, make_probe, probe_record, resolved

from dynbench.config.layers import load_config
from dynbench.engine.launching.probe_use import device_name, measured_settings, probe_warnings
from dynbench.engine.launching.resolve import Machine, Resolved, launch_warnings
from dynbench.engine.launching.run_launch import plan_launch
from dynbench.engine.plan_check import check_plan
from dynbench.engine.planning import build_capacity
from dynbench.errors import ConfigError
from dynbench.plugins import POLICIES, WORKLOADS, Section, WorkloadEntry
from dynbench.plugins.outside import content_digest
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import policy_class
from dynbench.workloads.text_classification import TextClassification

CPU = ("launch.device=cpu", "train.global_batch=64")
CORES = Machine(cores=4, gpus=0, bf16=False)
GPUS = Machine(cores=8, gpus=2, bf16=True, gpu_names=("A", "A"))
REAL = ("launch.nproc=2",)
VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2")
LAUNCHERS = {
    "torchrun": (CORES, REAL),
    "virtual": (CORES, VIRTUAL),
    "attached": (replace(CORES, ranks_given=(2, 2)), ()),
    "nodes": (CORES, ("launch.nproc=1", "launch.nnodes=2", "launch.rdzv_endpoint=a:1")),
}
TRAINED = [name for name, entry in POLICIES.items() if entry.in_train and not entry.needs]


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> tuple[Machine, tuple[str, ...]]:
    return LAUNCHERS[request.param]


def decide(store: RunStore, machine: Machine, *overrides: str) -> Resolved:
    return resolved(*overrides, machine=machine, store=store)


MODEL = {
    "size": ("base", "small"),
    "dropout": (0.0, None),
    "max_length": (512, 256),
    "pad_to_multiple_of": (8, 1),
    "layout": ("packed", "padded"),
}
"""Settings of another model and of the probe's."""


@pytest.mark.parametrize("key", ["probe.run", "schedule.capacity"])
def test_a_run_of_another_model_is_refused(store, launcher, key):
    machine, settings = launcher
    probe = make_probe(store)
    changed = [f"workload.{setting}={ours}" for setting, (ours, _) in MODEL.items()]
    with pytest.raises(ConfigError) as caught:
        decide(store, machine, *CPU, *settings, f"{key}=probed", *changed)
    for setting, (ours, theirs) in MODEL.items():
        assert f"workload.{setting}: {ours!r}, but {key} {probe.id} was made with {theirs!r}" in caught.value.problems
    assert "dynbench probe" in caught.value.hint


def test_every_key_and_every_probe_that_differs_is_named_at_once(store):
    make_probe(store, "workload.dropout=0.0", pad_to_multiple_of=8, precision="bf16", device="cuda", name="a")
    make_probe(store, "workload.dropout=0.5", name="b")
    with pytest.raises(ConfigError) as caught:
        decide(store, CORES, *REAL, *CPU, "probe.run=a", "schedule.capacity=b", "workload.size=base")
    model = ["workload.dropout", "workload.size"]
    found = [problem.partition(":")[0] for problem in caught.value.problems]
    assert found == ["launch.device", "train.precision", "workload.pad_to_multiple_of", *model, *model]


@pytest.mark.parametrize("policy", TRAINED)
def test_the_same_model_takes_capacities_cost_and_speeds(store, launcher, policy):
    machine, settings = launcher
    probe = make_probe(store, speeds=[1.0, 0.5])
    shorter = ("workload.max_length=128", "launch.threads=3")
    config = decide(store, machine, *CPU, *settings, *shorter, f"schedule.policy={policy}", "probe.run=probed").config
    assert config.schedule.capacity == (probe.id if POLICIES[policy].capped else None)
    assert (config.schedule.cost_type, config.schedule.speeds) == ("measured", (1.0, 0.5))


SLOWED = {"settings": "'launch.slowdown={1: 2.0}'", "speeds": [1.0, 0.5]}
ON_A = {"device": "cuda", "device_name": "A", "precision": "bf16", "pad_to_multiple_of": 8}
OLD = {
    "device_name": None,
    "slowdown": None,
    "schema_version": 1,
    "workload": {"name": "text_classification", "model": "x", "weights": "random", "size": "small", "max_length": 256},
}
SYNC = "launch.nproc=2 sync.name="


@pytest.mark.parametrize(
    ("probed", "overrides", "refused"),
    [
        ({"settings": "workload.weights=pretrained workload.size=base"}, "workload.weights=pretrained", None),
        ({"settings": "workload.size=base workload.dataset=sst2"}, "workload.size=base", None),
        ({}, "workload.dataset=lognormal", None),
        ({}, "workload.weights=pretrained", "workload.weights: 'pretrained', but .* was made with 'random'"),
        ({}, "workload.dataset=sst2", "workload.vocabulary: 'distilbert-base-uncased', but .* 'generated'"),
        ({**ON_A, "device_name": "B"}, "launch.device=cuda", "device: 'A', but probe.run .* was made with 'B'"),
        (ON_A, "launch.device=cuda", None),
        (ON_A, "launch.device=cuda train.precision=fp32", "train.precision: 'fp32', but .* 'bf16'"),
        (SLOWED, "schedule.policy=partition", r"launch.slowdown: \{\}, but probe.run .* made with \{1: 2.0\}"),
        (SLOWED, "schedule.policy=partition 'launch.slowdown={1: 2.0}'", None),
        (SLOWED, "schedule.policy=partition schedule.speeds=[1.0,1.0]", None),
        (SLOWED, "schedule.policy=partition probe.run=null schedule.capacity=probed", None),
        ({"ranks": 1}, "launch.nproc=2", "launch.nproc: 2, but probe.run .* made with 1"),
        ({"ranks": 1}, "launch.launcher=virtual launch.world_size=4 launch.nproc=auto", None),
        ({"ranks": 1}, "launch.nproc=2 schedule.capacity=32", None),
        ({}, "launch.nproc=3", "launch.nproc: 3, but .* was made with 2"),
        (OLD, "'launch.slowdown={1: 2.0}'", None),
        (OLD, "workload.size=base", "workload.size: 'base'"),
        *(({}, SYNC + name, None) for name in ("ddp", "bucketed", "fsdp")),
        *(({}, SYNC + name, f"sync.name: '{name}', but .* was made with 'ddp'") for name in ("flat", "diloco")),
        ({"sync": "ps"}, "sync.name=ps launch.nproc=3", None),  # beside a server
        ({"sync": "ps"}, "sync.name=ps launch.nproc=4", "workers of.*: 3, but .* was made with 2"),
        ({"sync": "fsdp", "copies_held": 1.0}, SYNC + "ddp", "sync.name: 'ddp', but .* was made with 'fsdp'"),
        ({"sync": "fsdp", "copies_held": 2.0}, SYNC + "fsdp", None),
        ({"sync": "fsdp", "copies_held": 1.0, "ranks": 4}, SYNC + "fsdp", "workers: 2, but .* was made with 4"),
        ({"copies_held": 2.0}, SYNC + "ddp train.optimizer=adamw", "copies of the parameters.*: 4.0, but .* 2.0"),
        ({"sync": "fsdp", "copies_held": 2.0}, SYNC + "fsdp sync.reshard=false", "copies.*: 3.0, but .* 2.0"),
        ({"sync": "diloco", "copies_held": 8.0}, SYNC + "diloco sync.overlap_steps=1", "copies.*: 9.0, but .* 8.0"),
    ],
)
def test_a_probe_is_used_where_what_it_measured_holds(store, probed, overrides, refused):
    record = dict(probed)
    make_probe(store, *shlex.split(str(record.pop("settings", ""))), **record)
    machine = GPUS if "cuda" in overrides else CORES
    settings = (*CPU, *REAL, "schedule.mode=dynamic", "probe.run=probed", *shlex.split(overrides))
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        decide(store, machine, *settings)


class Depth(Section):
    """Of a workload from outside."""

    shape_of: tuple[int, int] = (2, 3)
    """Layers and heads."""


def test_names_of_devices():
    assert device_name("cuda", ("B", "A", "B")) == "A and B"
    assert device_name("cuda", ()) is None
    assert device_name("cpu", ("A",)) != "A"


@pytest.mark.parametrize("policy", TRAINED)
@pytest.mark.parametrize("ranks", [2, 4])
def test_another_slowdown_is_refused_only_where_speeds_are_taken(store, policy, ranks):
    make_probe(store, "launch.slowdown={1: 2.0}", speeds=[1.0, 0.5], tables=[[(256, 40)]] * 4)
    given = ("launch.launcher=virtual", f"launch.world_size={ranks}", f"schedule.policy={policy}", "probe.run=probed")
    if POLICIES[policy].speeds != "never" and ranks == 2:
        with pytest.raises(ConfigError, match=r"launch\.slowdown"):
            decide(store, CORES, *CPU, *given)
    else:
        assert decide(store, CORES, *CPU, *given).config.schedule.speeds is None


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["schedule.mode=dynamic"], True),
        (["schedule.mode=dynamic", "probe.run=off"], False),
        (["schedule.mode=dynamic", "schedule.capacity=64"], False),
        (["schedule.mode=static"], False),
    ],
)
def test_ranks_that_make_no_probe_by_themselves_say_so(store, overrides, warned):
    decided = decide(store, replace(GPUS, ranks_given=(2, 2)), *overrides)
    for attached in (True, False):
        warnings = launch_warnings(None, decided, store.root, attached=attached)
        assert ["no probe is made by itself" in warning for warning in warnings] == [True] * (warned and attached)
    assert probe_warnings(decide(store, LAUNCHERS["attached"][0], *overrides, *CPU).config, 2, store.root) == []


@pytest.mark.parametrize(
    ("policy", "batch", "largest"),
    [("static", 64, 32), ("partition", 64, 63), ("window", 64, 63), ("prefix", 64, 48), ("static", 40, None)],
)
def test_plans_beyond_what_was_tried_are_warned_of_not_refused(store, policy, batch, largest):
    rows = [capacity_row(rank, 256, 31, None) for rank in range(2)]
    make_probe(store, global_batch=32, capacity=rows, tables=[[(256, None)]] * 2)
    settings = (f"schedule.policy={policy}", f"train.global_batch={batch}", "schedule.buffer=48", "launch.device=cpu")
    config = load_config(None, (*settings, "probe.run=probed", "launch.nproc=2"))
    config = plan_launch(config, store, machine=CORES).resolved.config
    found = [warning for warning in probe_warnings(config, 2, store.root) if "nothing is known" in warning]
    assert len(found) == (largest is not None)
    for line in found:
        assert "tested up to 31 samples at length 256 and found no limit" in line
        assert f"may plan up to {largest}," in line and f"--global-batch {batch}" in line


def test_unequal_speeds_of_other_ranks_are_warned_of_and_a_limit_that_was_found_is_not(store):
    make_probe(store, speeds=[1.0, 0.5])
    given = ("launch.nproc=4", "schedule.capacity=64", "probe.run=probed", "launch.device=cpu")
    config = decide(store, CORES, *given).config
    assert [line.partition(":")[0] for line in probe_warnings(config, 4, store.root)] == ["schedule.speeds"]
    config = decide(store, CORES, *REAL, "train.global_batch=78", "probe.run=probed", "launch.device=cpu").config
    assert probe_warnings(config, 2, store.root) == []


UNEQUAL = {"numbers": [[(64, 45), (256, 40)], [(128, 46), (256, 39)]], "null": [[(256, None)], [(256, 39)]]}


@pytest.mark.parametrize("policy", [name for name in TRAINED if policy_class(name).splits and POLICIES[name].capped])
@pytest.mark.parametrize("micro_batches", [2, "auto"])
@pytest.mark.parametrize("tables", UNEQUAL)
@pytest.mark.parametrize("key", ["probe.run", "schedule.capacity"])
def test_with_micro_batches_the_least_of_the_ranks_capacities_holds(store, policy, micro_batches, tables, key):
    probe = make_probe(store, tables=UNEQUAL[tables])
    whole = (*REAL, *CPU, f"schedule.policy={policy}", f"{key}=probed")
    config = decide(store, CORES, *whole, f"schedule.micro_batches={micro_batches}").config
    check_plan(config, 2, store.root)
    capacity = build_capacity(config, 2, store.root)
    assert [capacity.limit(rank, 200) for rank in (0, 1)] == [39, 39]
    assert [capacity.limit(rank, 100) for rank in (0, 1)] == ([40, 40] if tables == "numbers" else [39, 39])
    (line,) = probe_warnings(config, 2, store.root)
    assert line.startswith(f"schedule.capacity: {probe.id} measured ranks of unequal capacity")
    config = decide(store, CORES, *whole).config
    assert build_capacity(config, 2, store.root).limit(0, 200) > 39
    assert probe_warnings(config, 2, store.root) == []


def measured(*given: str, **changed: object) -> dict[str, object]:
    return measured_settings(load_config(None, given).workload.model_copy(update=changed))


def test_what_a_step_costs_goes_by_the_size_of_images_and_the_shape_of_models(tmp_path):
    images = ("workload.name=image_classification", "workload.image_size=64")
    assert measured(*images, "workload.workers=2") == measured(*images) != measured(*images, "workload.image_size=32")
    model = f"workload.model={write_config(tmp_path / 'm', 'bert')}"
    assert measured(model, size="model") == measured(model) and measured(model)["size"] == "model"
    for changed in ({"size": "small"}, {"size": "model", "model": "elsewhere"}):
        assert measured(model, **changed) != measured(model)


def test_a_workload_of_the_users_own_costs_what_its_version_with_its_options_does(monkeypatch):
    own = measured("workload.name=mine.py:Mine", code_digest="one")
    assert own == measured("workload.name=mine.py:Mine", code_digest="two") | {"code_digest": "one"}
    assert "import_from" not in own and "code_digest" not in measured()
    monkeypatch.setitem(WORKLOADS.entries, "deep", WorkloadEntry("deep", "", TextClassification, Depth))
    deep = measured(name="deep", shape_of=(2, 3))
    digest = content_digest(Path(inspect.getfile(TextClassification)).read_bytes())
    assert (deep["code_digest"], deep["shape_of"], deep["dataset"]) == (digest, [2, 3], "embedded")
    assert probe_record(workload=deep).workload == deep != measured(name="deep", shape_of=(4, 3))
