"""Section 1.2 of the questions: which kernels a model's step spends its time in, at the last size and context."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import Grid, Said, column, number_in, place, where
from dynbench.experiment.assignment.model_answers import CLOSE, plain

NOTABLE = 0.02
"""Share of a phase from which a kind of kernel counts."""
MATMUL = "matmul"


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
