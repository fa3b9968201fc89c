"""Sections 4 and 5 of the questions: collectives, gradient synchronisation, formulas, and sharded optimizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise, product

from dynbench.bench.base import Row
from dynbench.experiment.assignment.rows import (
    CLOSE,
    Result,
    Rows,
    Shapes,
    Statement,
    amount,
    column,
    key,
    number,
    ratio,
    side,
)
from dynbench.units import mb

LEVER = "compute-bound batch with "
BATCH = "compute-bound batch, axes not overlapped"
SHARDED = ("sharded", "zero1")
"""Ways of an optimizer whose state is divided, beside `adamw`, which has all of it on every rank."""
MOMENTS = ("init", "before", "after")
"""When `bench optimizer` reads a rank's memory: after it was made, before a step, and after one."""
PARTS = ("parameters", "gradients", "optimizer", "rest", "total", "peak")
"""Parts of a rank's memory that it measures."""
SIZE = ("size", "dtype")


def stated(block: str, beginnings: Sequence[str], rows: Rows) -> Result:
    """The quantities whose names begin so, of each the first in the sentence; all of them are needed."""
    found = [[row for row in _formulas(rows) if row.case.startswith(each)] for each in beginnings]
    if all(found):
        used = [row for group in found for row in group]
        yield Statement(block, used, stated=[column(group[0], "shown") for group in found])
        yield _formula_table(used)


def levers(rows: Rows) -> Result:
    """4.9d: the levers that lower the batch, and those that do not here."""
    formulas = _formulas(rows)
    found = sorted((row for row in formulas if row.case.startswith(LEVER)), key=key("p50"))
    for now in [row for row in formulas if row.case == BATCH][:1]:
        lower = [row for row in found if ratio(row, now, "p50") < 1]
        for case, chosen in (("lower", lower), ("not", found[len(lower) :])):
            if chosen:
                yield Statement(
                    "levers",
                    [now, *chosen],
                    case,
                    best=chosen[0].case.removeprefix(LEVER),
                    batch=column(chosen[0], "shown"),
                )
                yield _formula_table(chosen)


def _formulas(rows: Rows) -> list[Row]:
    return [row for row in rows.where() if column(row, "formula") and column(row, "shown")]


def _formula_table(rows: Sequence[Row]) -> Statement:
    """What formulas give, with what was put in."""
    lines = [[row.case, (column(row, "shown"), row.unit), column(row, "formula"), column(row, "with")] for row in rows]
    return Statement("formula_table", rows, lines=lines)


def collectives(rows: Rows) -> Result:
    """4.1: the all-reduce by back end, processes and size, and how these work together."""
    sized = (row for row in rows.where() if amount(row, "size") and amount(row, "processes"))
    found = Rows(row for row in sized if row.case.startswith("all_reduce"))
    if not found:
        return
    series = found.by("backend", "dtype", "processes", "size")
    lines = [[*shape[:3], mb(amount(row, "size")), row.p50, number(row, "busbw")] for shape, row in series.items()]
    wrong = [row.case for row in found if number(row, "#wrong")]
    disturbed: list[str] = []
    for names in dict.fromkeys(shape[:3] for shape in series):
        same = sorted((row for shape, row in series.items() if shape[:3] == names), key=key("size"))
        disturbed += [row.case for row, larger in pairwise(same) if ratio(row, larger, "p50") > 1]
    case = "wrong" if wrong else "right"
    yield Statement("all_reduce", found, case, wrong=wrong, disturbed=disturbed, lines=lines)
    yield from _sizes(found.like(found[0], "backend", "dtype", "processes"))
    yield from _processes(found.like(found[0], "backend", "dtype"))


def _sizes(rows: Rows) -> Result:
    """How the time grows with the size."""
    small, large = (pick(rows, key=key("size")) for pick in (min, max))
    sizes, times = (ratio(large, small, name) for name in ("size", "p50"))
    if sizes > 1:
        power = math.log(times) / math.log(sizes)
        case = "latency" if power < 1 - 2 * CLOSE else "beyond" if power > 1 + 2 * CLOSE else "bandwidth"
        yield Statement("all_reduce_sizes", [small, large], case, sizes=sizes, times=times)


