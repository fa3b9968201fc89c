"""Sections 1 and 2.2 of the questions: a model's step, its kernels, half precision, and what compiling changes."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.bench.base import Row
from dynbench.bench.precision import HALF, PARTS, SUMS
from dynbench.experiment.assignment.evidence import Grid, Said, by, column, number_in, place, side, where
from dynbench.report import number

NOTABLE = 0.02
"""Share of a phase from which a kind of kernel counts."""
MATMUL = "matmul"
CLOSE = 0.1
"""Part by which two times may differ and count as alike."""


def _last(rows: Sequence[Row], phase: str, part: str) -> list[Row]:
    """The rows of a phase's parts, of the last case in fp32 that has any."""
    found = where(rows, phase=phase, part=part, dtype="float32")
    return [row for row in found if row.case == found[-1].case]


def _about(row: Row) -> dict[str, object]:
    return {"size": column(row, "size"), "context": column(row, "context"), "device": place(row)}


def timer(rows: Sequence[Row]) -> list[Said]:
    """1.2a."""
    total, by_timer = (_last(rows, "forward", part) for part in ("total", "timer"))
    if not total or not by_timer:
        return []
    ratio = (by_timer[0].mean or 0) / (total[0].mean or 1)
    values = {**_about(total[0]), "kernels": plain(total[0].mean), "timer": plain(by_timer[0].mean)}
    return [Said(f"kernels.{'agree' if abs(ratio - 1) <= CLOSE else 'differ'}", [total[0], by_timer[0]], values)]


def most(rows: Sequence[Row]) -> list[Said]:
    """1.2b."""
    forward, both = (_last(rows, phase, "kernel") for phase in ("forward", "forward and backward"))
    if not forward or not both:
        return []
    first, trained = (max(each, key=lambda row: row.mean or 0) for each in (forward, both))
    names = [f"`{column(row, 'kernel')}`" for row in (first, trained)]
    values = {**_about(first), "kernel": names[0], "calls": plain(number_in(first, "calls")), "other": names[1]}
    values["share"] = _percent(number_in(first, "share"))
    said = [Said(f"kernels.{'same' if names[0] == names[1] else 'other'}", [first, trained], values)]
    return [*said, Said("kernels.operations", [first])] if first.device == "cpu" else said


def others(rows: Sequence[Row]) -> list[Said]:
    """1.2c."""
    kinds = [row for row in _last(rows, "forward", "kind") if number_in(row, "share") is not None]
    beside = [row for row in kinds if column(row, "kernel") != MATMUL and (number_in(row, "share") or 0) >= NOTABLE]
    if not kinds:
        return []
    cells = [[_kind(row), plain(row.mean), f"{_percent(number_in(row, 'share'))} %"] for row in kinds]
    values = _about(kinds[0]) | {"kinds": [_kind(row) for row in beside]}
    key = "kernels.beside" if beside else "kernels.none_beside"
    return [Said(key, kinds, values, Grid(("kind", "time", "share"), cells))]


def matmul(rows: Sequence[Row]) -> list[Said]:
    """1.2d: the share of every kind at inference and in a step, and whose grows most."""
    first, second = (_shares(rows, phase) for phase in ("inference", "step"))
    matmul = f"kinds.{MATMUL}"
    if matmul not in first or matmul not in second:
        return []
    kinds = list(dict.fromkeys((*first, *second)))
    shares = {kind: [number_in(found[kind], "share") or 0 if kind in found else 0 for found in (first, second)]
              for kind in kinds}  # fmt: skip
    inference, step = shares[matmul]
    key = "falls" if step < (1 - CLOSE / 2) * inference else "rises" if step > (1 + CLOSE / 2) * inference else "stays"
    most = max(kinds, key=lambda kind: shares[kind][1] - shares[kind][0])
    values = {**_about(first[matmul]), "inference": _percent(inference), "step": _percent(step), "most": [most]}
    values |= {"before": _percent(shares[most][0]), "after": _percent(shares[most][1])}
    cells = [[kind, *(f"{_percent(share)} %" for share in shares[kind])] for kind in kinds]
    used = [*first.values(), *second.values()]
    return [Said(f"kernels.{key}", used, values, Grid(("kind", "inference_share", "step_share"), cells))]


def _shares(rows: Sequence[Row], phase: str) -> dict[str, Row]:
    """The rows of a phase by kind, the largest share first."""
    found = [row for row in _last(rows, phase, "kind") if number_in(row, "share") is not None]
    return {_kind(row): row for row in sorted(found, key=lambda row: -(number_in(row, "share") or 0))}


def _kind(row: Row) -> str:
    """Key of the kind's name."""
    return f"kinds.{column(row, 'kernel')}"


def softmax(rows: Sequence[Row]) -> list[Said]:
    """1.2e."""
    ranges = {str(column(row, "kernel")): row for row in _last(rows, "forward", "range")}
    if not {"scores", "softmax", "values"} <= set(ranges):
        return []
    used = [ranges[name] for name in ("softmax", "scores", "values")]
    flops = [number_in(row, "flops") or 0 for row in used]
    if not flops[1] + flops[2]:
        return []
    time = (used[0].mean or 0) / ((used[1].mean or 0) + (used[2].mean or 0))
    work = flops[0] / (flops[1] + flops[2])
    values = {**_about(used[0]), "time": plain(time), "flops": plain(work)}
    return [Said(f"kernels.softmax_{'slow' if time > work else 'cheap'}", used, values)]


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0):.1f}"


