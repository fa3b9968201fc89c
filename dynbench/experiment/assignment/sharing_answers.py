"""Sections 4 and 5 of the questions: collectives, how gradients meet, sharded optimizers, and what formulas say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import HELD, MOMENTS, Grid, Said, by, column, number_in, where
from dynbench.experiment.assignment.model_answers import CLOSE, plain

LEVER = "compute-bound batch with "
BATCH = "compute-bound batch, axes not overlapped"
WAYS = ("adamw", "zero1")
"""Of an optimizer: its state whole on every rank, or sharded."""


def stated(key: str, *beginnings: str) -> Answer:
    """The quantities whose names begin so, with their formulas and what was put in; all of them are needed."""

    def answer(rows: Sequence[Row]) -> list[Said]:
        formulas = _formulas(rows)
        found = [[row for row in formulas if row.case.startswith(each)] for each in beginnings]
        if not all(found):
            return []
        used = [row for group in found for row in group]
        return [Said(key, used, _first(found), _formula_grid(used))]

    return answer


def levers(rows: Sequence[Row]) -> list[Said]:
    """4.9d: the levers that lower the batch, and those that do not here."""
    formulas = _formulas(rows)
    now = next((row for row in formulas if row.case == BATCH), None)
    found = [row for row in formulas if row.case.startswith(LEVER)]
    if now is None or not found:
        return []
    ordered = sorted(found, key=lambda row: row.p50 or 0)
    lower, rest = ([row for row in ordered if ((row.p50 or 0) < (now.p50 or 0)) is side] for side in (True, False))
    said = []
    for key, chosen in (("levers.lower", lower), ("levers.not", rest)):
        if chosen:
            values = {"now": column(now, "shown"), "best": chosen[0].case.removeprefix(LEVER)}
            values["batch"] = column(chosen[0], "shown")
            said.append(Said(key, [now, *chosen], values, _formula_grid(chosen)))
    return said


def _formulas(rows: Sequence[Row]) -> list[Row]:
    return [row for row in where(rows) if column(row, "formula") and column(row, "shown")]


def _first(found: Sequence[Sequence[Row]]) -> dict[str, object]:
    """The first quantity of each beginning, as `a`, `b`, …."""
    return {name: column(group[0], "shown") for name, group in zip("abcdefgh", found, strict=False)}


def _formula_grid(rows: Sequence[Row]) -> Grid:
    cells = [
        [row.case, f"{column(row, 'shown')} {row.unit}", *(str(column(row, n)) for n in ("formula", "with"))]
        for row in rows
    ]
    return Grid(("quantity", "value", "formula", "with"), cells, 4)


Answer = Callable[[Sequence[Row]], list[Said]]


def collectives(rows: Sequence[Row]) -> list[Said]:
    """4.1: the all-reduce by back end, processes and size, and how these work together."""
    sized = [row for row in where(rows) if number_in(row, "size") and number_in(row, "processes")]
    found = [row for row in sized if row.case.startswith("all_reduce")]
    if not found:
        return []
    names = ("backend", "dtype", "processes", "size")
    cells = [
        [*map(str, key[:3]), plain((number_in(row, "size") or 0) / 1e6), plain(row.p50), plain(number_in(row, "busbw"))]
        for key, row in by(found, *names).items()
    ]
    wrong = [row for row in found if number_in(row, "#wrong")]
    said = [Said("collectives.all", found, grid=Grid(("backend", "type", "processes", "mb", "p50", "busbw"), cells, 2))]
    key = "collectives.wrong" if wrong else "collectives.right"
    said.append(Said(key, wrong or found, {"cases": [row.case for row in wrong]}))
    return [*said, *_disturbed(found), *_sizes(found), *_processes(found)]


def _disturbed(found: Sequence[Row]) -> list[Said]:
    """Sizes that take longer than the next larger one with as many processes."""
    series = by(found, "backend", "processes", "dtype", "size")
    above = []
    for names in dict.fromkeys(key[:3] for key in series):
        rows = sorted(
            (row for key, row in series.items() if key[:3] == names), key=lambda row: number_in(row, "size") or 0
        )
        above += [row for row, larger in pairwise(rows) if (row.p50 or 0) > (larger.p50 or 0)]
    return [Said("collectives.disturbed", above, {"cases": [f"`{row.case}`" for row in above]})] if above else []


def _sizes(found: Sequence[Row]) -> list[Said]:
    about = [column(found[0], name) for name in ("backend", "processes")]
    same = where(found, backend=about[0], processes=about[1], dtype=found[0].dtype)
    small, large = (pick(same, key=lambda row: number_in(row, "size") or 0) for pick in (min, max))
    sizes, times = ([number_in(row, "size") or 1 for row in (small, large)], [row.p50 or 1 for row in (small, large)])
    if sizes[0] == sizes[1]:
        return []
    power = math.log(times[1] / times[0]) / math.log(sizes[1] / sizes[0])
    key = "latency" if power < 1 - 2 * CLOSE else "beyond" if power > 1 + 2 * CLOSE else "bandwidth"
    values = {
        "backend": about[0],
        "processes": about[1],
        "small": plain(sizes[0] / 1e6),
        "large": plain(sizes[1] / 1e6),
    }
    values |= {"sizes": plain(sizes[1] / sizes[0]), "times": plain(times[1] / times[0])}
    return [Said(f"collectives.{key}", [small, large], values)]


def _processes(found: Sequence[Row]) -> list[Said]:
    backend = column(found[0], "backend")
    size = max(number_in(row, "size") or 0 for row in where(found, backend=backend))
    alike = where(found, backend=backend, dtype=found[0].dtype)
    same = where(alike, size=size) or list(found[:1])
    few, many = (pick(same, key=lambda row: number_in(row, "processes") or 0) for pick in (min, max))
    if few is many:
        return [Said("collectives.one_count", [few], {"processes": column(few, "processes")})]
    ratio = (many.p50 or 0) / (few.p50 or 1)
    expected = _factor(many) / (_factor(few) or 1)
    key = "slower" if ratio > (1 + 2 * CLOSE) * expected else "as_ring"
    key = "crowded" if key == "slower" and column(many, "shared") else key
    values = {"few": column(few, "processes"), "many": column(many, "processes"), "mb": plain(size / 1e6)}
    values |= {"times": plain(ratio), "expected": plain(expected), "backend": backend}
    said = [Said(f"collectives.{key}", [few, many], values)]
    least = min(number_in(row, "size") or 0 for row in alike)
    small = {column(row, "processes"): row for row in where(alike, size=least)}
    pair = [small.get(column(row, "processes")) for row in (few, many)]
    known = [row for row in pair if row is not None]
    if least < size and len(known) == 2:
        at_least = {"small": plain(least / 1e6), "small_times": plain((known[1].p50 or 0) / (known[0].p50 or 1))}
        said.append(Said("collectives.together", [*known, few, many], {**values, **at_least}))
    return said


def _factor(row: Row) -> float:
    """What each rank of a ring sends, as a part of the buffer."""
    ranks = number_in(row, "processes") or 1
    return 2 * (ranks - 1) / ranks


def checked(strategy: str) -> Answer:
    """4.2, 4.5, 4.7, 5.1: whether a strategy trains a toy as one process does."""
    return partial(_checked, strategy)


def _checked(strategy: str, rows: Sequence[Row]) -> list[Said]:
    found = where(rows, strategy=strategy, dtype="float64", optimizer=("sgd", "adamw"))
    if not found:
        return []
    largest = max(row.mean or 0 for row in found)
    passed = all(column(row, "passed") for row in found)
    values = {"strategy": f"`{strategy}`", "off": f"{largest:.1e}", "ranks": column(found[0], "ranks")}
    values["optimizers"] = [str(column(row, "optimizer")) for row in found]
    return [Said(f"checked.{'same' if passed else 'other'}", found, values)]


def _arms(rows: Sequence[Row], *strategies: str) -> list[Row]:
    """The first arm of each strategy; empty where one is missing."""
    found = [next(iter(where(rows, strategy=each, unit="ms")), None) for each in strategies]
    return [row for row in found if row is not None] if None not in found else []


def _step_grid(rows: Sequence[Row]) -> Grid:
    cells = [
        [row.case, plain(number_in(row, "ranks")), str(row.n), plain(row.mean)]
        + [plain(number_in(row, name)) for name in ("calls", "comm", "exposed", "beyond")]
        for row in rows
    ]
    return Grid(("arm", "ranks", "launches", "step", "calls", "comm", "exposed", "beyond"), cells)


def naive(rows: Sequence[Row]) -> list[Said]:
    """4.3."""
    found = [row for row in _arms(rows, "naive") if number_in(row, "comm") is not None]
    if not found:
        return []
    values = {"model": f"`{column(found[0], 'model')}`", "ranks": plain(number_in(found[0], "ranks"))}
    values |= {"step": plain(found[0].mean), "comm": plain(number_in(found[0], "comm")), "share": _share(found[0])}
    return [Said("naive", found, values, _step_grid(found))]


def _share(row: Row) -> str:
    return f"{100 * (number_in(row, 'comm') or 0) / (row.mean or 1):.0f}"


def flat(rows: Sequence[Row]) -> list[Said]:
    """4.4."""
    found = _arms(rows, "naive", "flat")
    return [_faster("flat", found[1], found[:1], found)] if found else []


def overlap(rows: Sequence[Row]) -> list[Said]:
    """4.6: the step against the two before; hidden communication that competes for cores shortens nothing."""
    found = _arms(rows, "naive", "flat", "overlap")
    if not found:
        return []
    said = [_faster("overlap", found[2], found[:2], found)]
    hidden, beyond, exposed = (number_in(found[2], name) for name in ("hidden", "beyond", "exposed"))
    if hidden is not None and beyond is not None and exposed is not None:
        key = "overlap.pays" if beyond <= 2 * exposed else "overlap.competes"
        key = "overlap.noisy" if beyond < 0 else key
        values = {"hidden": f"{100 * hidden:.0f}", "beyond": plain(beyond), "exposed": plain(exposed)}
        said.append(Said(key, found[2:], values))
    return [*said, Said("overlap.traces", found, {})]


def _faster(key: str, row: Row, others: Sequence[Row], shown: Sequence[Row]) -> Said:
    """Whether an arm's step is shorter than that of all others, of some, or of none."""
    ratios = [(other.mean or 0) / (row.mean or 1) for other in others]
    side = "faster" if min(ratios) > 1 + CLOSE / 2 else "slower" if max(ratios) < 1 - CLOSE / 2 else "alike"
    named = [(f"`{other.case}`", plain(ratio)) for ratio, other in zip(ratios, others, strict=True)]
    listed = named if len(named) > 1 else [plain(ratios[0])]
    values = {"step": plain(row.mean), "ratios": listed, "n": row.n}
    return Said(f"{key}.{side}", shown, values, _step_grid(shown))


