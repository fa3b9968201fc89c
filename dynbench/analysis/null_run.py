"""A step of a run held against the same without communication, which took turns with it in its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from dynbench.analysis.communication import COMMUNICATION
from dynbench.analysis.comparability import fact
from dynbench.analysis.measure import Mean, measure, number, of_step
from dynbench.analysis.merge import MergedRun, read_merged
from dynbench.config.digest import is_like
from dynbench.errors import DynbenchError
from dynbench.runs.names import is_part
from dynbench.runs.run import Run
from dynbench.units import Unit

_PARTS = {
    "compute_ms": ["compute_ms"],
    "sync_ms": ["wait_ms", "exposed_comm_ms"],
    "optimizer_ms": ["optimizer_ms"],
}
"""Of a step, and the columns that each is the sum of."""


@dataclass(frozen=True, slots=True)
class AgainstNull:
    """A step held against the same without communication, which took turns with it in its launch; means, ms."""

    run: str
    """Id of the run without communication."""
    steps: Annotated[int, Unit("steps")]
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


def _record(found: AgainstNull | None) -> Any:
    return None if found is None else asdict(found)


class BesideNull:
    """Of runs that took turns with one without communication (`train.exposed`)."""

    against_null: AgainstNull = measure(lambda at: _record(against_null(at.run)), optional=True)
    """What a step takes beyond one without communication, and what of; means per step."""
    exposed_vs_null_ms: Mean = measure(
        lambda at: Mean(mean=at.of("against_null.exposed_ms")),
        of_step(COMMUNICATION, "exposed vs none", "exposed communication, against a step without any", key=".mean"),
        needs="against_null",
    )
    """What a step takes beyond one without communication, of the steps that both have."""


def _part(merged: MergedRun, columns: Sequence[str]) -> float:
    return sum(number(merged.measured[f"{column}_mean"].mean()) or 0.0 for column in columns)


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
