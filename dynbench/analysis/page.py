"""What people read of an analysis over several runs: its tables, a line per verdict, and summary.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dynbench.analysis import tables
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.crowding import load_of
from dynbench.analysis.metrics import chosen_metrics, means
from dynbench.analysis.ranking import held_jointly
from dynbench.analysis.table_specs import RANKING, SCALING, SIDE_BY_SIDE, metric_tables, overview, tables_of
from dynbench.analysis.verdict import Verdict
from dynbench.table_text import Table

if TYPE_CHECKING:
    from dynbench.analysis.analyze import Report


def overview_table(report: Report) -> Table | None:
    """The table of many arms to read first; None of a few, which one table shows whole."""
    if report.question is None or len(report.arms) <= SIDE_BY_SIDE:
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
    return [
        {f"{name}_percent" if name in gains else name: value for name, value in row.items()}
        for gains in [{f"{item.candidate.label} gains" for item in report.comparisons}]
        for row in metric_rows(report).iter_rows(named=True)
    ]


def metric_rows(report: Report) -> tables.Rows:
    """The same as a data frame."""
    gains = {f"{item.candidate.label} gains": item.improvement_percent for item in report.comparisons}
    return tables.summary_rows(_values(report), gains)


def rank_notes(report: Report) -> list[str]:
    """What the numbers of virtual ranks and emulated links rest on, and which arms have more threads than cores."""
    virtual = next((run.facts for run in report.runs if run.facts.virtual), None)
    links = sorted({run.facts.link_gbps for run in report.runs if run.facts.link_gbps is not None})
    loads = {arm.label: load_of(arm.runs[0].facts) for arm in report.arms}
    return [
        *([tables.virtual_note(virtual.comm_model)] if virtual else []),
        *([tables.emulated_note(links)] if links else []),
        *(tables.oversubscribed_note(name, load) for name, load in loads.items() if load and load.oversubscribed),
    ]


def verdict_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """A line per comparison: `FASTER  partition 1.631x static [1.502, 1.771], level step, 4 launches`."""
    width = max((len(item.verdict) for item in comparisons), default=0)
    return [f"{item.verdict:<{width}}  {', '.join(_facts(item))}" for item in comparisons]


def verdict_legend(report: Report) -> list[str]:
    """What the numbers of `verdict_lines` and of the overview are."""
    first = report.comparisons[0]
    together = max(item.joint.family if item.joint else 1 for item in report.comparisons)
    joint = f", on which verdicts rest, hold jointly for {together} arms" if together > 1 else ""
    numbers = f"{100 * first.confidence:g} % intervals{joint}; differences below {100 * first.noise:.1f} % are noise"
    if (aa_noise := max(item.aa_noise or 0.0 for item in report.comparisons)) > first.noise:
        numbers += f", and equal arms came out different by {100 * aa_noise:.1f} %"
    lines = [f"1.5x: 1.5 times as many {first.question.unit.rate}", numbers]
    if len(report.arms) > SIDE_BY_SIDE and any(item.recovery for item in report.comparisons):
        lines.append(
            "bound: the fitted speed-up of perfect balance; recovered: how much of what is lost to it came back"
        )
    return lines


def summary_markdown(report: Report) -> str:
    """The page of the analysis: verdicts in sentences, tables, and what the checks found."""
    first = overview_table(report)
    pairs = [pair.record() for pair in report.pairs]
    ranked = RANKING.table(pairs)
    verdicts = [f"**{item.verdict}** ({item.level}): {item.reason}.{_recovered(item)}" for item in report.comparisons]
    gains = "; gains of times and rates are geometric means over pairs" if report.comparisons else ""
    return "\n\n".join(
        [
            f"# {' against '.join(arm.label for arm in report.arms)}",
            *([first.markdown()] if first else []),
            *verdicts,
            *(table.markdown() for table in (*metrics(report), *further_tables(report))),
            f"Means over launches{gains}. {tables.LEGEND}",
            *rank_notes(report),
            *([ranked.markdown(), f"{held_jointly(pairs)}."] if ranked else []),
            "## Checks",
            tables.findings_markdown(report.findings) + "\n",
        ]
    )


def _values(report: Report) -> Mapping[str, Mapping[str, object]]:
    return {arm.label: means([report.summaries[run.run.id] for run in arm.whole]) for arm in report.arms}


def _facts(item: Comparison) -> list[str]:
    found, pairs = item.judged, item.speedup.pairs
    interval = f" {tables.format_interval(found.ends)}" if found.ends else ", no interval"
    ratio = f"{item.candidate.label} {tables.format_ratio(found.estimate)}x {item.baseline.label}{interval}"
    notes = {
        "configured alike": item.aa,
        "virtual ranks": item.pairing.pairs[0][0].facts.virtual,
        "emulated link": item.pairing.pairs[0][0].facts.link_gbps is not None,
        f"{item.leak}": item.leak is not None,
        f"differs in {', '.join(item.forbidden)}": item.verdict is Verdict.INCOMPARABLE,
    }
    launches = f"{pairs} launch{'es' if pairs > 1 else ''}"
    return [ratio, f"level {item.level}", launches, *(note for note, holds in notes.items() if holds)]


def _recovered(comparison: Comparison) -> str:
    found = comparison.recovery
    if found is None:
        return ""
    sentence = found.sentence(comparison.baseline.label)
    return f" {sentence[0].upper()}{sentence[1:]}."