def buckets(rows: Sequence[Row]) -> list[Said]:
    """4.8a: which size is best here, whether that is what was expected, and what would show it."""
    found = [row for row in where(rows, strategy=("bucketed", "overlap", "flat"), unit="ms") if number_in(row, "calls")]
    if len({number_in(row, "calls") for row in found}) < 2 or not where(found, strategy="bucketed"):
        return []
    ordered = sorted(found, key=lambda row: number_in(row, "calls") or 0)
    least = min(ordered, key=lambda row: row.mean or math.inf)
    values = {
        "model": f"`{column(least, 'model')}`",
        "best": f"`{least.case}`",
        "step": plain(least.mean),
        "calls": plain(number_in(least, "calls")),
    }
    values |= {"few": plain(ordered[0].mean), "many": plain(ordered[-1].mean)}
    side = "inner" if ordered[0] is not least is not ordered[-1] else "few" if least is ordered[0] else "many"
    return [Said(f"buckets.{side}", ordered, values, _step_grid(ordered))]


def sharded_memory(rows: Sequence[Row]) -> list[Said]:
    """5.2a: by moment and part, with and without sharding."""
    found = _arms(rows, "ddp", "zero1")
    parts = [f"{moment}_{part}" for moment in MOMENTS for part in HELD]
    if not found or not all(number_in(row, parts[-1]) is not None for row in found):
        return []
    cells = [
        [row.case, f"moments.{moment}", *(plain(number_in(row, f"{moment}_{part}")) for part in HELD)]
        for row in found
        for moment in MOMENTS
    ]
    whole, shard = (number_in(row, "after_step_optimizer") or 0 for row in found)
    ranks = number_in(found[1], "ranks") or 1
    alike = whole > 0 and abs(shard / whole * ranks - 1) <= 2 * CLOSE
    values: dict[str, object] = {"whole": plain(whole), "shard": plain(shard), "ranks": plain(ranks)}
    values |= beside(
        *([number_in(row, f"before_step_{part}") for row in found] for part in ("parameters", "gradients"))
    )
    return [Said(f"sharded.{'share' if alike else 'other'}", found, values, Grid(("arm", "moment", *HELD), cells, 2))]


