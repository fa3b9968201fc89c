"""What the time of a rank's profiled steps went to, as it is kept beside the trace."""

from __future__ import annotations

from dataclasses import dataclass

PROFILE_SCHEMA_VERSION = 1
COMMUNICATION, COMPUTE = "communication", "compute"
"""Operations of a row that are none of the wire: all of these together, and what computes."""
BY_ITSELF = "past the wire"
"""Communication that no operation of the wire began."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """An operation in a phase, per step."""

    phase: str
    """forward, backward (up to the gradients' meeting), optimizer, or other."""
    operation: str
    """Of the wire; `communication` for all of them, `past the wire` for what it did not begin, or `compute`."""
    calls: float
    """How often it was under way."""
    ms: float
    """Time in which it was, overlapping ones once."""
    share: float
    """Of the step."""


@dataclass(frozen=True, slots=True)
class RankProfile:
    """A rank's profiled steps."""

    rank: int
    """The rank."""
    first_step: int
    """The first one profiled."""
    steps: int
    """Their number."""
    step_ms: float
    """How long a step was, profiled."""
    rows: list[ProfileRow]
    """What its time went to."""