def plain(value: float | None) -> str:
    """A number of a sentence or cell; empty for none."""
    return number(value) or ""


def spread(row: Row) -> str:
    """Mean and standard deviation, ms."""
    return f"{plain(row.mean)} ± {plain(row.sd)}" if row.sd is not None else plain(row.mean)


def warm(rows: Sequence[Row]) -> list[Row]:
    """Of a model's phases, those with the most iterations left out."""
    measured = where(rows, phase=("forward", "backward", "optimizer", "step"))
    most = max((number_in(row, "warmup") or 0 for row in measured), default=0)
    return [row for row in measured if number_in(row, "warmup") == most]


def script(rows: Sequence[Row]) -> list[Said]:
    """1.1a."""
    found = warm(rows)
    if not found:
        return []
    first = found[0]
    values = {"sizes": _listed(found, "size"), "batch": column(first, "batch"), "n": first.n}
    return [Said("script", found, {**values, "warmup": plain(number_in(first, "warmup"))})]


def by_size(rows: Sequence[Row]) -> list[Said]:
    """1.1b."""
    found = where(warm(rows), compiled=0, dtype="float32", phase=("forward", "backward"))
    shapes = by(found, "size", "context", "phase")
    sizes = dict.fromkeys((size, context) for size, context, _ in shapes)
    both = [(s, c) for s, c in sizes if (s, c, "forward") in shapes and (s, c, "backward") in shapes]
    if not both:
        return []
    cells = [[str(s), str(c), *(spread(shapes[s, c, each]) for each in ("forward", "backward"))] for s, c in both]
    used = [shapes[s, c, each] for s, c in both for each in ("forward", "backward")]
    worst = max((row.sd or 0) / row.mean for row in used if row.mean)
    grid = Grid(("size", "context", "forward", "backward"), cells)
    ratio = max((shapes[s, c, "backward"].mean or 0) / (shapes[s, c, "forward"].mean or 1) for s, c in both)
    key = "phases.steady" if worst <= CLOSE else "phases.noisy"
    return [Said(key, used, {"worst": f"{100 * worst:.1f}", "ratio": plain(ratio), "n": used[0].n}, grid)]


def warmup(rows: Sequence[Row]) -> list[Said]:
    """1.1c: the first case's step with fewer of its first iterations left out."""
    steps = where(rows, phase="step", compiled=0)
    first = [row for row in steps if row.case == steps[0].case]
    found = {number_in(row, "warmup"): row for row in first}
    counts = sorted(count for count in found if count is not None)
    if len(counts) < 2 or counts[0] != 0:
        return []
    none, most = found[0], found[counts[-1]]
    times = (none.mean or 0) / (most.mean or 1)
    listed = [f"{count:g}: {spread(found[count])} ms" for count in counts]
    key = "warmup.matters" if times > 1 + CLOSE else "warmup.none"
    said = [Said(key, first, {"listed": listed, "times": plain(times), "most": f"{counts[-1]:g}"})]
    between = [count for count in counts[1:-1] if (found[count].mean or 0) > (1 + CLOSE) * (most.mean or 0)]
    if times > 1 + CLOSE and counts[1:-1]:
        names = [f"{count:g}" for count in between or counts[1:-1]]
        said.append(Said(f"warmup.{'few_wrong' if between else 'few_right'}", first, {"counts": names}))
    return said


def sums(rows: Sequence[Row]) -> list[Said]:
    """1.3."""
    found = {row.case.removeprefix("sum: "): row for row in where(rows, study="sum")}
    if set(found) != set(SUMS):
        return []
    full, half, kept, cast = (found[label] for label in SUMS)
    errors = [row.reference_error or 0.0 for row in (full, half, kept, cast)]
    cells = [
        [f"sums.{index}", str(column(row, "shown")), plain(row.reference_error)]
        for index, row in enumerate(found[label] for label in SUMS)
    ]
    said = [Said("sums.all", list(found.values()), grid=Grid(("sum", "value", "off"), cells))]
    order = "expected" if errors[0] <= errors[2] <= errors[1] else "other"
    values = {name: plain(error) for name, error in zip(("full", "half", "kept", "cast"), errors, strict=True)}
    said.append(Said(f"sums.{order}", [full, half, kept], values))
    alike = abs(errors[2] - errors[3]) <= CLOSE * max(errors[2], errors[3])
    return [*said, Said(f"sums.{'cast_alike' if alike else 'cast_differs'}", [kept, cast], values)]


