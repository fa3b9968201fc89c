"""Sections 1.5 and 5.2 of the questions: a model's memory by phase, and what dividing the optimizer's state saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dynbench.bench.base import Row
from dynbench.experiment.assignment import sharing_answers
from dynbench.experiment.assignment.evidence import Grid, Said, by, column, number_in, side, where
from dynbench.experiment.assignment.model_answers import CLOSE, plain, spread
from dynbench.experiment.assignment.sharing_answers import WAYS

PHASES = ("forward", "forward_saved", "step")
MOMENTS = ("init", "before", "after")
PARTS = ("parameters", "gradients", "optimizer", "rest", "total", "peak")
ASKED = 4 * 4 * 512 * 2560 / 1e6
"""MB of the residual stream of the model that is asked for: 4 B x batch x context x width."""

Peaks = Mapping[tuple[object, ...], Row]


def _peaks(rows: Sequence[Row]) -> Peaks:
    """By size, context, type and phase."""
    return by(where(rows, quantity="peak", phase=PHASES), "size", "context", "dtype", "phase")


def _models(peaks: Peaks, dtypes: Sequence[str], phases: Sequence[str]) -> list[tuple[object, object]]:
    """Sizes and contexts that have a peak of each type and phase."""
    named = dict.fromkeys((key[0], key[1]) for key in peaks)
    return [each for each in named if all((*each, dtype, phase) in peaks for dtype in dtypes for phase in phases)]


def phases(rows: Sequence[Row]) -> list[Said]:
    """1.5a: whether the phases' peaks are apart, at the longest context."""
    peaks = _peaks(rows)
    models = _models(peaks, ("float32",), PHASES)
    if not models:
        return []
    size, context = models[-1]
    used = [peaks[size, context, "float32", phase] for phase in PHASES]
    heights = [row.p50 or 0 for row in used]
    apart = all(high > (1 + CLOSE) * low for low, high in pairwise(heights))
    values = {"size": size, "context": context, **dict(zip(PHASES, map(plain, heights), strict=True))}
    return [Said(f"memory.{'apart' if apart else 'alike'}", used, values)]


def by_context(rows: Sequence[Row]) -> list[Said]:
    """1.5b."""
    peaks = _peaks(rows)
    models = _models(peaks, ("float32",), ("forward", "step"))
    if not models:
        return []
    used = [peaks[size, context, "float32", phase] for size, context in models for phase in ("forward", "step")]
    cells = [
        [str(size), str(context), *(plain(peaks[size, context, "float32", each].p50) for each in ("forward", "step"))]
        for size, context in models
    ]
    first, last = used[1].p50 or 1, used[-1].p50 or 0
    values = {"size": models[-1][0], "short": models[0][1], "long": models[-1][1], "times": plain(last / first)}
    key = "memory.contexts" if len(models) > 1 else "memory.one_context"
    return [Said(key, used, values, Grid(("size", "context", "forward_mb", "step_mb"), cells, 1))]


def mixed(rows: Sequence[Row]) -> list[Said]:
    """1.5c."""
    peaks = _peaks(rows)
    models = _models(peaks, ("float32", "bfloat16"), ("forward", "step"))
    if not models:
        return []
    kinds = [(phase, dtype) for phase in ("forward", "step") for dtype in ("float32", "bfloat16")]
    found = {model: [peaks[(*model, dtype, phase)] for phase, dtype in kinds] for model in models}
    cells = [[str(size), str(context), *(plain(row.p50) for row in found[size, context])] for size, context in models]
    ratios = [(rows_of[3].p50 or 0) / (rows_of[2].p50 or 1) for rows_of in found.values()]
    key = "little" if all(abs(each - 1) <= 2 * CLOSE for each in ratios) else "less" if max(ratios) < 1 else "more"
    values = {"least": plain(min(ratios)), "most": plain(max(ratios))}
    headings = ("size", "context", *(f"{phase}_mb_{dtype}" for phase, dtype in kinds))
    used = [row for rows_of in found.values() for row in rows_of]
    return [Said(f"memory.mixed_{key}", used, values, Grid(headings, cells, 1))]


def residual(rows: Sequence[Row]) -> list[Said]:
    """1.5d: by formula, beside what was measured."""
    found = [row for row in where(rows, quantity="residual", dtype="float32") if number_in(row, "formula_mb")]
    if not found:
        return []
    row = found[-1]
    formula = number_in(row, "formula_mb") or 1
    holds = abs((row.p50 or 0) / formula - 1) <= CLOSE
    values = {"size": column(row, "size"), "batch": column(row, "batch"), "context": column(row, "context")}
    values |= {"formula": plain(formula), "measured": plain(row.p50), "asked": plain(ASKED)}
    return [Said(f"memory.residual_{'holds' if holds else 'off'}", [row], values)]


