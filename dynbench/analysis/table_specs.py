"""The tables of an analysis: what its rows are, and its columns. Terminal, pages and reports show the same.

Texts in English stand here; other languages have them under the table's section in `report/labels.*.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from dynbench.analysis.communication import OF_EVERY_RUN
from dynbench.analysis.links import SPEEDS_GBPS, faster_gbps, over_speeds, spans_text
from dynbench.analysis.measure import Launches, Summaries, known_values, lookup, mean_over
from dynbench.analysis.measures import MOMENTS
from dynbench.analysis.merge import SIDES
from dynbench.analysis.profile import PHASES, bottlenecks, profile_rows
from dynbench.analysis.record import MeanRecord
from dynbench.analysis.results_csv import FEWEST_FOR_SPREAD, over_launches
from dynbench.analysis.run_facts import section
from dynbench.analysis.stats import mean_interval
from dynbench.analysis.tables import ARM, Column, Row, Spec, columns
from dynbench.analysis.topology import busiest_rows, epoch_rows
from dynbench.analysis.waste import PARTS
from dynbench.table_text import Label, Table, format_value, in_english

HELD = {f"{kind}_mb": kind for kind in ("parameters", "gradients", "optimizer", "strategy")}
"""Key of what is held at a moment to its heading, in English."""
WASTE = {part: part for part in PARTS} | {"exposed_comm": "exposed comm.", "compute": "slower compute"}


def mean_waste(summaries: Summaries) -> dict[str, float]:
    """`PARTS` of the waste and `s`, which they add up to: means over the launches; without what one does not know."""
    found = {key: mean_over(summaries, f"waste.{key}") for key in ("s", *PARTS)}
    return {key: value for key, value in found.items() if value is not None}


def _slowest(summaries: Summaries) -> Row:
    """Ranks that were the slowest, the one that most often was, and the share that equal ranks would have."""
    by_launch = [section(summary, "slowest_ranks").get("shares") for summary in summaries]
    shares = [each for each in by_launch if each and None not in each]
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


_TWO_WAYS = {"exposed_comm_ms.mean": "after the last gradient", "exposed_vs_null_ms.mean": "beyond a step without"}
_EXPOSED = (
    *columns("ms", **{"comm_ms.mean": "union", "comm_sum_ms.mean": "sum"}),
    *columns("%", overlap_fraction="hidden"),
    *columns("ms", **{"comm_wait_ms.mean": "waiting", "comm_transfer_ms.mean": "transfer"}),
    *columns("", **{"collectives.mean": "collectives"}),
    *columns("bytes", **{"bytes_wire.mean": "sent"}),
)


def _interval(key: str) -> Column:
    return Column(f"{key} interval", "95 % interval", text="exposed_table.interval", beside=True)


def _exposed(launches: Launches, _: Label) -> list[Row]:
    """Means over the launches that know; none where none took turns with one that sends nothing."""
    rows: list[Row] = []
    for name, summaries in launches.items():
        row: dict[str, Any] = {"arm": name}
        for key in (*_TWO_WAYS, *(column.key for column in _EXPOSED)):
            values = known_values(summaries, key)
            row[key] = fmean(values) if values else None
            row[f"{key} interval"] = "[{1:.3f}, {2:.3f}]".format(*mean_interval(values)) if len(values) > 1 else None
        own, beyond = (row[key] for key in _TWO_WAYS)
        if own is not None and beyond is not None and max(own, beyond) > 0:
            row["apart"] = (beyond - own) / max(own, beyond)  # as a part of the larger
        rows.append(row)
    return rows if any(row["exposed_vs_null_ms.mean"] is not None for row in rows) else []


def _grouped(
    launches: Launches,
    rows_of: Callable[[Mapping[str, Any]], Iterable[Row]],
    ids: Sequence[str],
    *,
    of_known: bool = False,
) -> list[Row]:
    """A row per arm and what has the same ids: means over the launches that tell of it."""
    rows: list[Row] = []
    for name, summaries in launches.items():
        found: dict[tuple[object, ...], list[Row]] = {}
        for row in (row for summary in summaries for row in rows_of(summary)):
            found.setdefault(tuple(row[key] for key in ids), []).append(row)
        for same in found.values():
            keys = dict.fromkeys(key for row in same for key in row if key not in ids)
            means = {key: mean_over(same, key, of_known=of_known) for key in keys}
            rows.append({"arm": name, **{key: same[0][key] for key in ids}, **means})
    return rows


def _memory_rows(summary: Row) -> Iterator[Row]:
    """What a run's ranks held at each moment; activations are freed in the backward pass."""
    found = section(summary, "memory_parts")
    for moment in MOMENTS:
        parts = {kind: lookup(found, f"{moment}.{kind}") for kind in HELD}
        if parts["parameters_mb"] is None:
            continue
        row = {**parts, "held": sum(filter(None, parts.values())), "peak_mb": lookup(found, f"{moment}.peak_mb")}
        if beside := {"before_step": "activations", "after_step": "formula"}.get(moment):
            row[beside] = lookup(found, f"{beside}_mb")
        yield {"moment": moment.replace("_", " "), **row}


