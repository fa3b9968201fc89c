"""Sections 1 to 3 of the questions: a model's step, its kernels, half precision, its memory, and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

from dynbench.bench.base import Row
from dynbench.bench.precision import HALF, PARTS, SUMS
from dynbench.experiment.assignment.rows import CLOSE, Result, Rows, Statement, amount, column, key, number, ratio, side
from dynbench.report import percent

NOTABLE = 0.02
"""Share of a phase from which a kind of kernel counts."""
MATMUL = "kinds.matmul"
MODEL = ("size", "context")
PASSES = ("forward", "backward", "both")
PHASES = ("forward", "forward_saved", "step")
BOTH = ("float32", "bfloat16")
QUESTION_MB = 4 * 4 * 512 * 2560 / 1e6
"""MB of the residual stream of the model in the question: 4 B x batch x context x width."""
FLASH = ("flash_torch", "flash_compiled", "flash_triton")
SHAPE = ("length", "channels")
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
QUADRATIC = 1.7
"""Power of the length from which growth counts as quadratic; what is linear keeps it below 2."""


def script(rows: Rows) -> Result:
    """1.1a."""
    if found := _warm(rows):
        yield Statement("model_script", found, sizes=found.distinct("size"))


def _warm(rows: Rows) -> Rows:
    """Of a model's phases, those with the most iterations left out."""
    measured = rows.where(phase=("forward", "backward", "optimizer", "step"))
    return measured.where(warmup=max((amount(row, "warmup") for row in measured), default=0))


def by_size(rows: Rows) -> Result:
    """1.1b."""
    if found := _warm(rows).where(compiled=0, dtype="float32").pivot(MODEL, phase=("forward", "backward")):
        worst = max(amount(row, "sd") / (row.mean or 1) for row in found.rows)
        times = max(ratio(backward, forward) for forward, backward in found.values())
        case = "steady" if worst <= CLOSE else "noisy"
        yield Statement("model_phases", found.rows, case, worst=worst, times=times, lines=found.lines)


def warmup(rows: Rows) -> Result:
    """1.1c: the first case's step with fewer of its first iterations left out."""
    steps = rows.where(phase="step", compiled=0)
    first = steps.like(steps[0], "case") if steps else steps
    found = {amount(row, "warmup"): row for row in first}
    counts = sorted(found)
    if len(counts) > 1 and counts[0] == 0:
        times = {count: ratio(found[count], found[counts[-1]]) for count in counts}
        slow = [count for count in counts if times[count] > 1 + CLOSE]
        listed = [(f"{count:g}:", found[count], "ms") for count in counts]
        values = {"times": times[0], "most": counts[-1], "fewer": counts[1:-1], "too_few": slow[1:]}
        yield Statement("warmup", first, "matters" if 0 in slow else "none", listed=listed, **values)


def timer(rows: Rows) -> Result:
    """1.2a."""
    if used := rows.where(phase="forward", dtype="float32").pivot(("case",), part=("total", "timer")).last:
        alike = abs(ratio(used[1], used[0]) - 1) <= CLOSE
        yield Statement("kernels_timer", used, "agree" if alike else "differ")


def _last(rows: Rows, phase: str, part: str) -> Rows:
    """The rows of a phase's parts, of the last case in fp32 that has any."""
    found = rows.where(phase=phase, part=part, dtype="float32")
    return found.like(found[-1], "case") if found else found


def most(rows: Rows) -> Result:
    """1.2b."""
    forward, both = (_last(rows, phase, "kernel") for phase in ("forward", "forward and backward"))
    if forward and both:
        used = [max(each, key=key("mean")) for each in (forward, both)]
        names = {column(row, "kernel") for row in used}
        yield Statement("kernels_most", used, "same" if len(names) == 1 else "other")


def others(rows: Rows) -> Result:
    """1.2c."""
    if found := _kinds(rows, "forward"):
        beside = [kind for kind, row in found.items() if kind != MATMUL and amount(row, "share") >= NOTABLE]
        lines = [[kind, row.mean, percent(amount(row, "share"))] for kind, row in found.items()]
        yield Statement("kernels_beside", list(found.values()), beside=beside, lines=lines)


def _kinds(rows: Rows, phase: str) -> dict[str, Row]:
    """The rows of a phase by key of the kind's name, the largest share first."""
    found = [row for row in _last(rows, phase, "kind") if number(row, "share") is not None]
    found.sort(key=key("share"), reverse=True)
    return {f"kinds.{column(row, 'kernel')}": row for row in found}


