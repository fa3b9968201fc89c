"""Many arms at a glance, an arm a row: the verdicts with the numbers that explain them, and all metrics by family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dynbench.analysis.metrics import HEADINGS, METRICS, Metric, by_family, lookup
from dynbench.analysis.questions.base import Question
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.tables import format_gain, format_interval, format_ratio, format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

SIDE_BY_SIDE = 3
"""Most arms that are columns beside each other, with their improvements."""

Values = Mapping[str, Mapping[str, object]]
"""Name of the arm, the baseline's first, to what is known of it by metric key."""
Label = Callable[[str, str], str]
"""Key of a text and the text in English, to the text in a language."""


def in_english(_key: str, text: str) -> str:
    """The `Label` of what is not translated."""
    return text


def overview(
    values: Values,
    comparisons: Sequence[ComparisonRecord],
    question: Question,
    label: Label = in_english,
    *,
    details: bool = True,
    stored: Collection[str] = (),
) -> Table:
    """The table to read first: every arm's verdict, and the metrics that the question is about.

    Columns that are empty in every row are left out.

    Args:
        values: the arms.
        comparisons: one per arm but the baseline.
        question: as asked of them.
        label: texts of a language.
        details: False leaves out what a table of comparisons beside it says of them.
        stored: names of the arms that come from an exported file.
    """
    found = {item.candidate: item for item in comparisons}
    baseline = next(iter(values))
    columns = [[label("headings.arm", "arm"), *values]]
    for heading, cell in _columns(comparisons, question, label, details):
        columns.append([heading, *(cell(found[name]) if name in found else "" for name in values)])
    columns[1][1] = _baseline(baseline in stored, label)
    metrics = {metric.key: metric for metric in METRICS}
    for metric in (metrics[key] for key in question.overview):
        numbers = (lookup(arm, metric.key) for arm in values.values())
        columns.append([heading_of(metric, label), *(format_value(number, metric.unit) for number in numbers)])
    return _table([column for column in columns if any(column[1:])])


def by_arm(
    values: Values,
    gains: Mapping[str, Mapping[str, float]],
    metrics: Sequence[Metric],
    label: Label = in_english,
) -> list[Table]:
    """A table per family of metrics, an arm a row; beside a metric by how much an arm is better, where one is.

    Args:
        values: the arms.
        gains: name of the arm to its improvements in percent, by metric key.
        metrics: which; those that no arm has are left out.
        label: texts of a language.
    """
    measured = [metric for metric in metrics if any(lookup(arm, metric.key) is not None for arm in values.values())]
    tables = []
    for family, members in by_family(measured).items():
        columns, beside = [[label("headings.arm", "arm"), *values]], []
        for metric in members:
            numbers = (lookup(arm, metric.key) for arm in values.values())
            columns.append([heading_of(metric, label), *(format_value(number, metric.unit) for number in numbers)])
            if any(metric.key in gain for gain in gains.values()):
                beside.append(len(columns))
                better = (format_gain(gains.get(name, {}).get(metric.key)) for name in values)
                columns.append([label("overview.gain", "gain"), *better])
        tables.append(_table(columns, label(f"families.{family}", family), beside))
    return tables


def heading_of(metric: Metric, label: Label = in_english) -> str:
    """A metric as the heading of a column, its unit on a line of its own."""
    text = HEADINGS.get(metric.key)
    short = label(f"metrics.{metric.key}", metric.title) if text is None else label(f"columns.{metric.key}", text)
    return f"{short}\n({label(f'units.{metric.unit}', metric.unit)})" if metric.unit not in ("", "%") else short


def _columns(
    comparisons: Sequence[ComparisonRecord], question: Question, label: Label, details: bool
) -> list[tuple[str, Callable[[ComparisonRecord], str]]]:
    """Headings and cells of what is said of a candidate, its verdict first."""
    confidence = max((item.confidence for item in comparisons), default=0.95)
    joint = ", joint" if any((item.judged_together or 1) > 1 for item in comparisons) else ""
    verdict = label("headings.verdict", "verdict"), lambda item: _verdict(item, label)
    speedup = label("headings.speedup", "speed-up"), lambda item: format_ratio(item.speedup)
    if not details:
        return [verdict, speedup]
    columns: list[tuple[str, Callable[[ComparisonRecord], str]]] = [
        verdict,
        (label("headings.level", "level"), lambda item: label(f"levels.{item.level}", item.level)),
        speedup,
        (f"{100 * confidence:g} % interval{joint}", lambda item: format_interval(item.interval)),
        ("predicted", lambda item: format_ratio(item.predicted_speedup)),
        ("bound", lambda item: format_ratio(item.bound_speedup)),
        ("recovered", lambda item: format_value(item.recovered_share, "%")),
        ("efficiency", lambda item: format_value(item.efficiency, "%")),
    ]
    if question.loss_drift is not None:
        columns.append(("loss drift", lambda item: _drift(item.loss_drift)))
    return columns


def _verdict(item: ComparisonRecord, label: Label) -> str:
    verdict = label(f"verdicts.{item.verdict}", item.verdict)
    return f"{verdict} ({label('overview.alike', 'alike')})" if item.aa else verdict


def _baseline(stored: bool, label: Label) -> str:
    baseline = label("overview.baseline", "baseline")
    return f"{baseline} ({label('overview.stored', 'stored')})" if stored else baseline


def _drift(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.2f} %"


def _table(columns: Sequence[Sequence[str]], title: str = "", beside: Collection[int] = ()) -> Table:
    header, *rows = zip(*columns, strict=True)
    return Table(header, rows, title, beside, MARKDOWN_WIDTH)
