"""The states of a run and the ways from one to another."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a run stands. `lost` is never written: it is what an unfinished run shows when its process is gone."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    OOM = "oom"
    LOST = "lost"

    @property
    def is_over(self) -> bool:
        """True when nothing will be added to the run."""
        return self not in (Status.CREATED, Status.RUNNING)


UNSUCCESSFUL = frozenset({Status.FAILED, Status.INTERRUPTED, Status.OOM, Status.LOST})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.CREATED: frozenset({Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.INTERRUPTED, Status.OOM}),
    Status.RUNNING: frozenset({Status.COMPLETED, Status.FAILED, Status.INTERRUPTED, Status.OOM}),
    Status.INTERRUPTED: frozenset({Status.RUNNING}),
    Status.FAILED: frozenset({Status.RUNNING}),
    Status.OOM: frozenset({Status.RUNNING}),
    Status.COMPLETED: frozenset({Status.RUNNING}),
    Status.LOST: frozenset({Status.RUNNING, Status.FAILED, Status.INTERRUPTED}),
}


def check_transition(old: Status, new: Status) -> None:
    """Refuse a change of state that cannot happen.

    A run that is over may only run again, which is how an unfinished comparison goes on.

    Raises:
        ValueError: the change is not in `TRANSITIONS`.
    """
    if new != old and new not in TRANSITIONS[old]:
        raise ValueError(f"a run cannot go from {old} to {new}")
