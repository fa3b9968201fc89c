"""Section 1.2 of the questions: which kernels a model's step spends its time in, at the last size and context."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import Grid, Said, column, number_in, where
from dynbench.experiment.assignment.model_answers import CLOSE, plain

NOTABLE = 0.02
"""Share of a phase from which a kind of kernel counts."""
MATMUL = "matmul"


def _last(rows: Sequence[Row], phase: str, part: str) -> list[Row]:
    """The rows of a phase's parts, of the last case in fp32 that has any."""
    found = where(rows, phase=phase, part=part, dtype="float32")
    return [row for row in found if row.case == found[-1].case]


def _about(row: Row) -> dict[str, object]:
    return {"size": column(row, "size"), "context": column(row, "context"), "device": row.device}


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
    return [Said(f"kernels.{'same' if names[0] == names[1] else 'other'}", [first, trained], values)]


def others(rows: Sequence[Row]) -> list[Said]:
    """1.2c."""
    kinds = [row for row in _last(rows, "forward", "kind") if number_in(row, "share") is not None]
    beside = [row for row in kinds if column(row, "kernel") != MATMUL and (number_in(row, "share") or 0) >= NOTABLE]
    if not kinds:
        return []
    cells = [[str(column(row, "kernel")), plain(row.mean), f"{_percent(number_in(row, 'share'))} %"] for row in kinds]
    values = _about(kinds[0]) | {"kinds": ", ".join(str(column(row, "kernel")) for row in beside)}
    key = "kernels.beside" if beside else "kernels.none_beside"
    return [Said(key, kinds, values, Grid(("kind", "time", "share"), cells))]


def matmul(rows: Sequence[Row]) -> list[Said]:
    """1.2d."""
    shares = {phase: _share(rows, phase) for phase in ("inference", "step")}
    found = {phase: each for phase, each in shares.items() if each is not None}
    if len(found) < 2:
        return []
    (first, inference), (second, step) = found["inference"], found["step"]
    key = "falls" if step < (1 - CLOSE / 2) * inference else "rises" if step > (1 + CLOSE / 2) * inference else "stays"
    values = {**_about(first), "inference": _percent(inference), "step": _percent(step)}
    return [Said(f"kernels.{key}", [first, second], values)]


def _share(rows: Sequence[Row], phase: str) -> tuple[Row, float] | None:
    for row in _last(rows, phase, "kind"):
        share = number_in(row, "share")
        if column(row, "kernel") == MATMUL and share is not None:
            return row, share
    return None


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
    return f"{100 * (share or 0):.0f}"