def matmul(rows: Rows) -> Result:
    """1.2d: the share of every kind at inference and in a step, the largest first, and whose grows most."""
    first, second = (_kinds(rows, phase) for phase in ("inference", "step"))
    known = [{kind: amount(row, "share") for kind, row in found.items()} for found in (first, second)]
    if MATMUL in first and MATMUL in second:
        shares = {kind: [each.get(kind, 0.0) for each in known] for kind in first | second}
        inference, step = shares[MATMUL]
        case = "rises" if step > (1 + CLOSE / 2) * inference else "stays"
        case = "falls" if step < (1 - CLOSE / 2) * inference else case
        most = max(shares, key=lambda kind: shares[kind][1] - shares[kind][0])
        values = {"inference": inference, "step": step, "before": shares[most][0], "after": shares[most][1]}
        lines = [[kind, *map(percent, pair)] for kind, pair in shares.items()]
        used = [*first.values(), *second.values()]
        yield Statement("kernels_matmul", used, case, most=most, lines=lines, **values)


def softmax(rows: Rows) -> Result:
    """1.2e."""
    if used := _last(rows, "forward", "range").pivot((), kernel=("softmax", "scores", "values")).last:
        flops, times = ([amount(row, name) for row in used] for name in ("flops", "mean"))
        if products := flops[1] + flops[2]:
            time, work = times[0] / (times[1] + times[2]), flops[0] / products
            yield Statement("softmax", used, "slow" if time > work else "cheap", time=time, flops=work)


def sums(rows: Rows) -> Result:
    """1.3."""
    if used := rows.where(study="sum").pivot((), case=[f"sum: {label}" for label in SUMS]).last:
        full, half, half_terms, cast = (amount(row, "reference_error") for row in used)
        case = "expected" if full <= half_terms <= half else "other"
        alike = abs(half_terms - cast) <= CLOSE * max(half_terms, cast)
        lines = [[f"sums.{at}", column(row, "shown"), row.reference_error] for at, row in enumerate(used)]
        yield Statement("half_sums", used, case, cast_alike=alike, lines=lines)


def types(rows: Rows) -> Result:
    """1.4a."""
    found = rows.where(study="type")
    named = {(row.dtype, row.case.split(": ")[-1]): row for row in found}
    halves = [half for half in HALF if all((half, part) in named for part in PARTS)]
    if halves:
        shown = {each: column(row, "shown") for each, row in named.items() if each[0] in halves}
        lines = [[f"parts.{part}", *(shown.get((half, part)) for half in HALF)] for part in PARTS]
        norm = named[halves[0], "layer norm"]
        yield Statement("autocast_types", found, lines=lines)
        yield Statement("autocast_norm", [norm], _norm(norm))


def _norm(row: Row) -> str:
    """Whether autocast computed a layer norm in full precision or in half."""
    return "full" if column(row, "shown") == "float32" else "half"


def layer_norm(rows: Rows) -> Result:
    """1.4b: what is sensitive, and what bf16 changes, by what autocast does and what half sums lose."""
    norms = [row for row in rows.where(study="type") if row.case.endswith(": layer norm")]
    lost = rows.where(study="sum", case="sum: terms and sum in fp16")
    if norms and lost:
        yield Statement("norm_sensitive", lost)
        for norm in Rows(norms).where(dtype="bfloat16")[-1:]:
            yield Statement("norm_bf16", [norm], _norm(norm))


def mixed(rows: Rows) -> Result:
    """1.4c: times of mixed over those of full precision, by size."""
    found = _warm(rows).where(compiled=0).pivot(MODEL, phase=("forward", "backward"), dtype=BOTH)
    pairs = [(each[1::2], each[::2]) for each in found.values()]
    totals = [[sum(amount(row, "mean") for row in each) for each in pair] for pair in pairs]
    ratios = [new / (old or 1) for new, old in totals]
    if found:
        of_sizes = list({size: each for (size, _), each in zip(found, ratios, strict=True)}.values())
        first, last = of_sizes[0], of_sizes[-1]
        trend = "falls" if last < (1 - CLOSE) * first else "rises" if last > (1 + CLOSE) * first else "flat"
        ends = {"least": min(ratios), "most": max(ratios), "first": first, "last": last}
        values = {"trend": trend if len(of_sizes) > 1 else None, "sizes": found.rows.distinct("size"), **ends}
        lines = [[*line, each] for line, each in zip(found.lines, ratios, strict=True)]
        yield Statement("mixed_precision", found.rows, side(pairs), lines=lines, **values)


