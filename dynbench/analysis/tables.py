"""The engine of tables for people (columns over rows, in a language), and the tables of arms compared.

A table is data: a `Spec` of rows and columns. An analysis has more of them in `table_specs`, reports have theirs in
`experiment.report_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import polars as pl

from dynbench.analysis.measure import Metric, lookup
from dynbench.analysis.measures import METRICS, by_family, chosen_metrics
from dynbench.analysis.questions import Question
from dynbench.analysis.record import ComparisonRecord, PairRecord, ScalingRecord
from dynbench.analysis.run_facts import MARK
from dynbench.table_text import (
    MARKDOWN_WIDTH,
    Label,
    Table,
    format_gain,
    format_interval,
    format_value,
    in_english,
    signed,
)

Row = Mapping[str, object]
"""Key of a column to a number, text, the interval of a ratio, or None."""
Rows = pl.DataFrame

_TEXT_COLUMNS = ("metric", "title", "unit")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        key: of its value in a row, and of its heading among the texts of the table.
        heading: in English.
        unit: of numbers; stands under the heading, but for `%`.
        text: key of the heading, where it is not among the table's own.
        of: a name, in place of `…` in the heading.
        form: format of numbers, instead of three or four digits.
        words: where the translations of its texts are.
        beside: never in another table than the column before it.
    """

    key: str
    heading: str
    unit: str = ""
    _: KW_ONLY
    text: str = ""
    of: str = ""
    form: str = ""
    words: str = ""
    beside: bool = False

    def title(self, section: str, label: Label) -> str:
        """The heading in a language, the unit on a line of its own."""
        said = label(self.text or f"{section}.{self.key}", self.heading)
        named = said.replace("…", self.of) if self.of else said
        return f"{named}\n({label(f'units.{self.unit}', self.unit)})" if self.unit not in ("", "%") else named

    def cell(self, row: Row, label: Label) -> str:
        """Its cell in a row: a number, text, an interval, or nothing."""
        match row.get(self.key):
            case str() as text:
                return label(f"{self.words}.{text.replace(' ', '_')}", text) if self.words else text
            case (float() as low, float() as high):
                return format_interval((low, high))
            case float() | int() as number:
                return format(number, self.form) if self.form else format_value(number, self.unit)
        return ""


ARM = Column("arm", "arm", text="headings.arm")


def columns(unit: str = "", **headings: str) -> list[Column]:
    """Columns of one unit: key to heading."""
    return [Column(key, heading, unit) for key, heading in headings.items()]


@dataclass(frozen=True, slots=True)
class Spec:
    """A table.

    Attributes:
        section: where its texts are.
        title: in English; empty for none.
        rows: of what it is of, in a language.
        columns: all, or which of the rows.
        keys: how many of the first columns tell the rows apart.
        compact: columns that are empty in every row are left out.
    """

    section: str
    title: str
    rows: Callable[[Any, Label], Sequence[Row]]
    columns: Sequence[Column] | Callable[[Sequence[Row]], Sequence[Column]]
    keys: int = 1
    compact: bool = False

    def table(self, source: Any, label: Label = in_english) -> Table | None:
        """The table in a language; None where no row has a cell beside its keys."""
        rows = self.rows(source, label)
        if not rows:
            return None
        every = self.columns(rows) if callable(self.columns) else self.columns
        if self.compact:
            every = [column for column in every if any(column.cell(row, label) for row in rows)]
        cells = [[column.cell(row, label) for column in every] for row in rows]
        if not any(any(line[self.keys :]) for line in cells):
            return None
        return Table(
            [column.title(self.section, label) for column in every],
            cells,
            label(f"{self.section}.title", self.title) if self.title else "",
            [place for place, column in enumerate(every) if column.beside],
            MARKDOWN_WIDTH,
            self.keys,
        )


def summary_rows(
    summaries: Mapping[str, Mapping[str, object]],
    improvements: Mapping[str, Mapping[str, float]] | None = None,
) -> Rows:
    """One row per metric that at least one summary has.

    Args:
        summaries: column title to summary.
        improvements: column title to improvement in percent by metric key, for comparisons.

    Returns:
        Columns `metric`, `title`, `unit`, one per summary, one per improvement. A summary titled like one of the first
        three is called `run metric`, `run title` or `run unit`.
    """
    summaries = {f"run {title}" if title in _TEXT_COLUMNS else title: found for title, found in summaries.items()}
    rows = []
    for metric in METRICS:
        values = {title: lookup(summary, metric.key) for title, summary in summaries.items()}
        if all(value is None for value in values.values()):
            continue
        gains = {title: gain.get(metric.key) for title, gain in (improvements or {}).items()}
        rows.append({"metric": metric.key, "title": metric.title, "unit": metric.unit, **values, **gains})
    text = dict.fromkeys(_TEXT_COLUMNS, pl.String)
    numbers = dict.fromkeys((*summaries, *(improvements or {})), pl.Float64)
    return pl.DataFrame(rows, schema={**text, **numbers})


