"""The tables of an analysis: what its rows are, and its columns. Terminal, pages and reports show the same.

Texts in English stand here; other languages have them under the table's section in `report/labels.*.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from dynbench.analysis.bottlenecks import PHASES, bottlenecks, profile_rows
from dynbench.analysis.communication import OF_EVERY_RUN
from dynbench.analysis.crowding import MARK
from dynbench.analysis.link_model import SPEEDS_GBPS
from dynbench.analysis.links import arm_links, spans_text
from dynbench.analysis.measure import Metric, Summaries, lookup
from dynbench.analysis.memory import MOMENTS
from dynbench.analysis.merge import SIDES
from dynbench.analysis.metrics import METRICS, by_family
from dynbench.analysis.questions.base import Question
from dynbench.analysis.ranking import ranking
from dynbench.analysis.record import ComparisonRecord, MeanRecord, PairRecord, ScalingRecord
from dynbench.analysis.results_csv import FEWEST_FOR_SPREAD, over_launches
from dynbench.analysis.stats import mean_interval
from dynbench.analysis.tables import (
    Column,
    Label,
    Launches,
    Row,
    Spec,
    columns,
    format_gain,
    format_value,
    in_english,
    mean_over,
)
from dynbench.analysis.waste import PARTS
from dynbench.table_text import Table

SIDE_BY_SIDE = 3
"""Most arms that are columns beside each other, with their improvements."""
ARM = Column("arm", "arm", text="headings.arm")
SPEEDUP = Column("speedup", "speed-up", text="headings.speedup", form=".3f")

# Rows: an arm each, or an arm and what a summary has a list or mapping of --------------------------------------------

HELD: Mapping[str, str] = {
    "parameters_mb": "parameters",
    "gradients_mb": "gradients",
    "optimizer_mb": "optimizer",
    "strategy_mb": "strategy",
}
"""Key of what is held at a moment to its heading, in English."""
WASTE: Mapping[str, str] = {
    "padding": "padding",
    "waiting": "waiting",
    "exposed_comm": "exposed comm.",
    "planning": "planning",
    "data": "data",
    "compute": "slower compute",
    "other": "other",
}


def mean_waste(summaries: Summaries) -> dict[str, float]:
    """`PARTS` of the waste and `s`, which they add up to: means over the launches; without what one does not know."""
    found = {key: mean_over(summaries, f"waste.{key}") for key in ("s", *PARTS)}
    return {key: value for key, value in found.items() if value is not None}


def _slowest(summaries: Summaries) -> Row:
    """Ranks that were the slowest, the one that most often was, and the share that equal ranks would have."""
    told = [found for summary in summaries if isinstance(found := summary.get("slowest_ranks"), Mapping)]
    shares = [found["shares"] for found in told if None not in found["shares"]]
    if not shares or len({len(each) for each in shares}) > 1:
        return {}
    means = [fmean(launch) for launch in zip(*shares, strict=True)]
    servers = int((lookup(summaries[0], "world_size") or len(means)) - len(means))
    most = max(range(len(means)), key=means.__getitem__)
    return {
        "distinct": f"{sum(share > 0 for share in means)} / {len(means)}",
        "most": f"rank {most + servers}: {format_value(means[most], '%')}",
        "equal": 1 / len(means),
    }


def _waste(launches: Launches, _: Label) -> list[Row]:
    rows: list[Row] = [{"arm": name, **mean_waste(each), **_slowest(each)} for name, each in launches.items()]
    shown = {format_value(lookup(row, "compute"), "%") for row in rows}
    return rows if shown - {"", format_value(0.0, "%")} else [{**row, "compute": None} for row in rows]


TWO_WAYS = {
    "exposed_comm_ms.mean": "after the last gradient",
    "exposed_vs_null_ms.mean": "beyond a step without",
}
_EXPOSED = (
    *columns("ms", **{"comm_ms.mean": "union", "comm_sum_ms.mean": "sum"}),
    *columns("%", overlap_fraction="hidden"),
    *columns("ms", **{"comm_wait_ms.mean": "waiting", "comm_transfer_ms.mean": "transfer"}),
    *columns("", **{"collectives.mean": "collectives"}),
    *columns("bytes", **{"bytes_wire.mean": "sent"}),
)


def two_ways_apart(summaries: Summaries) -> float | None:
    """By which part of the larger the two means differ; None where one is not known."""
    own, beyond = (mean_over(summaries, key, of_known=True) for key in TWO_WAYS)
    return None if own is None or beyond is None or max(own, beyond) <= 0 else (beyond - own) / max(own, beyond)


def _interval(key: str) -> Column:
    return Column(f"{key} interval", "95 % interval", text="exposed_table.interval", beside=True)


def _exposed(launches: Launches, _: Label) -> list[Row]:
    """Means over the launches that know; none where none took turns with one that sends nothing."""
    rows: list[Row] = []
    for name, summaries in launches.items():
        row: dict[str, object] = {"arm": name, "apart": two_ways_apart(summaries)}
        for key in (*TWO_WAYS, *(column.key for column in _EXPOSED)):
            values = [value for summary in summaries if (value := lookup(summary, key)) is not None]
            row[key] = fmean(values) if values else None
            row[f"{key} interval"] = mean_interval(values)[1:] if len(values) > 1 else None
        rows.append(row)
    return rows if any(row["exposed_vs_null_ms.mean"] is not None for row in rows) else []


def _grouped(
    launches: Launches,
    told: Callable[[Mapping[str, Any]], Iterable[Row]],
    ids: Sequence[str],
    *,
    of_known: bool = False,
) -> list[Row]:
    """A row per arm and what has the same ids: means over the launches that tell of it."""
    rows: list[Row] = []
    for name, summaries in launches.items():
        found: dict[tuple[object, ...], list[Row]] = {}
        for row in (row for summary in summaries for row in told(summary)):
            found.setdefault(tuple(row[key] for key in ids), []).append(row)
        for same in found.values():
            keys = dict.fromkeys(key for row in same for key in row if key not in ids)
            means = {key: mean_over(same, key, of_known=of_known) for key in keys}
            rows.append({"arm": name, **{key: same[0][key] for key in ids}, **means})
    return rows


def _held(summary: Row) -> Iterator[Row]:
    """What a run's ranks held at each moment; activations are freed in the backward pass."""
    found: Any = summary.get("memory_parts")
    for moment in MOMENTS if isinstance(found, Mapping) else ():
        held = {kind: lookup(found, f"{moment}.{kind}") for kind in HELD}
        if held["parameters_mb"] is None:
            continue
        row = {**held, "held": sum(filter(None, held.values())), "peak_mb": lookup(found, f"{moment}.peak_mb")}
        beside = {"before_step": "activations", "after_step": "formula"}.get(moment)
        if beside is not None:
            row[beside] = lookup(found, f"{beside}_mb")
        yield {"moment": moment.replace("_", " "), **row}


