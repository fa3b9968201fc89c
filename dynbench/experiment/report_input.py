"""What a report is made from: a comparison with its runs, or one run, as read from its folder; and how records read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dynbench.analysis.measure import Launches, lookup, mean_over
from dynbench.analysis.measures import workers_of
from dynbench.analysis.questions import DEFAULT, Question, question_named
from dynbench.analysis.record import (
    CELLS_FILE,
    COMPARISON_FILE,
    ComparisonRecord,
    Finding,
    PairRecord,
    RunRecord,
    ScalingRecord,
    read_analysis,
)
from dynbench.analysis.run_facts import MARK, section, status_phrase
from dynbench.analysis.selection import RUNS_FILE, keep_probe, named_probes
from dynbench.analysis.summary import CHECKS_FILE, read_checks, summarise
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import flatten
from dynbench.errors import RecordError, RunLookupError
from dynbench.experiment.launch_plan import STATE_FILE, CompareState, read_state
from dynbench.plugins import WORKLOADS
from dynbench.report import Template, signed_percent
from dynbench.runs.atomic import read_json
from dynbench.runs.phrase import NBSP, translated
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, check_own_files, results_option

SOLVE_FIGURES = ("solve_greedy_gap",)
"""Figures of what was planned offline, drawn into the folder that is reported on."""

Json = Mapping[str, object]


@dataclass(frozen=True)
class Member:
    """One run of an arm.

    Attributes:
        id, label: its names.
        summary: as `analyze --json` prints it.
        run: its folder; None when that is gone.
        config: dotted key to value, resolved; None when neither the comparison nor the run's folder has it.
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

    @property
    def serves(self) -> bool:
        """Whether some of its ranks serve and train nothing."""
        return workers_of(self.summary) != lookup(self.summary, "world_size")


@dataclass(frozen=True)
class ReportInput:
    """A comparison or a single run, as read from its folder.

    Attributes:
        run: the folder.
        arms: members by arm, the baseline's first.
        state: the launches of `compare`; None of runs compared afterwards, and of a single run.
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
    figures: Sequence[Path] = ()
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
    def judged(self) -> Sequence[ComparisonRecord]:
        """Comparisons whose verdicts are shown."""
        return self.comparisons if self.question.verdicts else ()

    @property
    def launches(self) -> Launches:
        """Name of the arm to the summaries of the launches that tables show."""
        return {name: [member.summary for member in whole(members)] for name, members in self.arms.items()}

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
        found = (lookup(member.summary, "link_gbps") for member in self.members)
        return sorted({speed for speed in found if speed is not None})

    @property
    def has_lengths(self) -> bool:
        """Whether samples of a run differ in length, as far as is known."""
        names = (str((member.config or {}).get("workload.name")) for member in self.members)
        return any(name not in WORKLOADS or WORKLOADS[name].lengths is not None for name in names)

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


def find_report_input(store: RunStore, reference: str | None) -> ReportInput:
    """That of a reference, or of the youngest comparison in the registry.

    Raises:
        RunLookupError: the reference means nothing, or there is no comparison yet.
        RecordError: the folder holds neither a comparison nor rows.
    """
    if reference is not None:
        return read_report_input(store, store.resolve(reference))
    latest = next((run for run in reversed(store.list()) if (run.path / COMPARISON_FILE).is_file()), None)
    if latest is None:
        raise RunLookupError(
            f"no comparison in {store.root}",
            "Make one: dynbench compare recipes/quickstart.yaml, or dynbench analyze RUN_A RUN_B.",
        )
    check_own_files(latest.path)
    return read_report_input(store, latest)


def read_report_input(store: RunStore, run: Run) -> ReportInput:
    """Read a comparison, or a single run, from its folder.

    Raises:
        RecordError: it holds neither.
    """
    found = _compared(store, run) if (run.path / COMPARISON_FILE).is_file() else _single(run)
    return found if found.has_lengths else replace(found, question=found.question.of_samples())


def _compared(store: RunStore, run: Run) -> ReportInput:
    record, path = read_analysis(run.path), run.path / RUNS_FILE
    # A comparison of an earlier version kept nothing of its runs.
    stored = read_json(path, dict[str, object], "Make it again with dynbench analyze.") if path.is_file() else {}
    members = {item.id: _member(store, run, item, section(section(stored, "runs"), item.id)) for item in record.runs}
    arms = {arm.name: [members[run_id] for run_id in arm.runs if run_id in members] for arm in record.arms}
    arms = {name: chosen for name, chosen in arms.items() if chosen}
    if not arms:
        raise RecordError(f"{run.path / COMPARISON_FILE}: names no run", "Make it again with dynbench analyze.")
    return ReportInput(
        run,
        arms,
        read_state(run.path) if (run.path / STATE_FILE).is_file() else None,
        record.comparisons,
        record.checks,
        _existing(run, [Path(path) for path in record.figures]),
        _probes(section(stored, "probes"), [member for arm in arms.values() for member in arm]),
        DEFAULT if record.question is None else question_named(record.question),
        record.pairs,
        record.scaling,
    )


def _single(run: Run) -> ReportInput:
    named = f"{shlex.quote(run.label)}{results_option(run.path.parent)}"
    if (run.path / STATE_FILE).is_file():
        raise RecordError(
            f"{run.path}: the comparison is {run.status} and was not analyzed",
            f"Go on with: dynbench compare --resume {named}",
        )
    if (run.path / CELLS_FILE).is_file():
        raise RecordError(
            f"{run.path}: is over several comparisons, and a report is of one",
            f"dynbench runs show {named} lists them: report on each.",
        )
    trained = run.record().command == "train"
    if not trained or not run.ranks_dir.is_dir() or not any(run.ranks_dir.iterdir()):
        raise RecordError(
            f"{run.path}: holds neither a comparison nor the rows of a run",
            "Report on a comparison or a training run; dynbench runs ls lists them.",
        )
    member = _from_folder(Member(run.id, run.label, summarise(run), run))
    figures = sorted(run.figures_dir.glob("*.png"))
    checks = read_checks(run.path) if (run.path / CHECKS_FILE).is_file() else None
    return ReportInput(run, {member.label: [member]}, checks=checks, figures=figures, probes=_probes({}, [member]))


def _member(store: RunStore, comparison: Run, item: RunRecord, stored: Json) -> Member:
    """A run as the comparison kept it; where that kept nothing, as its own folder says."""
    places = (comparison.path.parent / item.id, store.root / item.id)
    run = next((Run(path) for path in places if (path / "run.json").is_file()), None)
    member = Member(item.id, item.name or item.id, item.summary, run)
    if not stored:
        return _from_folder(member)
    config, env = section(stored, "config"), section(stored, "env")
    return replace(member, config=config or None, env=env, status=str(stored.get("status")))


def _from_folder(member: Member) -> Member:
    """With what its folder says."""
    if (run := member.run) is None:
        return member
    member = replace(member, status=str(run.status))
    with suppress(RecordError):
        member = replace(member, config=flatten(run.config()))
    with suppress(RecordError):
        member = replace(member, env=run.env())
    return member


def _probes(stored: Json, members: Sequence[Member]) -> dict[str, Json]:
    """The probes that the runs used: as the comparison kept them, else as their folders say."""
    found = {name: section(stored, name) for name in stored}
    for member in members:
        if member.run is not None and member.config is not None:
            for probe in named_probes(member.config, member.run.path.parent):
                if probe.id not in found and (record := keep_probe(probe)) is not None:
                    found[probe.id] = record
    return found


def _existing(run: Run, paths: Sequence[Path]) -> list[Path]:
    """PNG files by name in the run's own folder, which may be a copy, else by path as recorded, in its registry."""
    registry, found = run.path.parent.resolve(), []
    for path in [*paths, *(run.figures_dir / f"{name}.png" for name in SOLVE_FIGURES)]:
        own = run.figures_dir / path.name
        if path.suffix == ".png" and (own.is_file() or path.resolve().is_relative_to(registry)):
            found.append(own if own.is_file() else path)
    return [path for path in dict.fromkeys(found) if path.is_file()]