SIDE_BY_SIDE = 3
"""Most arms that are columns beside each other, with their improvements."""
SPEEDUP = Column("speedup", "speed-up", text="headings.speedup", form=".3f")

Values = Mapping[str, Mapping[str, object]]
"""Name of the arm, the baseline's first, to what is known of it by metric key."""
Gains = Mapping[str, Mapping[str, float]]
"""Name of the arm to its improvements in percent, by metric key."""


def ranks_text(workers: int, world_size: int, oversubscribed: bool | None, label: Label = in_english) -> str:
    """`2`, `2 of 3` where some serve, marked where they share cores: `4 (oversubscribed)`."""
    counted = f"{workers}" if workers == world_size else label("scaling.of", "{} of {}").format(workers, world_size)
    mark = label("scaling.oversubscribed", MARK)
    return label("scaling.marked", "{} ({})").format(counted, mark) if oversubscribed else counted


def _scaling(records: Sequence[ScalingRecord], label: Label) -> list[Row]:
    return [
        dict(one) | {"ranks": ranks_text(one.workers, one.world_size, one.oversubscribed, label)} for one in records
    ]


def _serve(row: Row) -> bool:
    """Whether some of an arm's ranks train nothing."""
    return row["world_size"] != row["workers"]


SCALING = Spec(
    "scaling",
    "how each strategy scales with the ranks that train",
    _scaling,
    lambda rows: [
        ARM,
        *columns("", ranks="ranks that train", strategy="strategy"),
        Column("kind", "scaled", words="scaling.kinds"),
        Column("global_batch", "global batch", text="scaling.batch", form=","),
        SPEEDUP,
        Column("ci95", "interval of the pair alone", text="scaling.interval"),
        *columns("%", efficiency="efficiency"),
        *(columns("%", efficiency_of_ranks="of all ranks") if any(map(_serve, rows)) else ()),
        *columns("", units_per_s="work per s"),
        *columns("ms", step_ms="step", comm_ms="communication", exposed_comm_ms="exposed"),
        *columns("%", comm_share="communication / step"),
        *columns("GB/s", gb_per_s="effective bandwidth"),
    ],
    keys=2,
)


def _ranking(pairs: Sequence[PairRecord], label: Label) -> list[Row]:
    """The pairs that have a p value, those told apart first and by their ratio; none of a single pair."""
    # Earlier versions pooled one spread over all arms, which told equal arms apart where one spread more.
    judged = [pair for pair in pairs if pair.p_holm is not None and pair.spread != "pooled"]
    judged.sort(key=lambda pair: (pair.faster is None, -max(pair.speedup, 1 / pair.speedup)))
    return [_faster_first(pair, label) for pair in judged] if len(judged) > 1 else []


def _faster_first(pair: PairRecord, label: Label) -> Row:
    """A pair, the arm first that looks faster."""
    arm, other, ratio, interval, p = pair.candidate, pair.baseline, pair.speedup, pair.interval, pair.p_holm or 0.0
    if ratio < 1:
        arm, other, ratio = other, arm, 1 / ratio
        interval = None if interval is None else (1 / interval[1], 1 / interval[0])
    return {
        "arm": arm,
        "against": other,
        "told_apart": label("words.yes", "yes") if pair.faster else label("words.no", "no"),
        "times_as_fast": ratio,
        "interval": interval,
        "p_holm": f"{p:.3f}" if p >= 0.001 else "< 0.001",
    }


RANKING = Spec(
    "headings",
    "who beats whom",
    _ranking,
    (
        ARM,
        *columns("", against="against", told_apart="told apart"),
        Column("times_as_fast", "times as fast", form=".3f"),
        *columns("", interval="interval", p_holm="p, Holm"),
    ),
    keys=2,
)


def held_jointly(pairs: Sequence[PairRecord]) -> str:
    """What the intervals and p values of `RANKING` mean, in a line."""
    spread = "of each arm" if "arms" in {pair.spread for pair in pairs} else "of each pair's own launches"
    first, others = families(pairs)
    families_said = f"the {first} with {pairs[0].baseline}" + (f", and the {others} others" if others else "")
    return f"intervals and p hold jointly (Holm) for {families_said}; spread {spread}; as in the verdicts"


def families(pairs: Sequence[PairRecord]) -> tuple[int, int]:
    """How many pairs are judged together: those with the baseline, and all others."""
    judged = [pair.baseline == pairs[0].baseline for pair in pairs if pair.p_holm is not None]
    return sum(judged), len(judged) - sum(judged)