def _sides(summary: Row) -> list[Row]:
    told: Any = summary.get("timed_ms")
    return [{"side": side, **told[side]} for side in SIDES if told.get(side)] if isinstance(told, Mapping) else []


def _timed(launches: Launches, label: Label) -> list[Row]:
    """An arm and side a row; none without a timer of a strategy's or compressor's own."""
    rows = _grouped(launches, _sides, ("side",), of_known=True)
    if OF_EVERY_RUN.issuperset(_timers(rows)):
        return []
    return [{**row, "arm": f"{row['arm']}, {label('timed.' + str(row['side']), str(row['side']))}"} for row in rows]


def _timers(rows: Sequence[Row]) -> list[str]:
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key not in ("arm", "side")]


def _links(launches: Launches, label: Label) -> list[Row]:
    """An arm a row, then who is fastest; none where no arm compresses, or nothing can be predicted."""
    baseline = next(iter(launches))
    found = {name: arm_links(summaries, launches[baseline]) for name, summaries in launches.items()}
    times = {f"{speed}": {name: arm.predicted_ms[f"{speed}"] for name, arm in found.items()} for speed in SPEEDS_GBPS}
    known = {speed: {name: ms for name, ms in arms.items() if ms is not None} for speed, arms in times.items()}
    compresses = any(each.get("compression") for summaries in launches.values() for each in summaries)
    if not compresses or not any(known.values()):
        return []
    rows: list[Row] = [
        {"arm": name, **arm.predicted_ms}
        | ({} if name == baseline else {"faster_than": spans_text(arm.faster_gbps, label)})
        for name, arm in found.items()
    ]
    fastest = {speed: min(arms, key=arms.__getitem__) if arms else None for speed, arms in known.items()}
    return [*rows, {"arm": label("links.fastest", "fastest"), **fastest}] if len(found) > 1 else rows