def _sides(summary: Row) -> list[Row]:
    timed = section(summary, "timed_ms")
    return [{"side": side, **timed[side]} for side in SIDES if timed.get(side)]


def _timed(launches: Launches, label: Label) -> list[Row]:
    """An arm and side a row; none without a timer of a strategy's or compressor's own."""
    rows = _grouped(launches, _sides, ("side",), of_known=True)
    if OF_EVERY_RUN.issuperset(_timers(rows)):
        return []
    of_side = label("timed.of_side", "{}, {}")
    return [{**row, "arm": of_side.format(row["arm"], label(f"timed.{row['side']}", str(row["side"])))} for row in rows]


def _timers(rows: Sequence[Row]) -> list[str]:
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key not in ("arm", "side")]


def _links(launches: Launches, label: Label) -> list[Row]:
    """An arm a row, then who is fastest; none where no arm compresses, or nothing can be predicted."""
    baseline, *others = launches
    times = {name: over_speeds(summaries) for name, summaries in launches.items()}
    known = {
        f"{speed}": {name: ms for name, each in times.items() if (ms := each[f"{speed}"]) is not None}
        for speed in SPEEDS_GBPS
    }
    compresses = any(each.get("compression") for summaries in launches.values() for each in summaries)
    if not compresses or not any(known.values()):
        return []
    faster = {name: spans_text(faster_gbps(launches[name], launches[baseline]), label) for name in others}
    rows: list[Row] = [{"arm": name, **each, "faster_than": faster.get(name)} for name, each in times.items()]
    fastest = {speed: min(arms, key=arms.__getitem__) if arms else None for speed, arms in known.items()}
    return [*rows, {"arm": label("links.fastest", "fastest"), **fastest}] if others else rows


def _spread(launches: Launches, _: Label) -> list[Row]:
    """None where no arm compresses or has a target, or one has fewer launches than `FEWEST_FOR_SPREAD`."""
    every = [summary for summaries in launches.values() for summary in summaries]
    wanted = any(summary.get("compression") or summary.get("targets") for summary in every)
    if not wanted or len(launches) < 2 or min(map(len, launches.values())) < FEWEST_FOR_SPREAD:
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
        lambda rows: [ARM, *(Column(key, key.removesuffix("_ms").replace("_", " ")) for key in _timers(rows))],
    ),
    "exposed": Spec(
        "exposed_table",
        "exposed communication told two ways, per step",
        _exposed,
        (
            ARM,
            *(column for key, text in _TWO_WAYS.items() for column in (Column(key, text, "ms"), _interval(key))),
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
    "busiest": Spec(
        "busiest",
        "the process through which most goes, per step",
        lambda launches, _: busiest_rows(launches),
        (
            ARM,
            Column("workers", "ranks that train", form=".0f"),
            Column("processes", "processes", form=".0f"),
            Column("side", "the process", words="operations"),
            *columns("", messages="messages in turn"),
            *columns("MB", mb="sent and received"),
            *columns("ms", transfer_ms="transfer", each_ms="per message", step_ms="step"),
            *columns("%", share="of the step"),
        ),
    ),
    "epochs": Spec(
        "epochs",
        "epochs, means over launches",
        lambda launches, _: _grouped(launches, epoch_rows, ("epoch", "side"), of_known=True),
        (
            ARM,
            Column("epoch", "epoch", form=".0f"),
            Column("side", "ranks", words="operations"),
            *columns("", train_loss="training loss"),
            *columns("%", train_accuracy="training accuracy"),
            *columns("", eval_loss="eval. loss"),
            *columns("%", eval_accuracy="eval. accuracy"),
            *columns("s", train_s="time"),
            *columns("ms", step_ms="batch"),
            *columns("samples/s", samples_per_s="rate"),
            *columns("ms", push="push", pull="pull"),
        ),
        keys=3,
        compact=True,
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
        lambda launches, _: _grouped(launches, _memory_rows, ("moment",)),
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
        lambda launches, _: [{**one._asdict(), **one.of_phase} for one in bottlenecks(launches)],
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
