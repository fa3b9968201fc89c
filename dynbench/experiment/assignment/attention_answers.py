"""Sections 2.1, 2.2a and 3 of the questions: what attention takes by length, and what tiles change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import Grid, Said, by, column, matches, number_in, place, side, where
from dynbench.experiment.assignment.model_answers import plain, spread

TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
QUADRATIC = 1.7
"""Power of the length from which growth counts as quadratic; what is linear keeps it below 2."""


def by_length(rows: Sequence[Row]) -> list[Said]:
    """2.1: plain attention's passes, memory before backward, what runs out, how it grows, how to be rid of it."""
    found = where(rows, way="plain")
    passes = by(found, "length", "channels", "dtype", "pass")
    shapes = [key[:3] for key in passes if key[3] == "forward" and (*key[:3], "backward") in passes]
    if not shapes:
        return []
    cells = []
    for shape in shapes:
        pair = [passes[(*shape, each)] for each in ("forward", "backward")]
        saved = number_in(pair[0], "saved_mb")
        cells.append([str(shape[0]), str(shape[1]), *(spread(row) for row in pair), plain(saved)])
    headings = ("length", "width", "forward", "backward", "before_backward")
    values = {"batch": column(found[0], "batch"), "n": found[0].n}
    said = [Said("attention.all", found, values, Grid(headings, cells, keys=0))]
    removed = _removed(rows, "attention.removed", "attention.not_removed")
    return [*said, _exhausted(rows, found), *_growth(found), *removed]


def _exhausted(rows: Sequence[Row], found: Sequence[Row]) -> Said:
    """The smallest shape of plain attention that ran out of memory, with its hand count."""
    out = [row for row in rows if row.status == "oom" and matches(row, {"way": "plain"})]
    row = min(out, key=_shape) if out else max(found, key=_shape)
    values = {"length": column(row, "length"), "width": column(row, "channels"), "type": row.dtype}
    values |= {"hand": plain(number_in(row, "hand_count_mb")), "batch": column(row, "batch")}
    peak = number_in(row, "peak_mb")
    if out or peak is None:
        return Said("attention.out" if out else "attention.fits", [row], values)
    return Said("attention.fits_peak", [row], {**values, "peak": plain(peak)})


def _growth(found: Sequence[Row]) -> list[Said]:
    forward = [row for row in found if column(row, "pass") == "forward" and number_in(row, "saved_mb")]
    if not forward:
        return []
    longest = max(forward, key=_shape)
    same = sorted(where(forward, channels=column(longest, "channels"), dtype=longest.dtype), key=_shape)
    short, long = same[0], same[-1]
    lengths, saved = ([number_in(row, name) or 1 for row in (short, long)] for name in ("length", "saved_mb"))
    if lengths[0] == lengths[1]:
        return []
    power = math.log(saved[1] / saved[0]) / math.log(lengths[1] / lengths[0])
    values = {
        "width": column(long, "channels"),
        "short": plain(lengths[0]),
        "long": plain(lengths[1]),
        "power": f"{power:.2f}",
    }
    values |= {"less": plain(saved[0]), "more": plain(saved[1])}
    return [Said(f"attention.{'quadratic' if power >= QUADRATIC else 'below_quadratic'}", [short, long], values)]


def _removed(rows: Sequence[Row], less: str, not_less: str) -> list[Said]:
    """What tiles save, at the largest shape that both were measured at, under a key for each case."""
    saved = by(where(rows, **{"pass": "forward"}), "length", "channels", "dtype", "way")
    shapes = [key[:3] for key in saved if key[3] == "plain" and (*key[:3], "flash_torch") in saved]
    if not shapes:
        return []
    shape = max(shapes, key=lambda key: _shape(saved[(*key, "plain")]))
    pair = [saved[(*shape, way)] for way in ("plain", "flash_torch")]
    whole, tiled = (number_in(row, "saved_mb") for row in pair)
    if not whole or tiled is None:
        return []
    key = less if tiled < whole / 2 else not_less
    return [
        Said(key, pair, {"length": str(shape[0]), "width": str(shape[1]), "plain": plain(whole), "tiled": plain(tiled)})
    ]


def compiled(rows: Sequence[Row]) -> list[Said]:
    """2.2a."""
    return _against(rows, "compiled", "compiled.attention", ("forward", "backward"))


def forward(rows: Sequence[Row]) -> list[Said]:
    """3.1: our kernels are right, with which tiles, and hold as much as they should."""
    return [*_right(rows, ("forward",)), *_removed(rows, "flash.keeps", "flash.keeps_much")]


