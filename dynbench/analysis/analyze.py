"""What `analyze` does: merge, summarise, compare, check and draw, then write it all down."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dynbench.analysis.arms import Arm, group_runs, led_by, named_arms, stored_arm
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.comparison import Comparison, Terms, compare_candidates, compare_pairs
from dynbench.analysis.figures import draw_figures
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import CSV, PARQUET, MergedRun, merge_run
from dynbench.analysis.questions import Question
from dynbench.analysis.record import COMPARISON_FILE, AnalysisRecord, ArmRecord, Finding, RunRecord, ScalingRecord
from dynbench.analysis.results_csv import BY_ARM_FILE, RESULTS_FILE, by_arm_csv, over_launches, results_csv
from dynbench.analysis.scaling import scaling_of
from dynbench.analysis.selection import RUNS_FILE, Selection, keep_runs, run_folders
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
from dynbench.runs.export import EXPORT_FILE
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
    def judged(self) -> tuple[Comparison, ...]:
        """Comparisons whose verdicts are shown."""
        return tuple(item for item in self.comparisons if item.question.verdicts)

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
                    over_launches=over_launches(self.launches[arm.label]),
                )
                for arm in self.arms
            ],
            comparisons=[comparison.record(*place) for comparison in self.comparisons],
            pairs=[pair.pair_record(*place) for pair in self.pairs],
            scaling=list(self.scaling),
            checks=list(self.findings),
            figures=[str(path) for path in self.figures],
            files=[str(path) for path in self.files],
        )


def analyze_runs(
    chosen: Selection,
    store: RunStore,
    settings: Analysis,
    *,
    lead: str | None = None,
    force: bool = False,
    csv: bool | None = None,
    on_progress: Progress = lambda _: None,
) -> Report:
    """Analyzes one run in its own folder, or several in an entry of the registry.

    Args:
        chosen: what to analyze; folders of one run under several roots are one run. A single run is called what it is
            called in its report. The label of a stored arm goes before its launches' names, which may be those of the
            candidates. A new entry keeps a copy of the file that stored runs come from.
        store: where the entry is made, if there are several runs, or stored ones.
        settings: noise threshold, confidence, loss tolerance.
        lead: label of the arm that all others are compared with; None takes the stored arm, else the first.
        force: compare what cannot be compared.
        csv: as for `merge_run`.
        on_progress: told what is being done, in a few words.

    Raises:
        RecordError: a run without a single readable row.
        NotComparable: arms that cannot be compared, without `force`.
        UsageError: a run named twice, an arm without runs, no question of that name, or no arm of the lead's.
    """
    label, stored = chosen.baseline or ("", ())
    into, export = chosen.into, chosen.export
    folders = run_folders([*stored, *chosen.live])
    runs = [first for first, *_ in folders]
    for run in stored:
        run.update(name=f"{label}:{run.label}")
    merged: dict[str, MergedRun] = {}
    for index, (run, *elsewhere) in enumerate(folders):
        on_progress(f"merging {run.label} ({index + 1} of {len(runs)})")
        merged[run.id] = merge_run(run, elsewhere, csv=csv)
    summaries = {run_id: write_summary(run) for run_id, run in merged.items()}
    named = {runs[0].label: runs} if len(runs) == 1 and not chosen.arms else chosen.arms
    arms = (
        named_arms({label: [merged[run.id] for run in launches] for label, launches in named.items()})
        if named
        else group_runs([merged[run_id] for run_id in dict.fromkeys(run.id for run in chosen.live)])
    )
    if stored:
        arms = [stored_arm(label, [merged[run.id] for run in stored], arms), *arms]
    if lead is not None:
        arms = led_by(lead, arms)
    summaries = share_ideal(arms, summaries)
    terms = Terms(arms, settings, summaries, chosen.question, force, chosen.first)
    comparisons = compare_candidates(terms)
    pairs = compare_pairs(terms, comparisons) if all(item.question.verdicts for item in comparisons) else []
    findings = run_checks(Evidence(arms, comparisons, settings, _recipe_of(into)))
    made = into is None and (len(runs) > 1 or export is not None)
    entry = store.create("analyze", "comparison") if made else into or runs[0]
    if made and export is not None:
        shutil.copyfile(export.path, entry.path / EXPORT_FILE)
    on_progress("drawing figures")
    names = (comparisons[0].question.figures if comparisons else ()) or None
    views = [ArmView(arm.label, arm.whole, made=[summaries[run.run.id] for run in arm.whole]) for arm in arms]
    drawn = draw_figures("train", views, entry.figures_dir, names)
    derived = [run.path / name for run in runs if not (export and export.holds(run)) for name in _DERIVED]
    overall = [] if entry.id in summaries else [entry.path / name for name in _OVERALL]
    report = Report(
        runs=tuple(merged.values()),
        summaries=summaries,
        arms=tuple(arms),
        comparisons=tuple(comparisons),
        pairs=tuple(pairs),
        scaling=tuple(scaling_of(arms, summaries, terms.question.unit, terms.time.ratio)),
        findings=tuple(findings),
        folder=entry,
        figures=tuple(path for path in drawn if path.suffix == ".png"),
        files=(
            *(path for path in derived if path.is_file()),
            *(path for path in drawn if path.suffix != ".png"),
            *overall,
        ),
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
