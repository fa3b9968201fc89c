"""How long a step would last over links of other speeds.

A step of T, in which t_tr went to transfer, a part h of it beside other work, would last over a link of speed b, with V
bytes of all traffic,

    T(b) = T - (t_tr - h) + max(0, V / b - h)

so that what was hidden stays hidden and what a slower link takes longer is exposed, with nothing for its delay or for
collectives that disturb each other. A strategy that has more to hide it behind is faster than that. Compressing is
in T, so that the speeds over which a compressor pays follow from the same (`links`): there its T(b) is the smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dynbench.analysis.measure import Measured, Summaries, lookup, measure

SPEEDS_GBPS = (1, 10, 25, 100, 400)
"""Links that steps are predicted for, Gb/s."""
_BYTES_PER_MS = 1e9 / 8 / 1e3
"""Of a link of 1 Gb/s."""


@dataclass(frozen=True, slots=True)
class Step:
    """A run's mean step as the model has it.

    Attributes:
        apart_ms: without what of the transfer was exposed.
        hidden_ms: of the transfer.
        sent: bytes of all traffic.
    """

    apart_ms: float
    hidden_ms: float
    sent: float

    def over(self, ms_per_byte: float) -> float:
        """Its time over a link so slow."""
        return self.apart_ms + max(0.0, self.sent * ms_per_byte - self.hidden_ms)


def step_of(summary: Mapping[str, object]) -> Step | None:
    """The step of a run; None where its transfer is not known."""
    step, transfer, hidden, sent = (
        lookup(summary, key)
        for key in ("step_time_ms.mean", "comm_transfer_ms.mean", "overlap_fraction", "bytes_wire.mean")
    )
    if step is None or transfer is None or sent is None:
        return None
    beside = transfer * (hidden or 0.0)
    return Step(step - (transfer - beside), beside, sent)


def predicted_ms(summaries: Summaries, gbps: float) -> float | None:
    """T(b) of an arm, mean over launches; None where the transfer of one is not known."""
    steps = steps_of(summaries)
    return None if steps is None else mean_ms(steps, ms_per_byte_of(gbps))


def steps_of(summaries: Summaries) -> list[Step] | None:
    """The steps of an arm; None where that of one launch is not known."""
    known = [step for each in summaries if (step := step_of(each)) is not None]
    return known if known and len(known) == len(summaries) else None


def mean_ms(steps: Sequence[Step], ms_per_byte: float) -> float:
    """Over a link so slow, mean over launches."""
    return fmean(step.over(ms_per_byte) for step in steps)


def ms_per_byte_of(gbps: float) -> float:
    """How slow a link of that speed is."""
    return 1 / (gbps * _BYTES_PER_MS)


def gbps_of(ms_per_byte: float) -> float:
    """Speed of a link so slow."""
    return 1 / (ms_per_byte * _BYTES_PER_MS)


def _links(at: Measured) -> dict[str, float | None]:
    return {f"{speed}": predicted_ms([at.summary], speed) for speed in SPEEDS_GBPS}


class Links:
    """Predicted from what was measured."""

    predicted_ms: dict[str, float | None] = measure(_links)
    """By speed of the link in Gb/s the step time; null where the transfer is not known."""