def phases(rows: Rows) -> Result:
    """1.5a: whether the phases' peaks are apart, at the longest context."""
    if used := rows.where(quantity="peak", dtype="float32").pivot(MODEL, phase=PHASES).last:
        apart = all(ratio(high, low, "p50") > 1 + CLOSE for low, high in pairwise(used))
        yield Statement("memory_phases", used, "apart" if apart else "alike")


def by_context(rows: Rows) -> Result:
    """1.5b."""
    if found := rows.where(quantity="peak", dtype="float32").pivot(MODEL, phase=("forward", "step")):
        longest = found.rows[-1]
        same = found.rows.where(phase="step").like(longest, "size")
        times = ratio(longest, same[0], "p50") if len(same) > 1 else None
        lines = [[*shape, *(row.p50 for row in used)] for shape, used in found.items()]
        yield Statement("memory_contexts", found.rows, times=times, shortest=column(same[0], "context"), lines=lines)


def mixed_memory(rows: Rows) -> Result:
    """1.5c."""
    if found := rows.where(quantity="peak").pivot(MODEL, phase=("forward", "step"), dtype=BOTH):
        ratios = [ratio(half, full, "p50") for _, _, full, half in found.values()]
        alike = all(abs(each - 1) <= 2 * CLOSE for each in ratios)
        case = "little" if alike else "less" if min(ratios) < 1 - 2 * CLOSE else "more"
        lines = [[*shape, *(row.p50 for row in used)] for shape, used in found.items()]
        yield Statement("memory_mixed", found.rows, case, least=min(ratios), most=max(ratios), lines=lines)


def residual(rows: Rows) -> Result:
    """1.5d: by formula, beside what was measured."""
    found = [row for row in rows.where(quantity="residual", dtype="float32") if amount(row, "formula_mb")]
    for row in found[-1:]:
        holds = abs(amount(row, "p50") / amount(row, "formula_mb") - 1) <= CLOSE
        yield Statement("residual", [row], "holds" if holds else "off", of_question=QUESTION_MB)


def largest(rows: Rows) -> Result:
    """1.5e: of a full step of the last model at the longest context."""
    steps = rows.where(quantity="tensor", phase="step", dtype="float32")
    if steps:
        found = sorted(steps.like(steps[-1], *MODEL), key=key("p50"), reverse=True)
        lines = [[column(row, name) for name in ("operator", "stack", "p50", "times")] for row in found]
        yield Statement("largest_tensors", found, lines=lines)


def by_length(rows: Rows) -> Result:
    """2.1: plain attention's passes, memory before backward, what runs out, how it grows, how to be rid of it."""
    plain = rows.where(way="plain")
    if found := plain.pivot((*SHAPE, "dtype"), **{"pass": ("forward", "backward")}):
        lines = [[*shape[:2], *pair, number(pair[0], "saved_mb")] for shape, pair in found.items()]
        yield Statement("plain_attention", plain, lines=lines)
        out = [row for row in rows if row.status == "oom" and column(row, "way") == "plain"]
        end = min(out, key=_shape) if out else max(plain, key=_shape)
        tiled = rows.where(way="flash_torch").like(end, *SHAPE, "dtype")[:1] if out else []
        peaks = {"peak": number(end, "peak_mb"), "tiled": number(tiled[0], "peak_mb") if tiled else None}
        yield Statement("attention_exhausted", [end, *tiled], "out" if out else "fits", **peaks)
        yield from _growth(plain)
        yield from _tiled(rows, "attention_tiled")


def _shape(row: Row) -> tuple[float, ...]:
    return tuple(amount(row, name) for name in SHAPE)


def _growth(plain: Rows) -> Result:
    """How what is held before backward grows with the length, at the largest width."""
    forward = Rows(row for row in plain.where(**{"pass": "forward"}) if amount(row, "saved_mb"))
    same = sorted(forward.like(max(forward, key=_shape), "channels", "dtype"), key=_shape) if forward else []
    if same and _shape(same[0]) != _shape(same[-1]):
        more, longer = (ratio(same[-1], same[0], name) for name in ("saved_mb", "length"))
        power = math.log(more) / math.log(longer)
        case = "quadratic" if power >= QUADRATIC else "below_quadratic"
        yield Statement("attention_growth", [same[0], same[-1]], case, power=power)


