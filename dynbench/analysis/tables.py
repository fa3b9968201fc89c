"""Summaries as tables: CSV for programs, Markdown for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from dynbench.analysis.crowding import MARK, Load
from dynbench.analysis.finding import Finding
from dynbench.analysis.metrics import METRICS, Metric, lookup
from dynbench.table_text import Table, pipes

Rows = pl.DataFrame

_TEXT_COLUMNS = ("metric", "title", "unit")

LEGEND = (
    "Warm-up left out. A step lasts the maximum over ranks; throughput is the ratio of totals over the run's time, the "
    "maximum over ranks for its steps together; spread is the standard deviation over ranks within a step; MB is 1e6 "
    "bytes."
)


def summary_rows(
    summaries: Mapping[str, Mapping[str, object]],
    improvements: Mapping[str, Mapping[str, float]] | None = None,
    metrics: Sequence[Metric] = METRICS,
) -> Rows:
    """One row per metric that at least one summary has.

    Args:
        summaries: column title to summary.
        improvements: column title to improvement in percent by metric key, for comparisons.
        metrics: which, in order.

    Returns:
        Columns `metric`, `title`, `unit`, one per summary, one per improvement. A summary titled like one of the first
        three is called `run metric`, `run title` or `run unit`.
    """
    summaries = {f"run {title}" if title in _TEXT_COLUMNS else title: found for title, found in summaries.items()}
    rows = []
    for metric in metrics:
        values = {title: lookup(summary, metric.key) for title, summary in summaries.items()}
        if all(value is None for value in values.values()):
            continue
        gains = {title: gain.get(metric.key) for title, gain in (improvements or {}).items()}
        rows.append({"metric": metric.key, "title": metric.title, "unit": metric.unit, **values, **gains})
    text = dict.fromkeys(_TEXT_COLUMNS, pl.String)
    numbers = dict.fromkeys((*summaries, *(improvements or {})), pl.Float64)
    return pl.DataFrame(rows, schema={**text, **numbers})


def format_value(value: float | None, unit: str) -> str:
    """A number for reading: three or four digits, percent for fractions, an empty cell for nothing."""
    if value is None:
        return ""
    if unit == "%":
        return f"{100 * value:z.1f} %"
    magnitude = abs(value)
    if magnitude >= 1000 or unit == "bytes":
        return f"{value:,.0f}"
    if magnitude >= 100:
        return f"{value:.1f}"
    return f"{value:.3f}" if magnitude >= 0.01 or value == 0 else f"{value:.2g}"


def format_gain(percent: float | None) -> str:
    """An improvement for reading; what rounds to nothing has no sign."""
    if percent is None:
        return ""
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else "0.0 %"


def format_ratio(value: float | None) -> str:
    """`1.314`; an empty cell for nothing."""
    return "" if value is None else f"{value:.3f}"


def format_interval(ends: tuple[float, float] | None) -> str:
    """`[1.251, 1.380]`; an empty cell for an estimate. Ends that three decimals do not hold have one digit."""
    return "" if ends is None else f"[{_end(ends[0])}, {_end(ends[1])}]"


def _end(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 0.0005 <= abs(value) < 1e4 else f"{value:.0e}"


def readable(rows: Rows, improvements: int = 0) -> tuple[list[str], list[list[str]]]:
    """Header and cells of `summary_rows` for people; the last `improvements` columns are percentages."""
    titles = rows.columns[3:]
    values, gains = titles[: len(titles) - improvements], titles[len(titles) - improvements :]
    cells = [
        [
            f"{row['title']}, {row['unit']}" if row["unit"] not in ("", "%") else row["title"],
            *(format_value(row[title], row["unit"]) for title in values),
            *(format_gain(row[title]) for title in gains),
        ]
        for row in rows.iter_rows(named=True)
    ]
    return ["", *titles], cells


def markdown(rows: Rows, improvements: int = 0) -> str:
    """`summary_rows` as a Markdown table, numbers to the right."""
    return Table(*readable(rows, improvements)).markdown()


def virtual_note(comm_model: object) -> str:
    """What numbers of virtual ranks rest on, to stand with every table of them."""
    return f"Ranks are virtual: measured one after another on one device. Communication: {comm_model}."


def oversubscribed_note(arm: str, load: Load) -> str:
    """That the ranks of an arm share cores, to stand with every table of them."""
    threads = "1 thread" if load.threads == 1 else f"{load.threads} threads"
    return (
        f"{MARK.capitalize()}: {arm} has {load.ranks} ranks of {threads} each on {load.cores} cores; "
        "its times are also of ranks that wait for a core."
    )


def emulated_note(gbps: Iterable[object]) -> str:
    """That numbers are of emulated links, and of which speeds, to stand with every table of them."""
    speeds = ", ".join(f"{float(str(speed)):g}" for speed in gbps)
    return f"The link between ranks was emulated: {speeds} Gb/s. No number here is of a real one."


def findings_markdown(findings: Sequence[Finding]) -> str:
    """What the checks found as a Markdown table, or one line that says that they found nothing."""
    if not findings:
        return "No check found anything."
    lines = [[item.severity, item.id, item.seen, item.limit, item.hint] for item in findings]
    return pipes([["severity", "check", "seen", "limit", "next"], ["---"] * 5, *lines])