def backward(rows: Sequence[Row]) -> list[Said]:
    """3.2."""
    return _right(rows, ("backward", "both"))


def _right(rows: Sequence[Row], passes: tuple[str, ...]) -> list[Said]:
    said = []
    for way in ("flash_torch", "flash_triton"):
        timed = where(rows, way=way, **{"pass": passes})
        found = [row for row in timed if row.reference_error is not None or column(row, "not_finite")]
        for dtype in dict.fromkeys(row.dtype for row in found):
            same = where(found, dtype=dtype)
            error = max(math.inf if column(row, "not_finite") else row.reference_error or 0 for row in same)
            tiles = list(dict.fromkeys(str(column(row, "tiles")) for row in same if column(row, "tiles")))
            key = f"flash.{'right' if error <= TOLERANCE[dtype] else 'wrong'}{'' if tiles else '_untiled'}"
            judged = ["judged.result" if passes == ("forward",) else "judged.gradients"]
            values: dict[str, object] = {"judged": judged}
            values |= {"way": f"`{way}`", "type": dtype, "error": f"{error:.1e}", "tiles": tiles}
            said.append(Said(key, same, {**values, "limit": f"{TOLERANCE[dtype]:.0e}", "passes": len(same)}))
    return said


def against_plain(rows: Sequence[Row]) -> list[Said]:
    """3.3."""
    said = []
    for way in ("flash_torch", "flash_triton"):
        said += _against(rows, way, "flash.times", ("forward", "backward", "both"))
    return said


def triton(rows: Sequence[Row]) -> list[Said]:
    """3.4."""
    found = where(rows, way="flash_triton", **{"pass": ("backward", "both")})
    return [*_right(found, ("backward", "both")), *_against(rows, "flash_triton", "flash.times", ("backward",))]


def _against(rows: Sequence[Row], way: str, key: str, passes: Sequence[str]) -> list[Said]:
    """A way's times beside those of plain attention, their ratios at the largest shape, and where others differ."""
    times = by(where(rows, way=("plain", way)), "dtype", "length", "channels", "way", "pass")
    found: dict[tuple[object, ...], list[tuple[Row, Row]]] = {}
    for shape in dict.fromkeys(name[:3] for name in times):
        pairs = [(times.get((*shape, way, each)), times.get((*shape, "plain", each))) for each in passes]
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        if len(known) == len(passes):
            found[shape] = known
    if not found:
        return []
    used = [row for pairs in found.values() for pair in pairs for row in pair]
    largest = max(found.values(), key=lambda pairs: _shape(pairs[0][0]))
    ratios = [(f"passes.{each}", plain(_ratio(*pair))) for each, pair in zip(passes, largest, strict=True)]
    shown = largest[0][0]
    values = {
        "way": f"`{way}`",
        "ratios": ratios,
        "length": column(shown, "length"),
        "width": column(shown, "channels"),
    }
    which = side(((new,), (old,)) for new, old in largest)
    said = [Said(f"{key}.{which}", used, {**values, "device": place(shown)}, _pass_grid(found, passes))]
    slower = [new for pairs in found.values() for new, old in pairs if _ratio(new, old) > 1]
    if which == "faster" and slower:
        counts = {"slower": len(slower), "all": len(used) // 2, "length": column(max(slower, key=_shape), "length")}
        said.append(Said("against.slower_elsewhere", slower, counts))
    return said


def _ratio(row: Row, other: Row) -> float:
    return (row.mean or 0) / (other.mean or 1)


def _shape(row: Row) -> tuple[float, float]:
    return number_in(row, "length") or 0, number_in(row, "channels") or 0


def _pass_grid(found: Mapping[tuple[object, ...], Sequence[tuple[Row, Row]]], passes: Sequence[str]) -> Grid:
    """A line for each shape: plain and the way in each pass, and tiles where there are any."""
    tiled = any(column(pairs[0][0], "tiles") for pairs in found.values())
    headings = ["type", "length", "width", *(f"{each}_{one}" for each in passes for one in ("plain", "way"))]
    cells = [
        [*map(str, shape), *(spread(row) for pair in pairs for row in reversed(pair))]
        + [str(column(pairs[0][0], "tiles") or "")] * tiled
        for shape, pairs in found.items()
    ]
    return Grid([*headings, "tiles"] if tiled else headings, cells)