def _spread(launches: Launches, _: Label) -> list[Row]:
    """None where no arm compresses or has a target, or one has fewer launches than `FEWEST_FOR_SPREAD`."""
    every = [summary for summaries in launches.values() for summary in summaries]
    asked = any(summary.get("compression") or summary.get("targets") for summary in every)
    if not asked or len(launches) < 2 or min(map(len, launches.values())) < FEWEST_FOR_SPREAD:
        return []
    return [
        {"arm": name} | {key: _mean_sd(found, len(each)) for key, found in over_launches(each).items()}
        for name, each in launches.items()
    ]


def _mean_sd(found: MeanRecord, launches: int) -> str:
    """`12.34 ± 0.05`, with how many launches have a number where not all do."""
    spread = f" ± {format_value(found.sd, '')}" if found.sd is not None else ""
    return f"{format_value(found.mean, '')}{spread}{f' ({found.launches}/{launches})' * (found.launches < launches)}"


TABLES: Mapping[str, Spec] = {
    "waste": Spec(
        "waste",
        "where the step time goes beyond the ideal",
        _waste,
        (
            ARM,
            Column("s", "times the ideal", form=".2f"),
            *columns("%", **WASTE),
            *columns("", distinct="slowest ranks", most="most often slowest"),
            *columns("%", equal="if equal"),
        ),
        compact=True,
    ),
    "timed": Spec(
        "timed",
        "what is timed of communication, means over ranks and steps, ms",
        _timed,
        lambda rows: [
            ARM,
            *(Column(key, key.removesuffix("_ms").replace("_", " ")) for key in _timers(rows)),
        ],
    ),
    "exposed": Spec(
        "exposed_table",
        "exposed communication told two ways, per step",
        _exposed,
        (
            ARM,
            *(column for key, text in TWO_WAYS.items() for column in (Column(key, text, "ms"), _interval(key))),
            Column("apart", "apart", "%"),
            *_EXPOSED,
        ),
    ),
    "operations": Spec(
        "operations",
        "communication per rank and step, by operation",
        lambda launches, _: _grouped(launches, lambda one: one.get("by_operation") or (), ("side", "operation")),
        (
            ARM,
            Column("side", "ranks", words="operations"),
            *columns("", operation="operation", calls="calls"),
            *columns("ms", ms="under way", wait_ms="waiting", transfer_ms="transfer"),
            *columns("bytes", bytes="sent"),
            *columns("GB/s", gb_per_s="speed"),
        ),
        keys=3,
    ),
    "links": Spec(
        "links",
        "steps over links of other speeds, predicted from means over launches, without intervals, ms",
        _links,
        lambda rows: [
            ARM,
            *([Column("faster_than", "faster than …", "Gb/s", of=str(rows[0]["arm"]))] if len(rows) > 1 else []),
            *(Column(f"{speed}", f"{speed} Gb/s") for speed in SPEEDS_GBPS),
        ],
    ),
    "spread": Spec(
        "spread",
        "mean and standard deviation over launches",
        _spread,
        (
            ARM,
            *columns("real tokens/s", tokens_per_s="throughput"),
            *columns("", train_loss="training loss", val_loss="eval. loss", val_ppl="eval. perplexity"),
            *columns("s", time_to_target_ppl_s="time to target"),
            *columns("", ppl_at_fixed_time="at time budget"),
        ),
        compact=True,
    ),
    "memory_parts": Spec(
        "memory_parts",
        "held by a rank that trains in its first step, MB",
        lambda launches, _: _grouped(launches, _held, ("moment",)),
        (
            ARM,
            Column("moment", "moment", words="memory_parts"),
            *columns("", **HELD, held="held", activations="activations", formula="formula", peak_mb="peak"),
        ),
        keys=2,
    ),
    "phases": Spec(
        "phases",
        "how much of profiled steps is communication",
        lambda launches, _: [{**asdict(one), **one.of_phase} for one in bottlenecks(launches)],
        (
            ARM,
            *columns("ms", step_ms="step"),
            *columns("%", compute_share="computing", share="communication", wire_share="as the wire timed it"),
            *(Column(phase, f"of {phase}", "%", text=f"phases.of_{phase}") for phase in PHASES[:3]),
        ),
    ),
    "profile": Spec(
        "profile",
        "profiled steps, by phase and operation",
        lambda launches, _: profile_rows(launches),
        (
            ARM,
            Column("phase", "phase", words="profile"),
            Column("operation", "operation", words="profile"),
            *columns("", calls="calls"),
            *columns("ms", ms="time"),
            *columns("%", share="of the step"),
        ),
        keys=3,
    ),
}
"""Those of launches, in the order of pages, by the name of their placeholder."""


