"""What `analyze` does: merge, summarise, compare, check and draw, then write it all down."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbench.analysis.arms import Arm, check_label, group_runs, led_by, named_arms, stored_arm
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.comparison import Comparison, Terms, compare_candidates, compare_pairs
from dynbench.analysis.figures import draw_figures
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.links import arm_links
from dynbench.analysis.merge import CSV, PARQUET, MergedRun, merge_run
from dynbench.analysis.questions import Question
from dynbench.analysis.record import COMPARISON_FILE, AnalysisRecord, ArmRecord, Finding, RunRecord, ScalingRecord
from dynbench.analysis.results_csv import BY_ARM_FILE, RESULTS_FILE, by_arm_csv, over_launches, results_csv
from dynbench.analysis.scaling import scaling_of
from dynbench.analysis.selection import RUNS_FILE, Baseline, keep_runs, run_folders
from dynbench.analysis.summary import (
    CHECKS_FILE,
    PROFILE_CSV,
    Summary,
    metric_rows,
    summary_markdown,
    write_page,
    write_profile,
    write_summary,
)
from dynbench.analysis.waste import share_ideal
from dynbench.config.recipes import RECIPE_FILE
from dynbench.config.schema import Analysis
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.export import EXPORT_FILE, Export
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, results_option

Progress = Callable[[str], None]

_DERIVED = (PARQUET, CSV, "summary.json", "summary.csv", "summary.md", RESULTS_FILE, PROFILE_CSV)
"""Files in the folder of a run, as far as it has them."""
_OVERALL = (COMPARISON_FILE, RUNS_FILE, "summary.csv", "summary.md", RESULTS_FILE, BY_ARM_FILE)
"""Files in an entry of its own, over several runs."""


@dataclass(frozen=True)
class Report:
    """Everything that one analysis found.

    Attributes:
        runs: the runs, in the order in which they were named.
        summaries: run id to summary.
        arms: the runs grouped; the first is the baseline.
        comparisons: one per further arm.
        pairs: every arm against every later one.
        scaling: of arms with unequal numbers of workers.
        findings: of the checks.
        folder: where figures and tables over all runs are: the run itself, or an entry of the registry.
        figures: PNG files.
        files: all other files written.
    """

    runs: tuple[MergedRun, ...]
    summaries: Mapping[str, Summary]
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    pairs: tuple[Comparison, ...]
    scaling: tuple[ScalingRecord, ...]
    findings: tuple[Finding, ...]
    folder: Run
    figures: tuple[Path, ...]
    files: tuple[Path, ...]

    @property
    def question(self) -> Question | None:
        """What was asked of the arms; None for one arm."""
        return self.comparisons[0].question if self.comparisons else None

    @property
    def launches(self) -> dict[str, list[Summary]]:
        """Label of the arm to the summaries of its whole launches; of all where none is whole."""
        return {arm.label: [self.summaries[run.run.id] for run in arm.whole] for arm in self.arms}

    def record(self) -> AnalysisRecord:
        """What `analyze --json` prints, and comparison.json holds."""
        place = self.folder.id, str(self.folder.path)
        return AnalysisRecord(
            question=self.question.name if self.question else None,
            runs=[
                RunRecord(id=merged.run.id, name=merged.run.name, summary=self.summaries[merged.run.id])
                for merged in self.runs
            ],
            arms=[
                ArmRecord(
                    name=arm.label,
                    runs=[merged.run.id for merged in arm.runs],
                    stored=arm.stored,
                    over_launches=over_launches(summaries),
                    links=arm_links(summaries, self.launches[self.arms[0].label]),
                )
                for arm in self.arms
                for summaries in [self.launches[arm.label]]
            ],
            comparisons=[comparison.record(*place) for comparison in self.comparisons],
            pairs=[pair.pair_record(*place) for pair in self.pairs],
            scaling=list(self.scaling),
            checks=list(self.findings),
            figures=[str(path) for path in self.figures],
            files=[str(path) for path in self.files],
        )


def analyze_runs(
    runs: Sequence[Run],
    store: RunStore,
    settings: Analysis,
    *,
    arms: Mapping[str, Sequence[Run]] | None = None,
    baseline: Baseline | None = None,
    lead: str | None = None,
    export: Export | None = None,
    into: Run | None = None,
    question: str | None = None,
    force: bool = False,
    first: int | None = None,
    csv: bool | None = None,
    on_progress: Progress = lambda _: None,
) -> Report:
    """Analyzes one run in its own folder, or several in an entry of the registry.

    Args:
        runs: what to analyze; ignored where `arms` names them. Folders of one run under several roots are one run.
        store: where the entry is made.
        settings: noise threshold, confidence, loss tolerance.
        arms: label to runs, the baseline first; None groups the runs by configuration, and a single run is called
            what it is called in its report.
        baseline: a stored arm that all others are compared with; its label goes before its launches' names, which may
            be those of the candidates.
        lead: label of the arm that all others are compared with; None takes the stored arm, else the first.
        export: the file that stored runs come from; a new entry keeps a copy of it.
        into: entry that receives the results; None makes one when there are several runs, or stored ones.
        question: name of what is asked of the arms; None finds it from what differs.
        force: compare what cannot be compared.
        first: launches per arm of the first stage, where it said how many follow (`stats.plan_launches`).
        csv: as for `merge_run`.
        on_progress: told what is being done, in a few words.

    Raises:
        RecordError: a run without a single readable row.
        NotComparable: arms that cannot be compared, without `force`.
        UsageError: a run named twice, an arm without runs, no question of that name, or no arm of the lead's.
    """
    if lead is not None and arms and baseline is None:
        check_label(lead, list(arms))
    named = [run for launches in arms.values() for run in launches] if arms else runs
    folders = run_folders([*(baseline[1] if baseline else ()), *named])
    chosen = [first for first, *_ in folders]
    if len(chosen) == 1 and not arms:
        arms = {chosen[0].label: chosen}
    if baseline is not None:
        for run in baseline[1]:
            run.update(name=f"{baseline[0]}:{run.label}")
    merged: dict[str, MergedRun] = {}
    for index, (run, *elsewhere) in enumerate(folders):
        on_progress(f"merging {run.label} ({index + 1} of {len(chosen)})")
        merged[run.id] = merge_run(run, elsewhere, csv=csv)
    summaries = {run_id: write_summary(run) for run_id, run in merged.items()}
    grouped = (
        named_arms({label: [merged[run.id] for run in launches] for label, launches in arms.items()})
        if arms
        else group_runs([merged[run_id] for run_id in dict.fromkeys(run.id for run in named)])
    )
    if baseline is not None:
        label, launches = baseline
        grouped = [stored_arm(label, [merged[run.id] for run in launches], grouped), *grouped]
    if lead is not None:
        grouped = led_by(lead, grouped)
    summaries = share_ideal(grouped, summaries)
    terms = Terms(grouped, settings, summaries, question, force, first)
    comparisons = compare_candidates(terms)
    pairs = compare_pairs(terms, comparisons)
    findings = run_checks(Evidence(grouped, comparisons, settings, _recipe_of(into)))
    made = into is None and (len(chosen) > 1 or export is not None)
    entry = store.create("analyze", "comparison", argv=sys.argv) if made else into or chosen[0]
    if made and export is not None:
        shutil.copyfile(export.path, entry.path / EXPORT_FILE)
    on_progress("drawing figures")
    names = (comparisons[0].question.figures if comparisons else ()) or None
    views = [ArmView(arm.label, arm.whole, made=[summaries[run.run.id] for run in arm.whole]) for arm in grouped]
    drawn = draw_figures("train", views, entry.figures_dir, names)
    derived = [run.path / name for run in chosen if not (export and export.holds(run)) for name in _DERIVED]
    written = [path for path in derived if path.is_file()]
    overall = [] if entry.id in summaries else [entry.path / name for name in _OVERALL]
    report = Report(
        runs=tuple(merged.values()),
        summaries=summaries,
        arms=tuple(grouped),
        comparisons=tuple(comparisons),
        pairs=tuple(pairs),
        scaling=tuple(scaling_of(grouped, summaries, terms.question.unit, settings.confidence, first)),
        findings=tuple(findings),
        folder=entry,
        figures=tuple(path for path in drawn if path.suffix == ".png"),
        files=(*written, *(path for path in drawn if path.suffix != ".png"), *overall),
    )
    _write(report)
    if made:
        entry.update(status="completed", exit_code=0)
    return report


def _recipe_of(entry: Run | None) -> str | None:
    """What `compare` takes to launch an entry's arms again; None where it did not launch them."""
    if entry is None or not (entry.path / RECIPE_FILE).is_file():
        return None
    return f"{shlex.quote(str(entry.path / RECIPE_FILE))}{results_option(entry.path.parent)}"


def _write(report: Report) -> None:
    """Tables over all runs, for several runs; a single run has its own already."""
    folder = report.folder.path
    if report.folder.id not in report.summaries:
        write_text(folder / "summary.csv", metric_rows(report).write_csv())
        write_text(folder / RESULTS_FILE, results_csv(list(report.summaries.values())))
        write_text(folder / BY_ARM_FILE, by_arm_csv(report.launches))
        write_text(folder / "summary.md", summary_markdown(report))
        write_profile(folder, report.launches)
        write_json(folder / COMPARISON_FILE, report.record().as_dict())
        keep_runs(folder, report.runs)
    else:
        (merged,) = report.runs
        write_json(folder / CHECKS_FILE, {"checks": [finding.as_dict() for finding in report.findings]})
        write_page(merged, report.summaries[merged.run.id], report.findings)
