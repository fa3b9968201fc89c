"""How much of a run's step time is no needed work, and what it is spent on instead.

S is the measured over the ideal step time, and the waste 1 - 1/S is the part of the step time that is not ideal, as the
model FLOPs utilization (PaLM, arXiv:2204.02311, section 4.1) is the part that is, with the run's own fitted cost in
place of the device's peak. A step's measured time is the run's time over its steps. Its ideal time is that of the same
samples without padding, waiting and exposed communication, planning or loading data, one micro-batch per rank, spread
over the ranks as their speeds are:

    ideal = (G*alpha + beta*real + gamma*real²) / sum(speeds) + optimizer

with alpha per micro-batch, beta per token and gamma per token and token of its length fitted to the run's own compute
(`compute_fit`; real² is the sum of the squared lengths) and the optimizer's time as measured, mean over ranks: updating
the weights is needed work. Where nothing is padded and every rank ran one micro-batch, the needed compute is the
measured one, fit or not. The parts, as shares of the step time:

    padding       (beta * (padded - real) + gamma * (padded² - real²)) / sum(speeds)
    waiting       sync less exposed communication, mean over ranks; and what the compute lasts longer, by the fit, than
                  if it were dealt in proportion to the ranks' speeds, nothing for equal ranks
    exposed_comm  sync of the last rank to arrive; of virtual ranks that of their communication model
    planning      plan, mean over ranks
    data          data, mean over ranks
    compute       what the run's own ideal is above the one that arms of the same work share (`recovery`); 0 in a
                  run by itself
    other         the rest: time in no phase, ranks that end a block before the last one does, launching the
                  micro-batches beyond one per rank, and the residual of the fit, because of which it may fall below 0

They add up to 1 - 1/S. What a pass waits for other ranks is sync; what runs beside one on a GPU is in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, TypedDict, cast

import numpy as np

from dynbench.analysis.compute_fit import ComputeFit, ComputeRows, compute_rows, fit_compute, relative_speeds
from dynbench.analysis.measure import shown
from dynbench.analysis.merge import MergedRun
from dynbench.runs.phrase import Phrase, PhraseRecord
from dynbench.units import Unit

PARTS = ("padding", "waiting", "exposed_comm", "planning", "data", "compute", "other")
"""What a step's time is spent on that is not needed work, in the order in which it is shown."""

Share = Annotated[float | None, Unit("fraction")]


class Waste(TypedDict):
    """Shares of the step time, which add up to 1 - 1/s; null where no ideal can be stated."""

    s: Annotated[
        float | None, shown("waiting and padding", "times the ideal", "step time, measured over ideal", place=-1)
    ]
    """Measured over ideal step time; the ideal is the same samples without padding, waiting, exposed communication,
    planning and loading data, by a cost fitted to the run's own compute, with the optimizer. In a comparison, arms at
    level `step` or `window` on as many ranks share the least of their ideals; null for the others."""
    padding: Share
    """Computing padded tokens that are none."""
    waiting: Share
    """Waiting for the slowest rank; of unequal ranks, work dealt to slow ones too."""
    exposed_comm: Share
    """Communication that no computing hides."""
    planning: Share
    """Making plans."""
    data: Share
    """Making batches."""
    compute: Share
    """What the ideal by the arm's own compute is above the one it shares with others; 0 in a run by itself."""
    other: Share
    """The rest, micro-batches beyond one per rank and the residual of the fit among it; may be below 0."""
    reason: str | None
    """Why no ideal can be stated."""
    reason_said: PhraseRecord | None
    """The same as a phrase."""


def waste_of(merged: MergedRun) -> Waste:
    """The `waste` object of a summary.

    Returns:
        Where the arms compared share no ideal, `s` and `compute` alone are None.
    """
    if not merged.measured.height:
        return _unknown(Phrase.of("waste.no_step"))
    rows = compute_rows(merged, relative_speeds(merged))
    fit = _needed(rows)
    if fit is None:
        return _unknown(Phrase.of("waste.no_fit") if rows.with_squares else Phrase.of("waste.no_squares"))
    mean_ms = {
        name: float(merged.measured[f"{name}_ms_mean"].sum())
        for name in ("wait", "exposed_comm", "plan", "data", "optimizer")
    }
    ranks, speed = len(rows.speeds), float(rows.speeds.sum())
    computed_ms = fit.of_tokens(rows.padded_tokens, rows.padded_tokens2)
    needed_ms = float(fit.of_tokens(rows.real_tokens, rows.real_tokens2).sum())
    costs = fit.alpha * rows.micro_batches + computed_ms
    ideal = (ranks * merged.measured.height * fit.alpha + needed_ms) / speed + mean_ms["optimizer"]
    ms = {
        "padding": (float(computed_ms.sum()) - needed_ms) / speed,
        "waiting": mean_ms["wait"] + float((costs / rows.speed).sum()) / ranks - float(costs.sum()) / speed,
        "exposed_comm": mean_ms["exposed_comm"],
        "planning": mean_ms["plan"],
        "data": mean_ms["data"],
    }
    time_ms = merged.time_ms
    ms["other"] = time_ms - ideal - sum(ms.values())
    shares = {name: ms.get(name, 0.0) / time_ms for name in PARTS}
    own = cast(Waste, {"s": time_ms / ideal, **shares, "reason": None, "reason_said": None})
    return own if merged.ideal_ms is None else of_shared(own, time_ms, merged.ideal_ms)


def of_shared(own: Waste, time_ms: float, ideal_ms: float) -> Waste:
    """A run's waste by an ideal that it shares with others in place of its own.

    Args:
        own: by its own ideal.
        time_ms: the run's time.
        ideal_ms: of its measured steps, the shared one; nan where it shares none.
    """
    s = own["s"]
    if s is None:
        return own
    if math.isnan(ideal_ms):
        reason = Phrase.of("waste.not_shared")
        return own | {"s": None, "compute": None, "reason": str(reason), "reason_said": reason.record()}
    return own | {"s": time_ms / ideal_ms, "compute": 1 / s - ideal_ms / time_ms}


def _needed(rows: ComputeRows) -> ComputeFit | None:
    """The cost of needed compute; where it is all that was computed, its mean per row stands for a cost."""
    fit = fit_compute(rows)
    if fit is None and rows.unpadded and np.all(rows.micro_batches == 1):
        return ComputeFit(float((rows.compute_ms * rows.speed).mean()), 0.0, 0.0)
    return fit


def _unknown(reason: Phrase) -> Waste:
    return cast(Waste, {**dict.fromkeys(("s", *PARTS)), "reason": str(reason), "reason_said": reason.record()})


def ms_per_kilotoken(waste: Mapping[str, object], time_ms: float, real_tokens: float) -> dict[str, float] | None:
    """The ideal and each of `PARTS` in ms per 1,000 real tokens; None where the waste is not known.

    Args:
        waste: of a summary.
        time_ms: the run's time.
        real_tokens: of its measured steps.
    """
    shares = {name: value for name in ("s", *PARTS) if isinstance(value := waste.get(name), int | float)}
    if len(shares) <= len(PARTS) or not real_tokens:
        return None
    per_share = 1000 * time_ms / real_tokens
    return {"ideal": per_share / shares["s"], **{name: per_share * shares[name] for name in PARTS}}