def _tiled(rows: Rows, block: str) -> Result:
    """What tiles save, at the largest shape that both were measured at."""
    if found := rows.where(**{"pass": "forward"}).pivot((*SHAPE, "dtype"), way=("plain", "flash_torch")):
        pair = max(found.values(), key=lambda pair: _shape(pair[0]))
        plain, tiled = (number(row, "saved_mb") for row in pair)
        if plain and tiled is not None:
            yield Statement(block, pair, "less" if tiled < plain / 2 else "not")


def compiled(rows: Rows) -> Result:
    """2.2a."""
    yield from against_plain(rows, ("compiled",), ("forward", "backward"))


def compiled_model(rows: Rows) -> Result:
    """2.2b."""
    if found := _warm(rows).where(dtype="float32").pivot(MODEL, phase=("forward", "step"), compiled=(0, 1)):
        ratios = [ratio(new, old) for _, _, old, new in found.values()]
        case = side((each[3:], each[2:3]) for each in found.values())
        yield Statement("compiled_model", found.rows, case, least=min(ratios), most=max(ratios), lines=found.lines)


def forward(rows: Rows) -> Result:
    """3.1: our kernels are right, with which tiles, and hold as much as they should."""
    yield from errors(rows, (FLASH[0], FLASH[2]), passes=("forward",))
    yield from _tiled(rows, "flash_tiled")


def errors(rows: Rows, ways: Sequence[str] = FLASH, passes: tuple[str, ...] = ("backward", "both")) -> Result:
    """3.1, 3.2, 3.4: the largest error of each of our kernels in each type."""
    for way, (dtype, limit) in product(ways, TOLERANCE.items()):
        timed = rows.where(way=way, dtype=dtype, **{"pass": passes})
        used = Rows(row for row in timed if row.reference_error is not None or column(row, "not_finite"))
        if used:
            error = max(math.inf if column(row, "not_finite") else amount(row, "reference_error") for row in used)
            values = {"error": f"{error:.1e}", "limit": f"{limit:.0e}", "tiles": used.distinct("tiles")}
            case, gradients = "right" if error <= limit else "wrong", "forward" not in passes
            yield Statement("flash_errors", used, case, passes=len(used), gradients=gradients, **values)


def recomputation(rows: Rows) -> Result:
    """3.2: our backward passes are right, and what the compiled one takes beside the one in tiles."""
    yield from errors(rows)
    if found := rows.where(**{"pass": "backward"}).pivot(("dtype", *SHAPE), way=FLASH[:2]):
        pair = max(found.values(), key=lambda pair: _shape(pair[0]))
        case = side([(pair[1:], pair[:1])])
        yield Statement("compiled_backward", pair, case, times=ratio(pair[1], pair[0]))


def triton(rows: Rows) -> Result:
    """3.4."""
    yield from errors(rows, FLASH[2:])
    yield from against_plain(rows, FLASH[2:], ("backward",))


def against_plain(rows: Rows, ways: Sequence[str] = FLASH, passes: Sequence[str] = PASSES) -> Result:
    """2.2a, 3.3, 3.4: ways beside plain attention, their ratios at the largest shape, and where others differ."""
    for way in ways:
        pair = (way, "plain")
        found = rows.where(way=pair).pivot(("dtype", *SHAPE), **{"pass": passes, "way": pair})
        pairs = {shape: [*zip(each[::2], each[1::2], strict=True)] for shape, each in found.items()}
        largest = max(pairs.values(), key=lambda each: _shape(each[0][0]), default=[])
        case = side(([new], [old]) for new, old in largest)
        slower = [new for each in pairs.values() for new, old in each if ratio(new, old) > 1 and case == "faster"]
        columns = [(each, one) for each in PASSES for one in ("plain", way)]
        cells = [[*map(each.by("pass", "way").get, columns), column(each[0], "tiles")] for each in found.values()]
        values = {
            "ratios": [(f"passes.{name}", ratio(*pair)) for name, pair in zip(passes, largest, strict=False)],
            "slower": len(slower),
            "pairs": len(found.rows) // 2,
            "longest": column(max(slower, key=_shape), "length") if slower else None,
            "lines": [[*shape, *line] for shape, line in zip(found, cells, strict=True)],
        }
        if largest:
            yield Statement("against_plain", [*largest[0], *found.rows], case, **values)