def overview(
    values: Values,
    comparisons: Sequence[ComparisonRecord],
    question: Question,
    label: Label = in_english,
    *,
    details: bool = True,
    stored: Collection[str] = (),
) -> Table | None:
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
    confidence = max((item.confidence for item in comparisons), default=0.95)
    joint = ", joint" if any((item.judged_together or 1) > 1 for item in comparisons) else ""
    facts = [
        Column("level", "level", text="headings.level", words="levels"),
        SPEEDUP,
        Column("interval", f"{100 * confidence:g} % interval{joint}"),
        Column("predicted_speedup", "predicted", form=".3f"),
        Column("bound_speedup", "bound", form=".3f"),
        *columns("%", recovered="recovered", efficiency="efficiency"),
        *([] if question.loss_drift is None else columns("", drift="loss drift")),
    ]
    judged = Column("verdict", "verdict", text="headings.verdict"), *(facts if details else [SPEEDUP])
    found = {item.candidate: item for item in comparisons}
    rows = [
        {
            **{column.key: getattr(item, column.key, None) for column in facts},
            "verdict": "" if item is None else _verdict(item, label),
            "drift": "" if item is None or item.loss_drift is None else f"{signed(100 * item.loss_drift, 2)} %",
            **{key: lookup(arm, key) for key in question.overview},
            "arm": name,
        }
        for name, arm in values.items()
        for item in [found.get(name)]
    ]
    baseline = label("overview.baseline", "baseline")
    is_stored = f" ({label('overview.stored', 'stored')})" if rows[0]["arm"] in stored else ""
    rows[0]["verdict"] = f"{baseline}{is_stored}"
    shown = [
        ARM,
        *(judged if question.verdicts else ()),
        *map(of_metric, chosen_metrics(question.overview)),
    ]
    return _of_arms(shown).table(rows, label)


def _of_arms(shown: Sequence[Column]) -> Spec:
    """A table of rows that are made already, less its empty columns."""
    return Spec("overview", "", lambda rows, _: rows, shown, compact=True)


def _verdict(item: ComparisonRecord, label: Label) -> str:
    said = label(f"verdicts.{item.verdict}", item.verdict)
    return f"{said} ({label('overview.alike', 'alike')})" if item.aa else said


def metric_tables(
    values: Values,
    gains: Gains,
    metrics: Sequence[Metric] = METRICS,
    label: Label = in_english,
    fits: Callable[[Table], bool] = lambda _: True,
) -> list[Table]:
    """The metrics with their improvements: a few arms are columns; many, or what is too wide, rows.

    Args:
        values: the arms.
        gains: of the candidates.
        metrics: which; those that no arm has are left out.
        label: texts of a language.
        fits: whether a table can be shown as it is.
    """
    known = [metric for metric in metrics if any(lookup(arm, metric.key) is not None for arm in values.values())]
    better = [label("headings.improvement", "… gains").replace("…", name) for name in gains]
    rows = [
        [
            _title(metric, label),
            *(format_value(lookup(arm, metric.key), metric.unit) for arm in values.values()),
            *(format_gain(gain.get(metric.key)) for gain in gains.values()),
        ]
        for metric in known
    ]
    beside = Table([label("headings.metric", ""), *values, *better], rows)
    if len(values) == 1 or (len(values) <= SIDE_BY_SIDE and fits(beside)):
        return [beside]
    return by_arm(values, gains, known, label)


def by_arm(values: Values, gains: Gains, metrics: Sequence[Metric], label: Label = in_english) -> list[Table]:
    """A table per family of metrics, an arm a row; beside a metric by how much an arm is better, where one is."""
    rows = [
        {
            **{metric.key: lookup(arm, metric.key) for metric in metrics},
            **{f"{key} gain": format_gain(gain) for key, gain in gains.get(name, {}).items()},
            "arm": name,
        }
        for name, arm in values.items()
    ]
    better = {key for gain in gains.values() for key in gain}
    tables = []
    for family, members in by_family(metrics).items():
        shown = [ARM]
        for metric in members:
            gain = Column(f"{metric.key} gain", "gain", text="overview.gain", beside=True)
            shown += [of_metric(metric), *([gain] if metric.key in better else [])]
        table = _of_arms(shown).table(rows, label)
        tables += [replace(table, title=label(f"families.{family}", family))] if table else []
    return tables


def of_metric(metric: Metric) -> Column:
    """A metric as a column of arms."""
    return Column(metric.key, metric.heading, metric.unit, text=f"columns.{metric.key}")


def _title(metric: Metric, label: Label) -> str:
    """A metric as the first cell of a row."""
    said = label(f"metrics.{metric.key}", metric.title)
    if metric.unit in ("", "%"):
        return said
    return label("headings.metric_unit", "{}, {}").format(said, label(f"units.{metric.unit}", metric.unit))