def types(rows: Sequence[Row]) -> list[Said]:
    """1.4a."""
    found = where(rows, study="type")
    named = {(row.dtype, row.case.split(": ")[-1]): row for row in found}
    halves = [half for half in HALF if all((half, part) in named for part in PARTS)]
    if not halves:
        return []
    cells = [[f"parts.{part}", *(str(column(named[half, part], "shown")) for half in halves)] for part in PARTS]
    half = halves[0]
    norm = str(column(named[half, "layer norm"], "shown"))
    own = {"half": half, "norm": norm, "device": place(named[half, "layer norm"])}
    grid = Grid(("part", *(f"under_{each}" for each in halves)), cells, 1 + len(halves))
    key = "types.norm_full" if norm == "float32" else "types.norm_half"
    return [Said("types.all", found, grid=grid), Said(key, [named[half, "layer norm"]], own)]


def layer_norm(rows: Sequence[Row]) -> list[Said]:
    """1.4b: what is sensitive, and what bf16 changes, by what autocast does and what half sums lose."""
    norms = {row.dtype: row for row in where(rows, study="type") if row.case.endswith(": layer norm")}
    lost = [row for row in where(rows, study="sum") if row.case == "sum: terms and sum in fp16"]
    if not norms or not lost:
        return []
    said = [Said("norm.sensitive", lost, {"off": plain(lost[0].reference_error), "shown": column(lost[0], "shown")})]
    bfloat = norms.get("bfloat16")
    if bfloat is not None:
        kept = column(bfloat, "shown")
        key = "norm.bf16_full" if kept == "float32" else "norm.bf16_half"
        said.append(Said(key, [bfloat], {"norm": kept, "device": place(bfloat)}))
    return said


def mixed(rows: Sequence[Row]) -> list[Said]:
    """1.4c: times of mixed over those of full precision, by size; without models, of the toy."""
    found = where(warm(rows), compiled=0, phase=("forward", "backward"))
    times = by(found, "size", "context", "phase", "dtype")
    cells, used, ratios = [], [], {}
    for size, context in dict.fromkeys((key[0], key[1]) for key in times):
        pairs = [
            [times.get((size, context, each, dtype)) for dtype in ("float32", "bfloat16")]
            for each in ("forward", "backward")
        ]
        known = [row for pair in pairs for row in pair if row is not None]
        if len(known) == 4:
            used += known
            ratios[size, context] = (sum(known[i].mean or 0 for i in (1, 3))) / sum(known[i].mean or 1 for i in (0, 2))
            cells.append([str(size), str(context), *(spread(row) for row in known), plain(ratios[size, context])])
    if not ratios:
        return _mixed_toy(rows)
    headings = ("size", "context", "forward_fp32", "forward_bf16", "backward_fp32", "backward_bf16", "of_full")
    compared = [((used[at + 1], used[at + 3]), (used[at], used[at + 2])) for at in range(0, len(used), 4)]
    values = {"least": plain(min(ratios.values())), "most": plain(max(ratios.values())), "device": place(used[0])}
    said = [Said(f"mixed.{side(compared)}", used, values, Grid(headings, cells))]
    last = {size: ratio for (size, _), ratio in ratios.items()}
    if len(last) < 2:
        return [*said, Said("mixed.no_trend", used, {"sizes": _listed(used, "size")})]
    first, *_, end = last.values()
    trend = "falls" if end < (1 - CLOSE) * first else "rises" if end > (1 + CLOSE) * first else "flat"
    return [*said, Said(f"mixed.{trend}", used, {"first": plain(first), "last": plain(end)})]


def _mixed_toy(rows: Sequence[Row]) -> list[Said]:
    times = {row.dtype: row for row in where(rows, study="time")}
    full, half = times.get("float32"), times.get("bfloat16")
    if full is None or half is None or not full.mean or not half.mean:
        return []
    ratio = half.mean / full.mean
    key = f"mixed.toy_{'faster' if ratio < 1 else 'slower'}"
    values = {"full": spread(full), "half": spread(half), "ratio": plain(ratio), "device": place(half)}
    return [Said(key, [full, half], values)]


def compiled_model(rows: Sequence[Row]) -> list[Said]:
    """2.2b."""
    found = where(warm(rows), dtype="float32", phase=("forward", "step"))
    times = by(found, "size", "context", "phase", "compiled")
    cells, used, ratios = [], [], []
    for size, context in dict.fromkeys((key[0], key[1]) for key in times):
        known = [times.get((size, context, each, way)) for each in ("forward", "step") for way in (0, 1)]
        whole = [row for row in known if row is not None]
        if len(whole) == 4:
            used += whole
            ratios.append((whole[3].mean or 0) / (whole[2].mean or 1))
            cells.append([str(size), str(context), *(spread(row) for row in whole)])
    if not used:
        return []
    headings = ("size", "context", "forward_eager", "forward_compiled", "step_eager", "step_compiled")
    pairs = [((used[at + 3],), (used[at + 2],)) for at in range(0, len(used), 4)]
    values = {"least": plain(min(ratios)), "most": plain(max(ratios)), "device": place(used[0])}
    return [Said(f"compiled.{side(pairs)}", used, values, Grid(headings, cells))]


def _listed(rows: Sequence[Row], name: str) -> list[str]:
    return list(dict.fromkeys(f"`{column(row, name)}`" for row in rows))