def _processes(rows: Rows) -> Result:
    """How the time grows with their number at the largest size, and beside it at the smallest."""
    sizes = sorted(amount(row, "size") for row in rows)
    if found := rows.pivot(("processes",), size=(sizes[0], sizes[-1])):
        ordered = sorted(found.values(), key=lambda used: amount(used[0], "processes"))
        few, many = ordered[0], ordered[-1]
        small_times, times = (ratio(new, old, "p50") for new, old in zip(many, few, strict=True))
        expected = _ring(many[0]) / (_ring(few[0]) or 1)
        case = "crowded" if column(many[1], "shared") else "slower"
        case = case if times > (1 + 2 * CLOSE) * expected else "as_ring"
        values = {"small_times": small_times if sizes[0] < sizes[-1] else None, "times": times, "expected": expected}
        yield Statement("all_reduce_processes", [*few, *many], case if len(found) > 1 else "once", **values)


def _ring(row: Row) -> float:
    """What each rank of a ring sends, as a part of the buffer."""
    return 2 - 2 / (amount(row, "processes") or 1)


def checked(strategies: Sequence[str], rows: Rows) -> Result:
    """4.2, 4.5, 4.7, 5.1: whether strategies train a toy as one process does."""
    for strategy in strategies:
        if found := rows.where(strategy=strategy, dtype="float64", optimizer=("sgd", "adamw")):
            off = f"{max(amount(row, 'mean') for row in found):.1e}"
            case = "same" if all(column(row, "passed") for row in found) else "other"
            yield Statement("strategy_check", found, case, off=off, optimizers=found.distinct("optimizer"))


def _arms(rows: Rows, *strategies: str) -> list[Row]:
    """The first arm of each strategy; empty where one is missing."""
    found = [row for each in strategies for row in rows.where(strategy=each, unit="ms")[:1]]
    return found if len(found) == len(strategies) else []


def _arm_table(rows: Sequence[Row]) -> Statement:
    """Numbers of arms, side by side."""
    names = ("ranks", "n", "mean", "calls", "comm", "exposed", "beyond")
    lines = [[row.case, *(number(row, name) for name in names)] for row in rows]
    return Statement("arm_table", rows, lines=lines)


def naive(rows: Rows) -> Result:
    """4.3."""
    if found := [row for row in _arms(rows, "naive") if number(row, "comm") is not None]:
        yield Statement("naive_step", found, share=amount(found[0], "comm") / (found[0].mean or 1))
        yield _arm_table(found)


def flat(rows: Rows) -> Result:
    """4.4."""
    if found := _arms(rows, "naive", "flat"):
        yield _faster("flat_step", found[1], found[:1])
        yield _arm_table(found)


def overlap(rows: Rows) -> Result:
    """4.6: the step against the two before; hidden communication that competes for cores shortens nothing."""
    if found := _arms(rows, "naive", "flat", "overlap"):
        yield _faster("overlap_step", found[2], found[:2])
        yield _arm_table(found)
        known = all(number(found[2], name) is not None for name in ("hidden", "beyond", "exposed"))
        beyond, exposed = amount(found[2], "beyond"), amount(found[2], "exposed")
        case = "noisy" if beyond < 0 else "pays" if beyond <= 2 * exposed else "competes"
        yield Statement("overlap_hidden", found[::-1], case if known else "unknown")


def _faster(block: str, row: Row, others: Sequence[Row]) -> Statement:
    """Whether an arm's step is shorter than that of all others, of some, or of none."""
    ratios = [ratio(other, row) for other in others]
    case = "faster" if min(ratios) > 1 + CLOSE / 2 else "slower" if max(ratios) < 1 - CLOSE / 2 else "alike"
    named = [(f"`{other.case}`", each) for other, each in zip(others, ratios, strict=True)]
    return Statement(block, [row, *others], case, ratios=named if len(named) > 1 else ratios, lines=[])