HOURS = 1000
"""GPU-hours of the baseline that savings are counted in."""


def in_language(template: Template, record: object, text: object) -> str:
    """A phrase from its record; `text` where there is no record of it."""
    return translated(template.language, record, text)


def marked(source: ReportInput, template: Template, arm: str) -> str:
    """The name of an arm, with a mark where its ranks share cores."""
    mark = template.label("scaling.oversubscribed", MARK)
    text = template.label("scaling.marked", "{} ({})").format(f"`{arm}`", mark)
    return text if arm in source.oversubscribed else f"`{arm}`"


def status(template: Template, word: object) -> str:
    """The status of a run."""
    return translated(template.language, status_phrase(str(word)).record())


def comm_model(template: Template, source: ReportInput) -> str | None:
    """The communication model of virtual ranks; None for real ones, or when not recorded."""
    summaries = (member.summary for arm in source.arms.values() for member in arm)
    found = next((summary for summary in summaries if summary.get("comm_model")), None)
    return in_language(template, found.get("comm_model_said"), found["comm_model"]) if found else None


def finding_texts(template: Template, check: Finding) -> list[str]:
    """Severity, check, what was seen, the limit and the next step of a finding as recorded."""
    return [template.label(f"severities.{check.severity}", check.severity), check.id, *check.words(template.language)]


def reason(template: Template, comparison: ComparisonRecord) -> str:
    """Why a comparison has its verdict."""
    return in_language(template, comparison.reason_said, comparison.reason)


def loss_difference(item: ComparisonRecord) -> str | None:
    """Largest relative difference of the loss between paired steps; None where it was not compared."""
    difference = item.loss_max_rel_diff
    return None if difference is None else f"{difference:.1e}" if difference else "0"


def loss_drift(item: ComparisonRecord) -> str | None:
    """How far the mean training loss is above the baseline's; None where it is not finite."""
    return signed_percent(item.loss_drift)


def saved_hours(comparison: ComparisonRecord, source: ReportInput) -> str | None:
    """GPU-hours saved per 1,000 of the baseline, by the speed-up s, 1000 * (1 - 1/s).

    None but for arms found FASTER, as no other verdict says that hours are saved; of arms on different numbers of
    ranks, an hour of which is not as many GPU-hours; and at level `tokens`, where other steps are taken over the same
    tokens, and may need more of them.
    """
    return f"{_saved(comparison.speedup):.0f}" if _saves(comparison, source) else None


def saved_interval(comparison: ComparisonRecord, source: ReportInput) -> str | None:
    """The same for both ends of the interval."""
    if comparison.interval is None or not _saves(comparison, source):
        return None
    low, high = comparison.interval
    return f"[{_saved(low):.0f},{NBSP}{_saved(high):.0f}]"


def _saves(comparison: ComparisonRecord, source: ReportInput) -> bool:
    found = comparison.verdict is Verdict.FASTER and not comparison.aa
    return found and comparison.level != "tokens" and source.same_ranks(comparison)


def _saved(speed: float) -> float:
    return HOURS * (1 - 1 / speed)
