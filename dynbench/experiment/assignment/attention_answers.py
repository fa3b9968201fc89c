"""Sections 2.1, 2.2a and 3 of the questions: what attention takes by length, and what tiles change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import Grid, Said, by, column, matches, number_in, where
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
    return [*said, _exhausted(rows, found), *_growth(found), *_removed(rows)]


def _exhausted(rows: Sequence[Row], found: Sequence[Row]) -> Said:
    """The smallest shape of plain attention that ran out of memory, with its hand count."""
    out = [row for row in rows if row.status == "oom" and matches(row, {"way": "plain"})]
    row = min(out or found, key=lambda row: (number_in(row, "length") or 0) * (1 if out else -1))
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
    width = column(forward[-1], "channels")
    same = sorted(
        where(forward, channels=width, dtype=forward[-1].dtype), key=lambda row: number_in(row, "length") or 0
    )
    short, long = same[0], same[-1]
    lengths, saved = ([number_in(row, name) or 1 for row in (short, long)] for name in ("length", "saved_mb"))
    if lengths[0] == lengths[1]:
        return []
    power = math.log(saved[1] / saved[0]) / math.log(lengths[1] / lengths[0])
    values = {"short": plain(lengths[0]), "long": plain(lengths[1]), "power": f"{power:.2f}"}
    values |= {"less": plain(saved[0]), "more": plain(saved[1])}
    return [Said(f"attention.{'quadratic' if power >= QUADRATIC else 'below_quadratic'}", [short, long], values)]


def _removed(rows: Sequence[Row]) -> list[Said]:
    """What tiles save, at the longest that both were measured at."""
    saved = by(where(rows, **{"pass": "forward"}), "length", "channels", "dtype", "way")
    shapes = [key[:3] for key in saved if key[3] == "plain" and (*key[:3], "flash_torch") in saved]
    if not shapes:
        return []
    shape = max(shapes, key=lambda key: number_in(saved[(*key, "plain")], "length") or 0)
    pair = [saved[(*shape, way)] for way in ("plain", "flash_torch")]
    whole, tiled = (number_in(row, "saved_mb") for row in pair)
    if not whole or tiled is None:
        return []
    key = "attention.removed" if tiled < whole / 2 else "attention.not_removed"
    return [Said(key, pair, {"length": str(shape[0]), "plain": plain(whole), "tiled": plain(tiled)})]


def compiled(rows: Sequence[Row]) -> list[Said]:
    """2.2a."""
    return _against(rows, "compiled", "compiled.attention", ("forward", "backward"))


def forward(rows: Sequence[Row]) -> list[Said]:
    """3.1: our kernels are right, with which tiles, and hold as much as they should."""
    return [*_right(rows, ("forward",)), *_removed(rows)]


def backward(rows: Sequence[Row]) -> list[Said]:
    """3.2."""
    return _right(rows, ("backward", "both"))


def _right(rows: Sequence[Row], passes: tuple[str, ...]) -> list[Said]:
    said = []
    for way in ("flash_torch", "flash_triton"):
        found = [row for row in where(rows, way=way, **{"pass": passes}) if row.reference_error is not None]
        for dtype in dict.fromkeys(row.dtype for row in found):
            same = where(found, dtype=dtype)
            error = max(row.reference_error or 0 for row in same)
            tiles = ", ".join(dict.fromkeys(str(column(row, "tiles")) for row in same if column(row, "tiles")))
            key = f"flash.{'right' if error <= TOLERANCE[dtype] else 'wrong'}{'' if tiles else '_untiled'}"
            values = {"way": f"`{way}`", "type": dtype, "error": f"{error:.1e}", "tiles": tiles}
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
    """A way's times beside those of plain attention, and their ratio at the longest of both."""
    times = by(where(rows, way=("plain", way)), "length", "channels", "dtype", "way", "pass")
    cells, used, last = [], [], {}
    for length, width, dtype in dict.fromkeys(name[:3] for name in times):
        pairs = [[times.get((length, width, dtype, one, each)) for one in ("plain", way)] for each in passes]
        known = [row for pair in pairs for row in pair if row is not None]
        if len(known) < 2 * len(passes):
            continue
        used += known
        for index, each in enumerate(passes):
            last[each] = (known[2 * index + 1].mean or 0) / (known[2 * index].mean or 1)
        tiles = str(column(known[1], "tiles") or "")
        cells.append([str(length), str(width), str(dtype), *(spread(row) for row in known), tiles])
    if not used:
        return []
    headings = ["length", "width", "type", *(f"{each}_{one}" for each in passes for one in ("plain", "way")), "tiles"]
    listed = ", ".join(f"{each} {plain(ratio)}" for each, ratio in last.items())
    side = "faster" if max(last.values()) < 1 else "slower" if min(last.values()) > 1 else "both"
    values = {"way": f"`{way}`", "ratios": listed, "length": column(used[-1], "length")}
    return [Said(f"{key}.{side}", used, {**values, "device": used[-1].device}, Grid(headings, cells, keys=0))]