def buckets(rows: Rows) -> Result:
    """4.8a: which size is best here, whether that is what was expected, and what would show it."""
    timed = rows.where(strategy=("bucketed", "overlap", "flat"), unit="ms")
    found = sorted((row for row in timed if amount(row, "calls")), key=key("calls"))
    counts = {column(row, "calls") for row in found}
    if len(counts) > 1 and "bucketed" in Rows(found).distinct("strategy"):
        best = min(found, key=key("mean"))
        ends = [amount(row, "calls") for row in (found[0], found[-1])]
        case = "few" if amount(best, "calls") == ends[0] else "many" if amount(best, "calls") == ends[1] else "inner"
        yield Statement("bucket_step", [best, *found], case, few=found[0].mean, many=found[-1].mean)
        yield _arm_table(found)


def _sharded(rows: Rows, way: str, **variants: Sequence[object]) -> Shapes:
    """The rows of `bench optimizer` with the whole state and in this way, of its last model, fp32 first."""
    pairs = rows.pivot(SIZE, way=("adamw", way), **variants)
    last = [*pairs][-1][0] if pairs else None
    found = {shape: used for shape, used in pairs.items() if shape[0] == last}
    return Shapes(sorted(found.items(), key=lambda each: each[0][1] != "float32"))


def sharded_memory(rows: Rows) -> Result:
    """5.2a: by moment and part, with and without sharding."""
    cells: dict[tuple[object, ...], Rows] = {}
    for way in SHARDED:
        for used in [*_sharded(rows.where(quantity="memory"), way, moment=MOMENTS, part=PARTS).values()][:1]:
            cells |= {each: used.where(way=each[0], moment=each[1]) for each in product(("adamw", way), MOMENTS)}
            parts = used.by("way", "moment", "part")
            whole, shard = (parts[each, "after", "optimizer"] for each in ("adamw", way))
            part = ratio(shard, whole, "p50") * (amount(shard, "processes") or 1)
            case = "share" if amount(whole, "p50") > 0 and abs(part - 1) <= 2 * CLOSE else "other"
            yield Statement("sharded_state", [shard, whole], case, way=f"ways.{way}")
            pairs = [[parts[each, "before", part] for each in ("adamw", way)] for part in PARTS]
            ratios = [ratio(shard, whole, "p50") for whole, shard in pairs[-2:]]
            case = "less" if max(ratios) <= 1 else "more" if min(ratios) > 1 else "some"
            yield Statement("sharded_total", list(chain(*pairs)), case, way=f"ways.{way}", part=1 - ratios[0])
    if cells:
        lines = [
            [f"ways.{way}", f"moments.{moment}", *(row.p50 for row in used)] for (way, moment), used in cells.items()
        ]
        yield Statement("sharded_memory", list(chain(*cells.values())), lines=lines)


def sharded_time(rows: Rows) -> Result:
    """5.2b: in every type that both were timed in."""
    times = rows.where(quantity="time")
    used = times.by(*SIZE, "way", "part")
    shown: set[tuple[object, ...]] = set()
    for way in SHARDED:
        if found := _sharded(times.where(part="step"), way):
            ratios = [(dtype, ratio(whole, shard)) for (_, dtype), (whole, shard) in found.items()]
            case = side((pair[1:], pair[:1]) for pair in found.values()).replace("both", "alike")
            yield Statement("sharded_step", found.rows, case, way=f"ways.{way}", ratios=ratios)
            shown |= {(*shape, each) for shape, each in product(found, ("adamw", way))}
    ordered = sorted(shown, key=lambda name: (name[1] != "float32", str(name)))
    cells = {name: [used.get((*name, part)) for part in ("optimizer", "step")] for name in ordered}
    if cells:
        lines = [[*shape, f"ways.{way}", *each] for (*shape, way), each in cells.items()]
        yield Statement("sharded_times", [row for each in cells.values() for row in each if row], lines=lines)


def sharded_traffic(rows: Rows) -> Result:
    """5.2c: what a rank sends in a step beside an all-reduce of the gradients, MB."""
    for way in SHARDED:
        for whole, shard in [*_sharded(rows.where(quantity="traffic"), way).values()][:1]:
            times = ratio(shard, whole, "p50")
            case = "same" if abs(times - 1) <= CLOSE else "more" if times > 1 else "less"
            yield Statement("sharded_traffic", [whole, shard], case, way=f"ways.{way}", times=times)
