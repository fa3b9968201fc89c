"""Which arms of a comparison get a probe, which share one, and that resuming keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import fake_training
import pytest
from fake_training import FakeTraining
from probes import make_probe
from recipe_files import load_cells

from dynbench.config.layers import load_config
from dynbench.config.recipes import load_recipe
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine
from dynbench.errors import ConfigError, DynbenchError, Interrupted, WorkerFailed
from dynbench.experiment import launches, preflight
from dynbench.experiment import training as train_runs
from dynbench.experiment.cells import start_cells
from dynbench.experiment.compare import RECIPE_FILE, run_comparison, start_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.plugins import STRATEGIES
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MACHINES = {
    "cpu": Machine(cores=4, gpus=0, bf16=False),
    "cuda": Machine(cores=4, gpus=2, bf16=True, gpu_names=("A", "A")),
}
ON = {"cpu": {}, "cuda": {"device": "cuda", "device_name": "A", "precision": "bf16", "pad_to_multiple_of": 8}}
HEAD = "description: arms\nquestion: levers\nlaunches: {mode: apart}\n"
SETTINGS = "settings: {train: {steps: 6, global_batch: 8}, launch: {launcher: torchrun, nproc: 2, device: %s}}\n"


@dataclass
class Desk:
    """Comparisons on CPU or GPUs, of which probes and launches are stood in for.

    Attributes:
        interrupted: number of the probe, from 0, that is interrupted.
        probed: the configurations that were probed; every probe is a run named p0, p1, …
    """

    store: RunStore
    folder: Path
    device: str
    training: FakeTraining = field(default_factory=FakeTraining)
    interrupted: int | None = None
    probed: list[Config] = field(default_factory=list)

    def start(self, **arms: str) -> Run:
        """Of a recipe of these arms, each with its settings as YAML."""
        lines = [f"  - {{name: {name}, set: {{{settings}}}}}\n" for name, settings in arms.items()]
        path = self.folder / "demo.yaml"
        path.write_text(f"{HEAD}{SETTINGS % self.device}arms:\n{''.join(lines)}")
        return start_comparison(load_recipe(path), self.store)

    def go_on(self, comparison: Run, launches: int) -> dict[str, str | None]:
        """Arm to the name of its probe, of so many further launches before one fails."""
        begun = len(self.training.calls)
        self.training.fail_at = begun + launches
        with pytest.raises(WorkerFailed, match="rank 1 died"):
            run_comparison(comparison, self.store)
        found = {}
        for name, _, _ in self.training.calls[begun : begun + launches]:
            reference = self.store.resolve(name).config().probe.run
            named = reference in (None, "auto", "off")
            found[name.rsplit("-", 2)[0]] = reference if named else self.store.resolve(reference).name
        return found

    def probe(self, config: Config, store: RunStore, *, report: Callable[[str], None]) -> Run:
        self.probed.append(config)
        number = len(self.probed) - 1
        if number == self.interrupted:
            raise Interrupted("stopped", signum=15)
        return make_probe(store, name=f"p{number}", **ON[self.device])


@pytest.fixture(params=MACHINES)
def desk(request: pytest.FixtureRequest, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(store, tmp_path, request.param)
    for module in (train_runs, preflight, fake_training):
        monkeypatch.setattr(module, "this_machine", lambda: MACHINES[request.param])
    monkeypatch.setattr(train_runs, "run_probe", made.probe)
    monkeypatch.setattr(launches, "run_arms", made.training)
    return made


MODES = ("static", "dynamic")
ASKED = {"off": "probe.run: 'off'", "null": "probe.run: null", "auto": "probe.run: auto", "named": "probe.run: mine"}
AUTO = "schedule.mode: dynamic, probe.run: auto"


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["auto-static", "off-dynamic", "null-static"])
def test_every_arm_gets_what_it_asks_for_also_when_it_is_gone_on_with(desk: Desk, baseline: str) -> None:
    make_probe(desk.store, name="mine", **ON[desk.device])
    arms = {f"{asked}-{mode}": f"schedule.mode: {mode}, {ASKED[asked]}" for asked in ASKED for mode in MODES}

    comparison = desk.start(**{baseline: arms.pop(baseline), **arms})
    recipe = (comparison.path / RECIPE_FILE).read_text()
    probes = desk.go_on(comparison, 8)

    wanting = {"auto-static", "auto-dynamic"} | ({"null-dynamic"} if desk.device == "cuda" else set())
    given = {name: {"off": "off", "named": "mine"}.get(name.partition("-")[0]) for name in (baseline, *arms)}
    assert probes == given | dict.fromkeys(wanting, "p0")
    assert read_state(comparison.path).probes == dict.fromkeys(wanting, desk.store.resolve("p0").id)
    assert probes | desk.go_on(comparison, 7) == probes and len(desk.probed) == 1
    assert (comparison.path / RECIPE_FILE).read_text() == recipe


SAME = ("schedule.window=4", "analysis.noise_threshold=0.1", "train.eval_samples=0", "sync.bucket_mb=5.0")
OTHER = ("launch.slowdown={1: 2.0}", "probe.margin=0.3", "launch.nproc=2", "sync.name=fsdp")
OF_SPLITS = ("sync.bucket_mb=5.0", "compress.error_feedback=false")
"""Settings of which a probe means the same, another, and another where a further micro-batch is timed."""


@pytest.mark.parametrize("device", MACHINES)
def test_a_probe_means_the_same_for_arms_of_like_workers_parts_and_splits(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    def identity(*settings: str, with_splits: bool = False) -> tuple[object, ...]:
        given = ["launch.launcher=torchrun", f"launch.device={device}", "launch.nproc=3", "train.global_batch=66"]
        return train_runs.probe_identity(load_config(None, [*given, *settings]), store, with_splits=with_splits)

    machine = replace(MACHINES[device], gpus=3 * (device == "cuda"), gpu_names=("A",) * 3)
    monkeypatch.setattr(train_runs, "this_machine", lambda: machine)
    alone = identity()
    assert {identity(each) for each in SAME} == {alone}
    assert (identity("train.precision=fp32") == alone) == (device == "cpu"), "what auto means"
    assert len({alone, *map(identity, OTHER)}) == 1 + len(OTHER)
    assert identity("sync.name=zero1") == identity("sync.name=zero1", "sync.bucket_mb=5.0") != alone
    assert identity("sync.name=fsdp") != identity("sync.name=fsdp", "sync.reshard=false")
    assert len({identity(*each, with_splits=True) for each in ((), *zip(OF_SPLITS))}) == 1 + len(OF_SPLITS)
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=1))
    served = identity()
    assert (alone[0], served[0]) == (3, 2) and alone != served


def test_where_an_arm_splits_what_is_synchronised_counts(desk: Desk) -> None:
    comparison = desk.start(a=AUTO, b=f"{AUTO}, schedule.micro_batches: auto", c=f"{AUTO}, sync.bucket_mb: 5.0")
    assert desk.go_on(comparison, 3) == {"a": "p0", "b": "p0", "c": "p1"}


def test_a_probe_that_was_made_before_another_failed_is_kept(desk: Desk) -> None:
    desk.interrupted = 1
    comparison = desk.start(a=AUTO, b=f"{AUTO}, probe.margin: 0.3")
    with pytest.raises(Interrupted):
        run_comparison(comparison, desk.store)
    assert desk.go_on(comparison, 2) == {"a": "p0", "b": "p2"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("probe.run: mine", "workload.size: 'small', but probe.run .* was made with 'base'"),
        ("schedule.capacity: mine", "workload.size: 'small', but schedule.capacity .* made with 'base'"),
        ("probe.run: gone", "gone"),
    ],
)
def test_an_arm_that_may_not_use_its_probe_is_refused_first(desk: Desk, setting: str, said: str) -> None:
    mine = make_probe(desk.store, "workload.size=base", name="mine", **ON[desk.device])
    with pytest.raises(DynbenchError, match=said):
        desk.start(a="probe.run: auto", b=setting)
    assert (desk.store.list(), desk.probed) == ([mine], [])


def test_no_cell_is_registered_when_a_later_one_may_not_use_its_probe(store: RunStore, tmp_path: Path) -> None:
    make_probe(store, name="mine")
    path = tmp_path / "cells.yaml"
    arms = "arms:\n  - {name: a}\n  - {name: b, set: {schedule.mode: dynamic, probe.run: mine}}\n"
    cells = "cells:\n  - {workload.size: small}\n  - {workload.size: base}\n"
    path.write_text(f"description: cells\n{SETTINGS % 'cpu'}{arms}{cells}")
    with pytest.raises(ConfigError, match=r"workload.size: 'base'"):
        start_cells(load_cells(path), store)
    assert [each.name for each in store.list()] == ["mine"]
