"""Which arms of a comparison get a probe, which share one, and that resuming keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from probes import make_probe
from recipe_files import load_cells

from dynbench.config.layers import load_config
from dynbench.config.recipes import load_recipe
from dynbench.config.schema import Config, dump_config
from dynbench.engine.launching.resolve import Machine
from dynbench.errors import ConfigError, DynbenchError, Interrupted, RunLookupError, WorkerFailed
from dynbench.experiment import launches, preflight
from dynbench.experiment import training as train_runs
from dynbench.experiment.cells import start_cells
from dynbench.experiment.compare import RECIPE_FILE, run_comparison, start_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.training import LaunchedArm, TrainingResult
from dynbench.plugins import STRATEGIES
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MACHINES = {
    "cpu": Machine(cores=4, gpus=0, bf16=False),
    "cuda": Machine(cores=4, gpus=2, bf16=True, gpu_names=("A", "A")),
}
ON = {
    "cpu": {},
    "cuda": {"device": "cuda", "device_name": "A", "precision": "bf16", "pad_to_multiple_of": 8},
}
HEAD = "description: arms\nquestion: levers\nlaunches: {mode: apart}\n"
SETTINGS = "settings: {train: {steps: 6, global_batch: 8}, launch: {launcher: torchrun, nproc: 2, device: %s}}\n"


@dataclass
class Desk:
    """Comparisons on CPU or GPUs, of which probes and launches are stood in for.

    Attributes:
        launches: how many of them are made before one fails.
        interrupted: number of the probe, from 0, that is interrupted.
        probed: the configurations that were probed; every probe is a run named p0, p1, …
        probes: arm to the name of the probe that it was launched with last.
    """

    store: RunStore
    folder: Path
    device: str
    launches: int = 0
    interrupted: int | None = None
    probed: list[Config] = field(default_factory=list)
    probes: dict[str, str | None] = field(default_factory=dict)

    def start(self, **arms: str) -> Run:
        """Of a recipe of these arms, each with its settings as YAML."""
        lines = [f"  - {{name: {name}, set: {{{settings}}}}}\n" for name, settings in arms.items()]
        text = f"{HEAD}{SETTINGS % self.device}arms:\n{''.join(lines)}"
        path = self.folder / "demo.yaml"
        path.write_text(text, encoding="utf-8")
        return start_comparison(load_recipe(path), self.store)

    def go_on(self, comparison: Run, launches: int) -> None:
        self.launches = launches
        with pytest.raises(WorkerFailed, match="that will do"):
            run_comparison(comparison, self.store)

    def run(self, **arms: str) -> Run:
        """A comparison that ends after one launch of every arm."""
        comparison = self.start(**arms)
        self.go_on(comparison, len(arms))
        return comparison

    def probe(self, config: Config, store: RunStore, *, report: Callable[[str], None]) -> Run:
        self.probed.append(config)
        number = len(self.probed) - 1
        if number == self.interrupted:
            raise Interrupted("stopped", signum=15)
        precision = {} if config.train.precision == "auto" else {"precision": config.train.precision}
        made = {**ON[self.device], **precision, "slowdown": dict(config.launch.slowdown)}
        return make_probe(store, name=f"p{number}", **made)

    def train(self, arms: Sequence[LaunchedArm], store: RunStore, **_: object) -> list[TrainingResult]:
        (one,) = arms
        config, name = one.config, str(one.naming["name"])
        if self.launches == 0:
            raise WorkerFailed("that will do")
        self.launches -= 1
        arm, reference = name.rsplit("-", 2)[0], config.probe.run
        self.probes[arm] = store.resolve(reference).name if reference not in (None, "auto", "off") else reference
        run = store.create("train", arm, name=name)
        write_text(run.config_file, dump_config(preflight.resolve(config, preflight.this_machine(), store).config))
        return [TrainingResult(run, {})]


@pytest.fixture(params=MACHINES)
def desk(request: pytest.FixtureRequest, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(store, tmp_path, request.param)
    for module in (train_runs, preflight):
        monkeypatch.setattr(module, "this_machine", lambda: MACHINES[request.param])
    monkeypatch.setattr(train_runs, "run_probe", made.probe)
    monkeypatch.setattr(launches, "run_arms", made.train)
    return made


MODES = ("static", "dynamic")
ASKED = {"off": "probe.run: 'off'", "null": "probe.run: null", "auto": "probe.run: auto", "named": "probe.run: mine"}
AUTO = "schedule.mode: dynamic, probe.run: auto"


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["auto-static", "off-dynamic", "null-static"])
def test_every_arm_gets_what_it_asks_for_and_no_other(desk: Desk, baseline: str) -> None:
    make_probe(desk.store, name="mine", **ON[desk.device])
    arms = {f"{asked}-{mode}": f"schedule.mode: {mode}, {ASKED[asked]}" for asked in ASKED for mode in MODES}

    comparison = desk.run(**{baseline: arms.pop(baseline), **arms})

    wanting = {"auto-static", "auto-dynamic"} | ({"null-dynamic"} if desk.device == "cuda" else set())
    given = {"off": "off", "named": "mine"}
    for name, probe in desk.probes.items():
        assert probe == ("p0" if name in wanting else given.get(name.partition("-")[0])), name
    assert len(desk.probed) == 1 and len(desk.probes) == 8
    assert read_state(comparison.path).probes == dict.fromkeys(wanting, desk.store.resolve("p0").id)


def test_resuming_probes_nothing_anew_and_changes_no_arm(desk: Desk) -> None:
    arms = {f"{asked}-arm": f"schedule.mode: dynamic, {ASKED[asked]}" for asked in ("off", "null", "auto")}
    comparison = desk.run(**arms)
    before, recipe_file = dict(desk.probes), (comparison.path / RECIPE_FILE).read_text(encoding="utf-8")
    desk.go_on(comparison, 2)
    assert desk.probes == before
    assert len(desk.probed) == 1
    assert (comparison.path / RECIPE_FILE).read_text(encoding="utf-8") == recipe_file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("same", "other"),
    [
        (
            ["schedule.window: 4", "analysis.noise_threshold: 0.1", "train.eval_samples: 0", "sync.bucket_mb: 5.0"],
            ["launch.slowdown: {1: 2.0}", "probe.margin: 0.3"],
        ),
        (["schedule.micro_batches: auto"], ["sync.bucket_mb: 5.0", "compress.error_feedback: false"]),
    ],
    ids=["none splits", "one splits"],
)
def test_arms_share_a_probe_that_means_the_same_for_them(desk: Desk, same: list[str], other: list[str]) -> None:
    """Where an arm splits, a further micro-batch is timed, and what is synchronised counts."""
    fp32 = ["train.precision: fp32"]
    same, other = (same + fp32, other) if desk.device == "cpu" else (same, other + fp32)
    arms = {"first": AUTO}
    for kind, settings in (("same", same), ("other", other)):
        arms |= {f"{kind}{number}": f"{AUTO}, {setting}" for number, setting in enumerate(settings)}

    desk.run(**arms)

    own = {name for name in arms if desk.probes[name] != desk.probes["first"]}
    assert own == {name for name in arms if name.startswith("other")}
    assert len(desk.probed) == 1 + len(other)


def identity(store: RunStore, *settings: str) -> tuple[object, ...]:
    config = load_config(None, ["launch.launcher=torchrun", "launch.device=cpu", *settings])
    return train_runs.probe_identity(config, store, with_splits=False)


def test_arms_with_unlike_numbers_of_workers_share_no_probe(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_runs, "this_machine", lambda: MACHINES["cpu"])
    alone = identity(store, "launch.nproc=3", "train.global_batch=66")
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=1))
    served = identity(store, "launch.nproc=3", "train.global_batch=66")
    assert (alone[0], served[0]) == (3, 2) and alone != served


def test_arms_whose_ranks_hold_otherwise_share_no_probe(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_runs, "this_machine", lambda: MACHINES["cpu"])
    alike = [["sync.name=zero1"], ["sync.name=zero1", "sync.bucket_mb=5.0"]]
    unlike = [["sync.name=ddp"], ["sync.name=fsdp"], ["sync.name=fsdp", "sync.reshard=false"]]
    assert len({identity(store, "launch.nproc=2", *settings) for settings in (*alike, *unlike)}) == 1 + len(unlike)


def test_a_probe_that_was_made_before_another_failed_is_kept(desk: Desk) -> None:
    desk.interrupted = 1
    comparison = desk.start(a=AUTO, b=f"{AUTO}, probe.margin: 0.3")
    with pytest.raises(Interrupted):
        run_comparison(comparison, desk.store)
    desk.go_on(comparison, 2)
    assert desk.probes == {"a": "p0", "b": "p2"}


@pytest.mark.parametrize(
    ("setting", "error", "said"),
    [
        ("probe.run: mine", ConfigError, "workload.size: 'small', but probe.run .* was made with 'base'"),
        ("schedule.capacity: mine", ConfigError, "workload.size: 'small', but schedule.capacity .* made with 'base'"),
        ("probe.run: gone", RunLookupError, "gone"),
    ],
)
def test_an_arm_that_may_not_use_its_probe_is_refused_before_anything_is_made(
    desk: Desk, setting: str, error: type[DynbenchError], said: str
) -> None:
    mine = make_probe(desk.store, "workload.size=base", name="mine", **ON[desk.device])
    with pytest.raises(error, match=said):
        desk.start(a="probe.run: auto", b=setting)
    assert (desk.store.list(), desk.probed) == ([mine], [])


def test_no_cell_is_registered_when_a_later_one_may_not_use_its_probe(store: RunStore, tmp_path: Path) -> None:
    make_probe(store, name="mine")
    path = tmp_path / "cells.yaml"
    arms = "arms:\n  - {name: a}\n  - {name: b, set: {schedule.mode: dynamic, probe.run: mine}}\n"
    cells = "cells:\n  - {workload.size: small}\n  - {workload.size: base}\n"
    path.write_text(f"description: cells\n{SETTINGS % 'cpu'}{arms}{cells}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"workload.size: 'base'"):
        start_cells(load_cells(path), store)
    assert [each.name for each in store.list()] == ["mine"]