def largest(rows: Sequence[Row]) -> list[Said]:
    """1.5e: of a full step at the longest context."""
    steps = where(rows, quantity="tensor", phase="step", dtype="float32")
    if not steps:
        return []
    longest = max(number_in(row, "context") or 0 for row in steps)
    found = sorted(
        (row for row in steps if (number_in(row, "context") or 0) == longest), key=lambda row: -(row.p50 or 0)
    )
    cells = [
        [*(str(column(row, name) or "") for name in ("operator", "stack")), plain(row.p50), str(column(row, "times"))]
        for row in found
    ]
    values = {"size": column(found[0], "size"), "context": f"{longest:g}", "most": plain(found[0].p50)}
    values["operator"] = f"`{column(found[0], 'operator')}`"
    return [Said("memory.largest", found, values, Grid(("operator", "stack", "mb", "times"), cells, 2))]


def sharded_memory(rows: Sequence[Row]) -> list[Said]:
    """5.2a: by moment and part; of `bench optimizer`, else of a comparison of strategies."""
    found = by(where(rows, quantity="memory", way=WAYS), "size", "dtype", "way", "moment", "part")
    wanted = [(way, moment, part) for way in WAYS for moment in MOMENTS for part in PARTS]
    models = dict.fromkeys(key[:2] for key in found)
    whole = [model for model in models if all((*model, *each) in found for each in wanted)]
    if not whole:
        return sharing_answers.sharded_memory(rows)
    model = _shown(whole)
    held = {each: found[(*model, *each)] for each in wanted}
    cells = [
        [way, f"moments.{moment}", *(plain(held[way, moment, part].p50) for part in PARTS)]
        for way in WAYS
        for moment in MOMENTS
    ]
    kept, shard = (held[way, "after", "optimizer"] for way in WAYS)
    ranks = number_in(shard, "processes") or 1
    share = (kept.p50 or 0) > 0 and abs((shard.p50 or 0) / (kept.p50 or 1) * ranks - 1) <= 2 * CLOSE
    values: dict[str, object] = {"whole": plain(kept.p50), "shard": plain(shard.p50), "ranks": plain(ranks)}
    values |= sharing_answers.beside(*([held[way, "before", part].p50 for way in WAYS] for part in PARTS[:2]))
    grid = Grid(("arm", "moment", *PARTS), cells, 2)
    return [Said(f"sharded.{'share' if share else 'other'}", list(held.values()), values, grid), _in_all(held)]


def _in_all(held: Mapping[tuple[str, str, str], Row]) -> Said:
    """What is held in all before the step, and the peak until then, against those of the whole state."""
    parts = ("total", "peak")
    used = {(part, way): held[way, "before", part] for part in parts for way in WAYS}
    more = [(used[part, "zero1"].p50 or 0) > (used[part, "adamw"].p50 or 0) for part in parts]
    key = "more" if all(more) else "some" if any(more) else "less"
    values = {f"{part}_{way}": plain(row.p50) for (part, way), row in used.items()}
    return Said(f"sharded.{key}", list(used.values()), values)


def sharded_time(rows: Sequence[Row]) -> list[Said]:
    """5.2b: in every type that both were timed in."""
    found = by(where(rows, quantity="time", part=("step", "optimizer")), "size", "dtype", "part", "way")
    models = [key[:2] for key in found if all((*key[:2], "step", way) in found for way in WAYS)]
    same = [model for model in dict.fromkeys(models) if model[0] == _shown(models)[0]]
    if not same:
        return sharing_answers.sharded_time(rows)
    pairs = [(found[(*model, "step", "zero1")], found[(*model, "step", "adamw")]) for model in same]
    cells = [
        [
            str(size),
            str(dtype),
            *(_cell(found.get((size, dtype, part, way))) for part in ("optimizer", "step") for way in WAYS),
        ]
        for size, dtype in same
    ]
    headings = ("size", "type", *(f"{part}_{way}" for part in ("optimizer", "step") for way in WAYS))
    ratios = [(row.dtype, plain((other.mean or 0) / (row.mean or 1))) for row, other in pairs]
    which = side(((row,), (other,)) for row, other in pairs).replace("both", "alike")
    used = [row for row in found.values() if (column(row, "size"), row.dtype) in same]
    return [Said(f"sharded_time.{which}", used, {"ratios": ratios}, Grid(headings, cells, 2))]


def _cell(row: Row | None) -> str:
    return "" if row is None else spread(row)


def _shown(models: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
    """The last model, by size and type, in fp32 where there is one."""
    return next((model for model in reversed(models) if model[1] == "float32"), (*models[-1:], ("", ""))[0])


def sharded_traffic(rows: Sequence[Row]) -> list[Said]:
    """5.2c."""
    pair = _pair(where(rows, quantity="traffic"))
    if not pair or not pair[0].p50:
        return sharing_answers.sharded_traffic(rows)
    return [sharing_answers.traffic(pair, pair[0].p50, pair[1].p50 or 0)]


def _pair(rows: Sequence[Row]) -> list[Row]:
    """The rows of both ways of the last model that has them."""
    found = by(rows, "size", "dtype", "way")
    models = [key[:2] for key in found if all((*key[:2], way) in found for way in WAYS)]
    return [found[(*_shown(models), way)] for way in WAYS] if models else []
