"""What communication cost a run: how long, how much of it waiting, hidden and exposed, how many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import polars as pl

from dynbench.analysis.calls import by_operation
from dynbench.analysis.comparability import fact
from dynbench.analysis.merge import MergedRun, read_merged
from dynbench.analysis.steps import OPTIONAL_MEANS
from dynbench.config.silent import is_like
from dynbench.errors import DynbenchError
from dynbench.runs.columns import COMPRESSES
from dynbench.runs.names import is_part
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run

GRADIENT_BYTES = ("gradient_bytes_raw", "gradient_bytes_wire")
HEADER_BYTES = 580
"""What gloo sends to each other rank for a collective beside its data, at most: 577 were counted of an all-reduce on
two and four ranks, up to 289 of an all-gather, 145 of the others."""
UNCOUNTED_CALLS = 2
"""Collectives of a step beside the strategy's, at most: of what the samples weigh, and of gradients that overflow."""
_PARTS = {
    "compute_ms": ["compute_ms"],
    "sync_ms": ["wait_ms", "exposed_comm_ms"],
    "optimizer_ms": ["optimizer_ms"],
}
"""Of a step, and the columns that each is the sum of."""


def communication_of(merged: MergedRun) -> dict[str, object]:
    """The keys of a summary about communication, for runs that record it; means per rank and step."""
    steps = merged.measured
    found: dict[str, object] = {name: {"mean": _mean(steps, name)} for name in OPTIONAL_MEANS if name in steps.columns}
    if "gradient_bytes_wire" in steps.columns:
        counted = steps.filter(pl.col(COMPRESSES.name)) if COMPRESSES.name in steps.columns else steps
        raw, gradient, wire = (_total(counted, name) or 0.0 for name in (*GRADIENT_BYTES, "bytes_wire"))
        found["compression_ratio"] = _ratio(raw, gradient)
        found["traffic_compression_ratio"] = _ratio(wire - gradient + raw, wire)
    against = against_null(merged)
    if against is not None:
        found |= {"exposed_vs_null_ms": {"mean": against.exposed_ms}, "against_null": asdict(against)}
    if "hidden_comm_ms" not in steps.columns:
        return found
    sent = sent_bytes(merged)
    found |= {
        "comm_ratio": _ratio(_total(steps, "comm_ms"), _total(steps, "step_time_ms_mean")),
        "overlap_fraction": _ratio(_total(steps, "hidden_comm_ms"), _total(steps, "comm_ms")),
        "bytes_sent_ratio": sent.ratio,
        "bytes_sent_reason": None if sent.reason is None else str(sent.reason),
        "bytes_sent_reason_said": None if sent.reason is None else sent.reason.record(),
        "by_operation": [] if merged.calls is None else by_operation(merged.calls, steps["step"], merged.facts.servers),
    }
    return found


@dataclass(frozen=True, slots=True)
class Sent:
    """What a rank sent over what the formulas say, or why that is not known."""

    ratio: float | None = None
    headers: float = 0.0
    """What headers of its messages are of that at most."""
    reason: Phrase | None = None


def sent_bytes(merged: MergedRun) -> Sent:
    """The bytes that the kernel counted held against those of the formulas, over the measured steps that have both."""
    steps = merged.measured
    both = steps.filter(pl.col("bytes_sent").is_not_null()) if "bytes_sent" in steps.columns else steps.clear()
    if not both.height:
        return Sent(reason=Phrase.of("bytes.uncounted"))
    wire, sent, calls = (_total(both, name) or 0.0 for name in ("bytes_wire", "bytes_sent", "collectives"))
    if not wire:
        return Sent(reason=Phrase.of("bytes.none"))
    headers = HEADER_BYTES * (merged.workers - 1) * (calls + UNCOUNTED_CALLS * both.height)
    return Sent(ratio=sent / wire, headers=headers / wire)


@dataclass(frozen=True, slots=True)
class AgainstNull:
    """A step held against the same without communication, which took turns with it in its launch; means, ms."""

    run: str
    """Id of the run without communication."""
    steps: int
    """Measured steps that both have."""
    exposed_ms: float
    """What the step takes more."""
    null_ms: float
    """The step without communication."""
    compute_ms: float
    """What forward and backward passes take more, mean over ranks."""
    sync_ms: float
    """What synchronising takes more, waiting for other ranks among it, mean over ranks."""
    optimizer_ms: float
    """What the optimizer takes more, mean over ranks."""
    other_ms: float
    """What the rest takes more, planning and data among it, mean over ranks."""


def against_null(merged: MergedRun) -> AgainstNull | None:
    """None where the run sends nothing itself, or nothing ran beside it."""
    other = _null_of(merged)
    if other is None:
        return None
    same = merged.blocks.join(other.blocks, on=["first_step", "steps"], suffix="_null")
    steps = int(same["steps"].sum())
    if not steps:
        return None
    with_, without = float(same["time_ms"].sum()) / steps, float(same["time_ms_null"].sum()) / steps
    more = {name: _part(merged, columns) - _part(other, columns) for name, columns in _PARTS.items()}
    rest = _part(merged, ["step_time_ms"]) - _part(other, ["step_time_ms"]) - sum(more.values())
    return AgainstNull(other.run.id, steps, with_ - without, without, **more, other_ms=rest)


def _part(merged: MergedRun, columns: Sequence[str]) -> float:
    return sum(_mean(merged.measured, f"{column}_mean") or 0.0 for column in columns)


def _null_of(merged: MergedRun) -> MergedRun | None:
    silent = silent_run(merged.run)
    try:
        return None if silent is None else read_merged(silent)[0]
    except DynbenchError:  # without a row: as if it had not been
        return None


def silent_run(run: Run) -> Run | None:
    """The run of the same launch that differs in nothing but that its ranks sent nothing; None where none is there."""
    try:
        ids = fact(run.env(), "together.runs")
    except DynbenchError:  # of a run that ended before it was written
        return None
    for other in filter(is_part, map(str, ids if isinstance(ids, list) else ())):
        beside = Run(run.path.parent / other)
        try:
            if other != run.id and is_like(beside.config(), run.config()):
                return beside
        except DynbenchError:  # gone
            continue
    return None


def _mean(steps: pl.DataFrame, column: str) -> float | None:
    value = steps[column].mean()
    return float(value) if isinstance(value, int | float) else None


def _total(steps: pl.DataFrame, column: str) -> float | None:
    return float(steps[column].sum()) if steps.height else None


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None