def beside(parameters: Sequence[float | None], gradients: Sequence[float | None]) -> dict[str, object]:
    """What is held of parameters and gradients before the step, MB, without and with sharding."""
    held = {"parameters": parameters, "gradients": gradients}
    return {f"{name}_{way}": plain(each) for name, pair in held.items() for way, each in zip(WAYS, pair, strict=True)}


def sharded_time(rows: Sequence[Row]) -> list[Said]:
    """5.2b."""
    found = _arms(rows, "ddp", "zero1")
    return [_faster("sharded_time", found[1], found[:1], found)] if found else []


def sharded_traffic(rows: Sequence[Row]) -> list[Said]:
    """5.2c: what is sent beside an all-reduce of the gradients."""
    found = [row for row in _arms(rows, "ddp", "zero1") if number_in(row, "wire_bytes")]
    if len(found) < 2:
        return []
    sent = [(number_in(row, "wire_bytes") or 0) / 1e6 for row in found]
    return [traffic(found, *sent)]


def traffic(rows: Sequence[Row], whole: float, shard: float) -> Said:
    """What a rank sends in a step, MB, without and with sharding."""
    ratio = shard / (whole or 1)
    key = "same" if abs(ratio - 1) <= CLOSE else "more" if ratio > 1 else "less"
    return Said(f"traffic.{key}", rows, {"whole": plain(whole), "shard": plain(shard), "ratio": plain(ratio)})
