"""The summary of a run: one object, the same as a table, and the pages that people read of runs and of analyses.

Every statistic is over complete steps after the warm-up. A step lasts the maximum over ranks; a run's time is that of
its contiguous blocks of steps, each the maximum over ranks (`steps`); throughput and fractions are ratios of totals
over that time; planning and data are inside it. Times in ms, memory in MB (1e6 bytes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.analysis import tables
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.measure import Measured, computed
from dynbench.analysis.measures import MEASURES, chosen_metrics, means
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.profile import profile_rows
from dynbench.analysis.record import Finding
from dynbench.analysis.results_csv import RESULTS_FILE, record_of, results_csv
from dynbench.analysis.run_facts import MARK, Load, RunFacts, load_of, read_data
from dynbench.analysis.table_specs import tables_of
from dynbench.analysis.tables import (
    RANKING,
    SCALING,
    SIDE_BY_SIDE,
    Rows,
    held_jointly,
    metric_tables,
    overview,
    summary_rows,
)
from dynbench.analysis.verdict import Verdict
from dynbench.errors import RecordError
from dynbench.runs.atomic import read_json, write_json, write_text
from dynbench.runs.run import Run
from dynbench.table_text import Table, csv_text, format_interval, format_ratio, pipes, quoted

if TYPE_CHECKING:
    from dynbench.analysis.analyze import Report


LEGEND = (
    "Warm-up left out. A step lasts the maximum over ranks; throughput is the ratio of totals over the run's time, the "
    "maximum over ranks for its steps together; spread is the standard deviation over ranks within a step; MB is 1e6 "
    "bytes."
)


def overview_table(report: Report) -> Table | None:
    """The table of all arms to read first: their verdicts and what the question is about; None without a question."""
    if report.question is None:
        return None
    stored = [arm.label for arm in report.arms if arm.stored]
    found = [item.record() for item in report.comparisons]
    return overview(_values(report), found, report.question, stored=stored)


def metrics(report: Report, fits: Callable[[Table], bool] = lambda _: True) -> list[Table]:
    """The metrics that the question is about, means over launches, with the improvements.

    Args:
        report: the analysis.
        fits: whether a table can be shown as it is.
    """
    gains = {item.candidate.label: item.improvement_percent for item in report.comparisons}
    shown = chosen_metrics(report.question.metrics if report.question else ())
    return metric_tables(_values(report), gains, shown, fits=fits)


def further_tables(report: Report) -> list[Table]:
    """How the arms scale, where step time goes beyond its ideal, what communication is, and the profiles."""
    scaling = SCALING.table(report.scaling)
    return [*([scaling] if scaling else []), *tables_of(report.launches).values()]


def arm_records(report: Report) -> list[dict[str, object]]:
    """The metrics in full precision: `metric`, `title`, `unit`, a column per arm, and its improvements in percent."""
    return metric_rows(report, "gains_percent").to_dicts()


def metric_rows(report: Report, gains: str = "gains") -> Rows:
    """The same as a data frame; `gains` ends the names of the columns of improvements."""
    found = {f"{item.candidate.label} {gains}": item.improvement_percent for item in report.comparisons}
    return summary_rows(_values(report), found)


def rank_notes(report: Report) -> list[str]:
    """What the numbers of virtual ranks and emulated links rest on, and which arms have more threads than cores."""
    return _notes([run.facts for run in report.runs], {arm.label: arm.runs[0].facts for arm in report.arms})


def _notes(runs: Sequence[RunFacts], arms: Mapping[str, RunFacts]) -> list[str]:
    """Those of some runs, and of arms by a run of theirs."""
    virtual = [f"{facts.comm_model}" for facts in runs if facts.virtual][:1]
    links = sorted({facts.link_gbps for facts in runs if facts.link_gbps is not None})
    loads = {name: load_of(facts) for name, facts in arms.items()}
    return [
        *(f"Ranks are virtual: measured one after another on one device. Communication: {said}." for said in virtual),
        *([emulated_note(links)] if links else []),
        *(_crowded(name, load) for name, load in loads.items() if load and load.oversubscribed),
    ]


def verdict_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """A line per comparison: `FASTER  partition 1.631x static [1.502, 1.771], level step, 4 launches`."""
    width = max((len(item.verdict) for item in comparisons), default=0)
    return [f"{item.verdict:<{width}}  {', '.join(_facts(item))}" for item in comparisons]


def verdict_legend(report: Report) -> list[str]:
    """What the numbers of `verdict_lines` and of the overview are."""
    first = report.comparisons[0]
    family = max(item.joint.family if item.joint else 1 for item in report.comparisons)
    joint = f", on which verdicts rest, hold jointly for {family} arms" if family > 1 else ""
    known = any(item.judged.ends for item in report.comparisons)
    intervals = f"{100 * first.confidence:g} % intervals{joint}; " if known else ""
    numbers = f"{intervals}differences below {100 * first.noise:.1f} % are noise"
    if (aa_noise := max(item.aa_noise or 0.0 for item in report.comparisons)) > first.noise:
        numbers += f", and equal arms came out different by {100 * aa_noise:.1f} %"
    lines = [f"1.5x: 1.5 times as many {first.question.unit.rate}", numbers]
    if any(item.recovery for item in report.comparisons):
        lines.append(
            "bound: the fitted speed-up of perfect balance; recovered: how much of what is lost to it came back"
        )
    return lines


def summary_markdown(report: Report) -> str:
    """The page of the analysis: verdicts in sentences, tables, and what the checks found."""
    first = overview_table(report) if len(report.arms) > SIDE_BY_SIDE else None
    pairs = [pair.pair_record() for pair in report.pairs]
    ranked = RANKING.table(pairs)
    verdicts = [
        f"**{item.verdict}** ({item.level}): {quoted(item.reason)}.{_recovered(item)}{_sentence(weights_note(item))}"
        for item in report.judged
    ]
    gains = "; gains of times and rates are geometric means over pairs" if report.comparisons else ""
    return "\n\n".join(
        [
            f"# {quoted(' against '.join(arm.label for arm in report.arms))}",
            *([first.markdown()] if first else []),
            *verdicts,
            *(table.markdown() for table in (*metrics(report), *further_tables(report))),
            f"Means over launches{gains}. {LEGEND}",
            *rank_notes(report),
            *([ranked.markdown(), f"{held_jointly(pairs)}."] if ranked else []),
            "## Checks",
            _findings_markdown(report.findings) + "\n",
        ]
    )


def _values(report: Report) -> Mapping[str, Mapping[str, object]]:
    return {arm.label: means([report.summaries[run.run.id] for run in arm.whole]) for arm in report.arms}


def _facts(item: Comparison) -> list[str]:
    found, pairs = item.judged, item.speedup.pairs
    interval = f" {format_interval(found.ends)}" if found.ends else ", no interval"
    ratio = f"{item.candidate.label} {format_ratio(found.estimate)}x {item.baseline.label}{interval}"
    notes = {
        "configured alike": item.aa,
        "virtual ranks": item.pairing.pairs[0][0].facts.virtual,
        "emulated link": item.pairing.pairs[0][0].facts.link_gbps is not None,
        f"{item.leak}": item.leak is not None,
        f"differs in {', '.join(item.forbidden)}": item.verdict is Verdict.INCOMPARABLE,
    }
    launches = f"{pairs} launch{'es' if pairs > 1 else ''}"
    return [ratio, f"level {item.level}", launches, *(note for note, holds in notes.items() if holds)]


def weights_note(comparison: Comparison) -> str:
    """How far apart what both arms trained is; empty where that is not known."""
    apart = comparison.weights_max_diff
    return "" if apart is None else f"weights after the last step differ by at most {apart:.1e}"


def _recovered(comparison: Comparison) -> str:
    found = comparison.recovery
    return "" if found is None else _sentence(found.sentence(comparison.baseline.label))


def _sentence(words: str) -> str:
    return f" {words[0].upper()}{words[1:]}." if words else ""


def _crowded(arm: str, load: Load) -> str:
    """That the ranks of an arm share cores, to stand with every table of them."""
    threads = "1 thread" if load.threads == 1 else f"{load.threads} threads"
    return (
        f"{MARK.capitalize()}: {arm} has {load.ranks} ranks of {threads} each on {load.cores} cores; "
        "its times are also of ranks that wait for a core."
    )


def emulated_note(gbps: Iterable[object]) -> str:
    """That numbers are of emulated links, and of which speeds, to stand with every table of them."""
    speeds = ", ".join(f"{float(str(speed)):g}" for speed in gbps)
    return f"Numbers over an emulated link ({speeds} Gb/s) do not stand for a real one."


def _findings_markdown(findings: Sequence[Finding]) -> str:
    """What the checks found as a Markdown table, or one line that says that they found nothing."""
    if not findings:
        return "No check found anything."
    lines = [[item.severity, item.id, item.seen, item.limit, item.hint] for item in findings]
    return pipes([["severity", "check", "seen", "limit", "next"], ["---"] * 5, *lines])


def write_page(merged: MergedRun, summary: Mapping[str, object], findings: Sequence[Finding] | None) -> None:
    """Writes summary.md of a run: its tables, and what the checks found, None where it was not analyzed by itself."""
    facts = merged.facts
    data = read_data(facts.env, facts.config.workload.max_length).lines()
    parts = [
        f"# {quoted(merged.label)}",
        *(each.markdown() for each in metric_tables({merged.label: summary}, {})),
        *(each.markdown() for each in tables_of({merged.label: [summary]}).values()),
        LEGEND,
        *([f"**Partial run:** {'; '.join(merged.lacks)}."] if merged.lacks else []),
        *_notes([facts], {"the run": facts}),
        *(f"**{word.capitalize()}:** {text}." for word, text in data),
        *([] if findings is None else ["## Checks", _findings_markdown(findings)]),
    ]
    write_text(merged.run.path / "summary.md", "\n\n".join(parts) + "\n")


log = logging.getLogger(__name__)

Summary = dict[str, object]

PROFILE_CSV = "profile.csv"
"""What profiled steps went to, by arm, phase and operation."""
CHECKS_FILE = "checks.json"
"""What the checks found on a single run; a comparison holds its own."""


def summarise(run: Run) -> Summary:
    """Merges a run and writes summary.json, summary.csv and summary.md into its folder.

    Args:
        run: any run with at least one row; what is missing is named under `missing`.

    Raises:
        RecordError: no row of the run can be read.
    """
    return write_summary(merge_run(run))


def write_summary(merged: MergedRun) -> Summary:
    """As `summarise`, for a run already merged."""
    summary = summary_of(merged)
    folder = merged.run.path
    write_json(folder / "summary.json", summary)
    write_text(folder / RESULTS_FILE, results_csv([summary]))
    write_text(folder / "summary.csv", tables.summary_rows({merged.label: summary}).write_csv())
    write_profile(folder, {merged.label: [summary]})
    write_page(merged, summary, _recorded_findings(folder))
    return summary


def write_profile(folder: Path, launches: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Writes profile.csv, where steps of an arm were profiled."""
    rows = profile_rows(launches)
    if rows:
        write_text(folder / PROFILE_CSV, csv_text(rows))


def summary_of(merged: MergedRun) -> Summary:
    """The measures of a run, and its line of results.csv as `record`; absent facts are None."""
    at = Measured(merged)
    return {**computed(MEASURES, at), "record": record_of(at)}


@dataclass
class _Checks:
    checks: list[Finding]


def read_checks(folder: Path) -> list[Finding]:
    """What the checks found on a single run.

    Raises:
        RecordError: its file cannot be read.
    """
    return read_json(folder / CHECKS_FILE, _Checks, "Make it again with dynbench analyze.").checks


def _recorded_findings(folder: Path) -> list[Finding] | None:
    """None where the run was not analyzed by itself, or where what the checks found cannot be read."""
    if not (folder / CHECKS_FILE).is_file():
        return None
    try:
        return read_checks(folder)
    except RecordError as error:
        log.warning("%s; summary.md goes without it", error.message)
        return None
