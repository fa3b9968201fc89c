"""What a report is about: a comparison with its runs, or one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dynbench.analysis.figures.plans import CELLS_FILE
from dynbench.analysis.finding import Finding
from dynbench.analysis.measure import mean_over
from dynbench.analysis.question import Question
from dynbench.analysis.questions import DEFAULT, question_named
from dynbench.analysis.record import (
    COMPARISON_FILE,
    ComparisonRecord,
    PairRecord,
    RunRecord,
    ScalingRecord,
    read_analysis,
)
from dynbench.analysis.selection import RUNS_FILE, keep_probe, named_probes
from dynbench.analysis.summary import CHECKS_FILE, read_checks, summarise
from dynbench.config.digest import flatten
from dynbench.errors import RecordError, RunLookupError
from dynbench.experiment.state import STATE_FILE, CompareState, read_state
from dynbench.plugins import WORKLOADS
from dynbench.runs.json_record import read_json
from dynbench.runs.lookup import check_own_files
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, results_option

SOLVE_FIGURES = ("solve_greedy_gap",)
"""Figures of what was planned offline for a subject, drawn into its own folder."""

Json = Mapping[str, object]


@dataclass(frozen=True)
class Member:
    """One run of the subject.

    Attributes:
        id, label: its names.
        summary: as `analyze --json` prints it.
        run: its folder; None when that is gone.
        config: dotted key to value, resolved; None when neither the subject nor the run's folder has it.
        env: provenance; empty when neither has it.
        status: as it was when it was analyzed; None when neither has it.
    """

    id: str
    label: str
    summary: Json
    run: Run | None
    config: Json | None = None
    env: Json = field(default_factory=dict)
    status: str | None = None


@dataclass(frozen=True)
class Subject:
    """A comparison or a single run, as read from its folder.

    Attributes:
        run: the folder.
        arms: members by arm, the baseline's first.
        state: the launches of `compare`; None for other subjects.
        comparisons: one per candidate arm.
        checks: what the checks found; None when none were recorded.
        figures: PNG files that exist.
        probes: probe run to its record and configuration, of those that the runs used.
        question: what is asked of the arms; what a single run is reported for.
        pairs: every arm against every later one; none in records of earlier versions.
        scaling: how the arms scale; none where all have as many workers, and in records of earlier versions.
    """

    run: Run
    arms: Mapping[str, Sequence[Member]]
    state: CompareState | None = None
    comparisons: Sequence[ComparisonRecord] = ()
    checks: Sequence[Finding] | None = None
    figures: Sequence[Path] = field(default_factory=tuple)
    probes: Mapping[str, Json] = field(default_factory=dict)
    question: Question = DEFAULT
    pairs: Sequence[PairRecord] = ()
    scaling: Sequence[ScalingRecord] = ()

    @property
    def baseline(self) -> str:
        """Name of the first arm."""
        return next(iter(self.arms))

    @property
    def first(self) -> Member:
        """The baseline's first run."""
        return self.arms[self.baseline][0]

    @property
    def members(self) -> list[Member]:
        """All runs, arm by arm."""
        return [member for arm in self.arms.values() for member in arm]

    @property
    def virtual(self) -> bool:
        """Whether the ranks of a run were virtual."""
        return any(member.summary.get("launcher") == "virtual" for member in self.members)

    @property
    def oversubscribed(self) -> list[str]:
        """Names of the arms of which ranks of a run share cores."""
        return [name for name, arm in self.arms.items() if any(one.summary.get("oversubscribed") for one in arm)]

    @property
    def links_gbps(self) -> list[float]:
        """Speeds of the emulated links of the runs, Gb/s; empty where there were none."""
        found = (member.summary.get("link_gbps") for member in self.members)
        return sorted({float(speed) for speed in found if isinstance(speed, int | float)})

    @property
    def has_lengths(self) -> bool:
        """Whether samples of a run differ in length, as far as is known."""
        names = (str((member.config or {}).get("workload.name")) for member in self.members)
        return any(name not in WORKLOADS or WORKLOADS[name].lengths is not None for name in names)

    @property
    def unequal_ranks(self) -> bool:
        """Whether ranks of a run were slowed down, or planned for by their speeds: their shares are not to be equal."""
        configs = [member.config or {} for member in self.members]
        return any(config.get(key) for config in configs for key in ("launch.slowdown", "schedule.speeds"))

    def same_ranks(self, comparison: ComparisonRecord) -> bool:
        """Whether both arms ran on as many ranks, those that serve included, as far as that was recorded."""
        arms = (self.arms.get(name, ()) for name in (comparison.baseline, comparison.candidate))
        return len({mean_of(members, "world_size") for members in arms} - {None}) <= 1


def mean_of(members: Sequence[Member], key: str) -> float | None:
    """Mean over whole runs of a number in their summaries, by its dotted key; None where no run has it.

    Where every run is partial, over those.
    """
    return mean_over([member.summary for member in whole(members)], key, of_known=True)


def whole(members: Sequence[Member]) -> Sequence[Member]:
    """The runs that tables and figures show: those that are not partial; where all are, all."""
    return [member for member in members if not member.summary.get("partial")] or members


def find_subject(store: RunStore, reference: str | None) -> Subject:
    """The subject of a reference, or the latest comparison.

    Raises:
        RunLookupError: the reference means nothing, or there is no comparison yet.
        RecordError: the folder holds neither a comparison nor rows.
    """
    if reference is not None:
        return read_subject(store, store.resolve(reference))
    latest = latest_comparison(store)
    check_own_files(latest.path)
    return read_subject(store, latest)


