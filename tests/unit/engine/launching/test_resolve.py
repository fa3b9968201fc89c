"""Every auto is decided for the machine at hand, with a reason; what the settings are warned about."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from probes import LAPTOP, resolved
from recipe_files import load_cells

from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe, list_recipes
from dynbench.config.schema import config_digest, flatten, value_of
from dynbench.engine.launching.resolve import Machine, Resolved, launch_warnings, resolve
from dynbench.engine.launching.torchrun import ranks_from_environment
from dynbench.errors import ConfigError, UsageError
from dynbench.experiment import preflight
from dynbench.plugins import COMPRESSORS
from dynbench.runs.store import RunStore

SERVER = Machine(cores=64, gpus=0, bf16=False)
ONE_GPU = Machine(cores=16, gpus=1, bf16=True)
OLD_GPUS = Machine(cores=16, gpus=4, bf16=False)


def decide(machine: Machine, *overrides: str) -> Resolved:
    return resolved(*overrides, machine=machine)


UNREAD = {"schedule.buffer", "schedule.objective", "workload.image_size", "compress.error_feedback"}
"""By a run of the default settings."""
LATER = {"analysis.loss_tolerance"}
"""Follows from the steps that two runs are compared over."""


def test_nothing_is_left_open():
    for machine in (LAPTOP, SERVER, ONE_GPU, OLD_GPUS):
        decided = decide(machine)
        assert {key for key, value in flatten(decided.config).items() if value == "auto"} <= UNREAD | LATER
        assert all(decision["reason"] for decision in decided.decisions.values())


ALONE = Machine(cores=1, gpus=0, bf16=False)
INSIDE = Machine(cores=8, gpus=0, bf16=False, ranks_given=(2, 8))


@pytest.mark.parametrize(
    ("machine", "overrides", "launcher", "world_size", "decided"),
    [
        (LAPTOP, "", "torchrun", 2, {"launch.threads": 1, "train.precision": "fp32", "workload.pad_to_multiple_of": 1}),
        (SERVER, "", "torchrun", 4, {"launch.threads": 16}),
        (ALONE, "", "torchrun", 2, {"launch.threads": 1}),
        (ONE_GPU, "", "virtual", 4, {"launch.threads": 4, "train.precision": "bf16", "launch.nproc": 1}),
        (OLD_GPUS, "", "torchrun", 4, {"train.precision": "fp16", "workload.pad_to_multiple_of": 8}),
        (SERVER, "launch.nproc=8 launch.threads=3", "torchrun", 8, {"launch.threads": 3}),
        (LAPTOP, "workload.pad_to_multiple_of=4", "torchrun", 2, {"workload.pad_to_multiple_of": 4}),
        (LAPTOP, "launch.nnodes=4 launch.rdzv_endpoint=a:1 launch.nproc=2", "torchrun", 8, {"launch.nnodes": 4}),
        (LAPTOP, "launch.world_size=8", "virtual", 8, {"launch.nproc": 1}),
        (ONE_GPU, "launch.nproc=4 launch.world_size=4", "virtual", 4, {}),
        (LAPTOP, "launch.nproc=4 launch.world_size=4", "torchrun", 4, {}),
        (INSIDE, "launch.nproc=7", "torchrun", 8, {"launch.nproc": 2, "launch.nnodes": 4, "launch.threads": 4}),
        (LAPTOP, "schedule.mode=dynamic", "torchrun", 2, {"schedule.policy": "partition"}),
        (LAPTOP, "schedule.mode=dynamic schedule.policy=prefix", "torchrun", 2, {"schedule.buffer": 64 - 2 + 1}),
    ],
)
def test_what_is_decided(machine, overrides, launcher, world_size, decided):
    found = decide(machine, *overrides.split())
    assert (found.config.launch.launcher, found.world_size) == (launcher, world_size)
    assert {key: value_of(found.config, key) for key in decided} == decided


@pytest.mark.parametrize(
    ("settings", "key", "value", "other"),
    [
        ("workload.weights=random", "train.learning_rate", 5e-4, 0.01),
        ("workload.weights=pretrained", "train.learning_rate", 2e-5, 0.01),
        *(
            (f"sync.name={sync} schedule.micro_batches={parts}", "schedule.objective", objective, "sum")
            for sync, objective in (("ddp", "sum"), ("zero1", "sum"), ("fsdp", "slots"))
            for parts in ("4", "auto")
        ),
        *(
            (f"compress.name={name}", "compress.error_feedback", entry.feedback, False)
            for name, entry in COMPRESSORS.items()
            if entry.reads("error_feedback")
        ),
    ],
)
def test_what_follows_from_other_settings_is_decided_unless_it_is_given(settings, key, value, other):
    decided = decide(SERVER, *settings.split())
    assert value_of(decided.config, key) == value == decided.decisions[key]["value"]
    for given in (value, other):
        kept = decide(SERVER, *settings.split(), f"{key}={given}")
        assert value_of(kept.config, key) == given and key not in kept.decisions
        assert (config_digest(kept.config) == config_digest(decided.config)) == (given == value)


def test_the_objective_says_nothing_of_one_micro_batch_per_rank():
    assert "schedule.objective" not in decide(SERVER, "sync.name=fsdp").decisions


BROKEN = Machine(cores=4, gpus=0, bf16=False, gpu_fault="the driver on your system is too old (found 12080)")


@pytest.mark.parametrize(
    ("machine", "overrides", "message"),
    [
        (LAPTOP, "launch.device=cuda", "sees no GPU"),
        (OLD_GPUS, "launch.nproc=8", "8 ranks for 4 GPUs"),
        (ONE_GPU, "launch.nproc=2", "2 ranks for 1 GPUs"),
        (LAPTOP, "train.precision=bf16", "bf16 needs a GPU"),
        (INSIDE, "launch.launcher=virtual", "virtual inside torchrun"),
        (BROKEN, "launch.device=cuda", "too old"),
        (BROKEN, "launch.nnodes=2 launch.rdzv_endpoint=a:1", "too old"),  # other nodes may have theirs
        (replace(BROKEN, ranks_given=(2, 4)), "", "too old"),
    ],
)
def test_impossible_devices(machine, overrides, message):
    with pytest.raises(UsageError, match=message):
        decide(machine, *overrides.split())


def test_rank_variables():
    assert ranks_from_environment({}) is None
    torchrun = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    step = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
    assert [ranks_from_environment(each) for each in (torchrun, batch_script, step)] == [(2, 4), None, (2, 4)]


def test_auto_takes_the_cpu_where_the_gpus_cannot_be_used_and_says_so(caplog):
    for _ in range(2):
        decided = decide(BROKEN)
        assert (decided.config.launch.device, decided.config.train.precision) == ("cpu", "fp32")
        assert "too old (found 12080)" in str(decided.decisions["launch.device"]["reason"])
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once"
    assert "on the CPU: the driver on your system is too old" in caplog.text
    assert decide(BROKEN, "launch.device=cpu").world_size == 4


def test_more_ranks_started_than_gpus(monkeypatch):
    given = Machine(cores=16, gpus=1, bf16=True, ranks_given=(4, 4))
    monkeypatch.delenv("SLURM_LOCALID", raising=False)
    with pytest.raises(UsageError, match="4 ranks were started on this node, which has 1 GPUs"):
        decide(given)
    monkeypatch.setenv("SLURM_LOCALID", "2")
    assert decide(given).world_size == 4


GPUS = Machine(cores=16, gpus=4, bf16=True)
STARTED = Machine(cores=8, gpus=0, bf16=False, ranks_given=(2, 2))
STORE = RunStore(Path("nowhere"))


def warned(machine: Machine, *overrides: str, named_before: bool = False) -> list[str]:
    config, attached = load_config(None, overrides), machine.ranks_given is not None
    asked = None if named_before else config
    warnings = launch_warnings(asked, resolve(config, machine, STORE), STORE.root, attached=attached)
    return [warning.partition(":")[0] for warning in warnings]


@pytest.mark.parametrize(
    ("machine", "override", "keys"),
    [
        (LAPTOP, "launch.comm_model=none", ["launch.comm_model"]),
        (ONE_GPU, "launch.comm_model=none", []),
        (LAPTOP, "launch.timeout_s=60", []),
        (ONE_GPU, "sync.bucket_mb=5", ["sync.bucket_mb"]),
        (GPUS, "sync.bucket_mb=5", []),
        (STARTED, "launch.nproc=7", ["launch.nproc"]),
        (LAPTOP, "launch.nproc=4", []),
        (LAPTOP, "probe.gap=0.2", ["probe.gap"]),
        (GPUS, "probe.gap=0.2", ["probe.gap"]),
        (STARTED, "launch.threads=1", []),
        (LAPTOP, "launch.nproc=2 launch.world_size=4", ["launch.world_size"]),
        (LAPTOP, "launch.launcher=virtual launch.world_size=4 launch.nproc=2", ["launch.nproc"]),
        (GPUS, "schedule.mode=dynamic probe.gap=0.2 probe.memory_fraction=0.5", []),
        (LAPTOP, "schedule.mode=dynamic probe.gap=0.2", ["probe.gap"]),
        (STARTED, "schedule.mode=dynamic probe.run=off probe.gap=0.2", ["probe.gap"]),
    ],
)
def test_the_machine_decides_what_is_read(machine, override, keys):
    assert warned(machine, *override.split()) == keys
    assert warned(machine, *override.split(), named_before=True) == []


def test_a_probe_cannot_be_made_by_ranks_that_run_already():
    with pytest.raises(ConfigError, match=r"probe\.run: auto, but torchrun or srun has started the ranks"):
        warned(STARTED, "schedule.mode=dynamic", "probe.run=auto")


REAL_RANKS = ("regimes", "sync", "sync_xl", "scaling", "compression", "compression_fsdp", "levers")
"""Recipes of ranks that talk to each other, on GPUs where there are any."""


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_are_free_of_warnings(name, monkeypatch):
    recipes = load_cells(find_recipe(name))
    needed = {ONE_GPU: "ranks for 1 GPUs"} if name in REAL_RANKS else {}
    if name == "sync_xl":
        needed[LAPTOP] = "torch sees no GPU"
    for machine in (LAPTOP, ONE_GPU, GPUS):
        monkeypatch.setattr(preflight, "this_machine", lambda machine=machine: machine)
        refused = pytest.raises(UsageError, match=needed[machine]) if machine in needed else nullcontext()
        with refused:
            assert preflight.recipe_warnings(recipes, STORE) == []
