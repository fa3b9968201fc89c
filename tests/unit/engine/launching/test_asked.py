"""Warnings of a launch: of what was asked for, decided on the machine at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_files import load_cells

from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe, list_recipes
from dynbench.engine.launching.resolve import Machine, launch_warnings, resolve
from dynbench.errors import ConfigError, UsageError
from dynbench.experiment import preflight
from dynbench.runs.store import RunStore

LAPTOP = Machine(cores=2, gpus=0, bf16=False)
ONE_GPU = Machine(cores=16, gpus=1, bf16=True)
GPUS = Machine(cores=16, gpus=4, bf16=True)
STARTED = Machine(cores=8, gpus=0, bf16=False, ranks_given=(2, 2))
STORE = RunStore(Path("nowhere"))


def warned(machine: Machine, *overrides: str, silent: bool = False) -> list[str]:
    config = load_config(None, overrides)
    attached = machine.ranks_given is not None
    warnings = launch_warnings(
        None if silent else config, resolve(config, machine, STORE), STORE.root, attached=attached
    )
    return [warning.partition(":")[0] for warning in warnings]


@pytest.mark.parametrize("machine", [LAPTOP, ONE_GPU, GPUS, STARTED])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_what_the_machine_decides_is_nothing_that_was_asked_for(machine: Machine, mode: str) -> None:
    assert warned(machine, f"schedule.mode={mode}") == []


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
    ],
)
def test_the_machine_decides_what_is_read(machine: Machine, override: str, keys: list[str]) -> None:
    assert warned(machine, override) == keys
    assert warned(machine, override, silent=True) == []


def test_a_dynamic_run_on_gpus_probes_first_and_reads_its_settings() -> None:
    assert warned(GPUS, "schedule.mode=dynamic", "probe.gap=0.2", "probe.memory_fraction=0.5") == []
    assert warned(LAPTOP, "schedule.mode=dynamic", "probe.gap=0.2") == ["probe.gap"]
    assert warned(STARTED, "schedule.mode=dynamic", "probe.run=off", "probe.gap=0.2") == ["probe.gap"]
    with pytest.raises(ConfigError, match=r"probe\.run: auto, but torchrun or srun has started the ranks"):
        warned(STARTED, "schedule.mode=dynamic", "probe.run=auto")


def test_only_ranks_that_cannot_probe_by_themselves_are_told_so() -> None:
    nodes = ("launch.nnodes=2", "launch.rdzv_endpoint=a:1")
    started = Machine(cores=16, gpus=4, bf16=True, ranks_given=(4, 4))
    assert warned(GPUS, "schedule.mode=dynamic") == []
    assert warned(GPUS, "schedule.mode=dynamic", *nodes) == ["probe.run"]
    assert warned(started, "schedule.mode=dynamic") == ["probe.run"]


def test_virtual_ranks_that_the_machine_cannot_play_as_asked() -> None:
    assert warned(LAPTOP, "launch.nproc=2", "launch.world_size=4") == ["launch.world_size"]
    assert warned(LAPTOP, "launch.launcher=virtual", "launch.world_size=4", "launch.nproc=2") == ["launch.nproc"]


REAL_RANKS = (
    *("regimes", "sync", "sync_xl", "buckets", "scaling", "fsdp_bottleneck", "ps_allreduce_ddp"),
    *("compression", "levers"),
)
"""Recipes of ranks that talk to each other."""


@pytest.mark.parametrize("machine", [LAPTOP, ONE_GPU, GPUS])
@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_are_free_of_warnings(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "this_machine", lambda: machine)
    recipes = load_cells(find_recipe(name))
    needed = {ONE_GPU: "ranks for 1 GPUs"} if name in REAL_RANKS else {}
    if name == "sync_xl":
        needed[LAPTOP] = "torch sees no GPU"
    if machine in needed:
        with pytest.raises(UsageError, match=needed[machine]):
            preflight.recipe_warnings(recipes, STORE)
        return
    assert preflight.recipe_warnings(recipes, STORE) == []