def tables_of(launches: Launches, label: Label = in_english) -> dict[str, Table]:
    """Those of `TABLES` that have something to say, by name."""
    return {name: table for name, spec in TABLES.items() if (table := spec.table(launches, label)) is not None}


# Of comparisons -------------------------------------------------------------------------------------------------------


def ranks_text(workers: int, world_size: int, oversubscribed: bool | None, label: Label = in_english) -> str:
    """`2`, `2 of 3` where some serve, marked where they share cores: `4 (oversubscribed)`."""
    counted = f"{workers}" if workers == world_size else label("scaling.of", "{} of {}").format(workers, world_size)
    return f"{counted} ({label('scaling.oversubscribed', MARK)})" if oversubscribed else counted


def _scaling(records: Sequence[ScalingRecord], label: Label) -> list[Row]:
    serve = any(one.world_size != one.workers for one in records)
    return [
        one.model_dump(exclude=None if serve else {"efficiency_of_ranks"})
        | {"ranks": ranks_text(one.workers, one.world_size, one.oversubscribed, label)}
        for one in records
    ]


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
        *(columns("%", efficiency_of_ranks="of all ranks") if "efficiency_of_ranks" in rows[0] else []),
        *columns("", units_per_s="work per s"),
        *columns("ms", step_ms="step", comm_ms="communication", exposed_comm_ms="exposed"),
        *columns("%", comm_share="communication / step"),
        *columns("GB/s", gb_per_s="effective bandwidth"),
    ],
    keys=2,
)


def _ranking(pairs: Sequence[PairRecord], label: Label) -> list[Row]:
    return [
        {
            **asdict(rank),
            "told_apart": label("words.yes", "yes") if rank.told_apart else label("words.no", "no"),
            "p_holm": f"{rank.p:.3f}" if rank.p >= 0.001 else "< 0.001",
        }
        for rank in ranking(pairs)
    ]


RANKING = Spec(
    "headings",
    "who beats whom",
    _ranking,
    (
        ARM,
        Column("other", "against", text="headings.against"),
        *columns("", told_apart="told apart"),
        Column("ratio", "times as fast", text="headings.times_as_fast", form=".3f"),
        *columns("", interval="interval", p_holm="p, Holm"),
    ),
    keys=2,
)

Values = Mapping[str, Mapping[str, object]]
"""Name of the arm, the baseline's first, to what is known of it by metric key."""
Gains = Mapping[str, Mapping[str, float]]
"""Name of the arm to its improvements in percent, by metric key."""


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
        *columns("%", recovered_share="recovered", efficiency="efficiency"),
        *([] if question.loss_drift is None else columns("", drift="loss drift")),
    ]
    found = {item.candidate: item for item in comparisons}
    rows = [
        {
            **{column.key: getattr(found.get(name), column.key, None) for column in facts},
            "verdict": _verdict(found[name], label) if name in found else "",
            "drift": _drift(found.get(name)),
            **{key: lookup(arm, key) for key in question.overview},
            "arm": name,
        }
        for name, arm in values.items()
    ]
    baseline = label("overview.baseline", "baseline")
    is_stored = f" ({label('overview.stored', 'stored')})" if rows[0]["arm"] in stored else ""
    rows[0]["verdict"] = f"{baseline}{is_stored}"
    shown = [
        ARM,
        Column("verdict", "verdict", text="headings.verdict"),
        *(facts if details else [SPEEDUP]),
        *(of_metric(metric) for key in question.overview for metric in METRICS if metric.key == key),
    ]
    return Spec("overview", "", lambda rows, _: rows, shown, compact=True).table(rows, label)


def _verdict(item: ComparisonRecord, label: Label) -> str:
    said = label(f"verdicts.{item.verdict}", item.verdict)
    return f"{said} ({label('overview.alike', 'alike')})" if item.aa else said


def _drift(item: ComparisonRecord | None) -> str:
    return "" if item is None or item.loss_drift is None else f"{100 * item.loss_drift:+.2f} %"


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
        table = Spec("overview", "", lambda rows, _: rows, shown, compact=True).table(rows, label)
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