def latest_comparison(store: RunStore) -> Run:
    """The youngest entry of the registry that holds a comparison.

    Raises:
        RunLookupError: there is none.
    """
    for run in reversed(store.list()):
        if (run.path / COMPARISON_FILE).is_file():
            return run
    raise RunLookupError(
        f"no comparison in {store.root}",
        "Make one: dynbench compare recipes/quickstart.yaml, or dynbench analyze RUN_A RUN_B.",
    )


def read_subject(store: RunStore, run: Run) -> Subject:
    """Read a comparison, or a single run, from its folder.

    Raises:
        RecordError: it holds neither.
    """
    subject = _compared(store, run) if (run.path / COMPARISON_FILE).is_file() else _single(run)
    return subject if subject.has_lengths else replace(subject, question=subject.question.of_samples())


def _compared(store: RunStore, run: Run) -> Subject:
    record, kept = read_analysis(run.path), _kept(run)
    members = {item.id: _member(store, run, item, kept) for item in record.runs}
    arms = {arm.name: [members[run_id] for run_id in arm.runs if run_id in members] for arm in record.arms}
    arms = {name: chosen for name, chosen in arms.items() if chosen}
    if not arms:
        raise RecordError(f"{run.path / COMPARISON_FILE}: names no run", "Make it again with dynbench analyze.")
    return Subject(
        run,
        arms,
        read_state(run.path) if (run.path / STATE_FILE).is_file() else None,
        record.comparisons,
        record.checks,
        _existing(run, [Path(path) for path in record.figures]),
        _probes(kept, [member for arm in arms.values() for member in arm]),
        DEFAULT if record.question is None else question_named(record.question),
        record.pairs,
        record.scaling,
    )


def _single(run: Run) -> Subject:
    if (run.path / STATE_FILE).is_file():
        raise RecordError(
            f"{run.path}: the comparison is {run.status} and was not analyzed",
            f"Go on with: dynbench compare --resume {shlex.quote(run.label)}{results_option(run.path.parent)}",
        )
    if (run.path / CELLS_FILE).is_file():
        raise RecordError(
            f"{run.path}: is over several comparisons, and a report is of one",
            f"dynbench runs show {shlex.quote(run.label)}{results_option(run.path.parent)} lists them: report on each.",
        )
    trained = run.record().command == "train"
    if not trained or not run.ranks_dir.is_dir() or not any(run.ranks_dir.iterdir()):
        raise RecordError(
            f"{run.path}: holds neither a comparison nor the rows of a run",
            "Report on a comparison or a training run; dynbench runs ls lists them.",
        )
    member = _from_folder(run.id, run.label, summarise(run), run)
    figures = sorted(run.figures_dir.glob("*.png")) if run.figures_dir.is_dir() else []
    checks = read_checks(run.path) if (run.path / CHECKS_FILE).is_file() else None
    return Subject(run, {member.label: [member]}, checks=checks, figures=figures, probes=_probes({}, [member]))


def _member(store: RunStore, subject: Run, item: RunRecord, kept: Json) -> Member:
    """A run as the subject kept it; of subjects that kept nothing, as its own folder says."""
    run_id, label, summary = item.id, item.name or item.id, item.summary
    beside, here = subject.path.parent / run_id, store.root / run_id
    found = next((Run(path) for path in (beside, here) if (path / "run.json").is_file()), None)
    record = _mapping(_mapping(kept.get("runs")).get(run_id))
    if not record:
        return _from_folder(run_id, label, summary, found)
    config, env = _mapping(record.get("config")), _mapping(record.get("env"))
    return Member(run_id, label, summary, found, config or None, env, str(record.get("status")))


def _from_folder(run_id: str, label: str, summary: Json, run: Run | None) -> Member:
    if run is None:
        return Member(run_id, label, summary, None)
    config: Json | None = None
    env: Json = {}
    with suppress(RecordError):
        config = flatten(run.config())
    with suppress(RecordError):
        env = run.env()
    return Member(run_id, label, summary, run, config, env, str(run.status))


def _kept(run: Run) -> Json:
    """What a comparison kept of its runs; empty where it was made without."""
    path = run.path / RUNS_FILE
    return read_json(path, dict[str, object], "Make it again with dynbench analyze.") if path.is_file() else {}


def _probes(kept: Json, members: Sequence[Member]) -> dict[str, Json]:
    """The probes that the runs used: as the subject kept them, else as their folders say."""
    found = {name: _mapping(probe) for name, probe in _mapping(kept.get("probes")).items()}
    for member in members:
        if member.run is None or member.config is None:
            continue
        for probe in named_probes(member.config, member.run.path.parent):
            if probe.id not in found and (record := keep_probe(probe)) is not None:
                found[probe.id] = record
    return found


def _existing(run: Run, paths: Sequence[Path]) -> list[Path]:
    """PNG files by name in the run's own folder, which may be a copy, else by path as recorded, in its registry."""
    here = {path: run.figures_dir / path.name for path in paths if path.suffix == ".png"}
    registry = run.path.parent.resolve()
    recorded = {path: own for path, own in here.items() if own.is_file() or path.resolve().is_relative_to(registry)}
    drawn = [own if own.is_file() else path for path, own in recorded.items()]
    planned = [run.figures_dir / f"{name}.png" for name in SOLVE_FIGURES]
    return list(dict.fromkeys(path for path in (*drawn, *planned) if path.is_file()))


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}
