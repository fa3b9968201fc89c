"""How far two runs did the same work, and by how much the weights differ that they ended with."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynbench.analysis.arms import Pair
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.record import LEVELS, Level
from dynbench.config.image_rules import known_entry
from dynbench.runs.run import Run

log = logging.getLogger(__name__)

Weights = Mapping[str, NDArray[np.generic]]

PARITY_STEPS = 50
"""Steps from the first on, warm-up included, in which the losses of equal gradients have to agree."""

_AGREED_STEPS = 10
"""Losses that differ by rounding alone in so many first steps are of equal gradients; a wrong one shows at once."""

_JUMP = 100.0
"""A later difference this many times larger than any before it is no amplified rounding."""

ROUNDING = 1e-6
"""Relative differences of a loss below it are those of its arithmetic."""

LEAST_TOLERANCE = 1e-3
"""Relative difference of a loss that wrong gradients exceed, and that of fp32 stays far below."""

_UNIT_ROUNDOFF = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8}
"""By precision, the largest relative error of rounding a number to it; the mean one is half of it."""
LAST = "model/last/model.safetensors"
"""Within a run's folder: the model after the last step."""
_LARGEST_MB = 256
"""Larger models are not read."""


def comparison_level(pairs: Sequence[Pair]) -> Level:
    """The weakest level among the pairs, measured from the work hashes of all steps, warm-up included."""
    return weakest(work_level(a, b) for a, b in pairs)


def weakest(levels: Iterable[Level]) -> Level:
    """The weakest of several levels."""
    return max(levels, key=LEVELS.index)


def work_level(a: MergedRun, b: MergedRun) -> Level:
    """How far two launches of the same data and seed computed the same samples.

    `tokens` with different batches, also of single steps, and where a strategy trains otherwise than one process, or
    samples of a row see each other, unless both are equal in that and deal every rank the same samples in every step.

    `window` asks that the measured steps are whole windows: where the warm-up, the end of the run, or a step that does
    not count splits one, the measured samples differ.
    """
    one, other = a.facts.config, b.facts.config
    inexact = not (one.sync.exact and other.sync.exact and a.facts.apart and b.facts.apart)
    alike = one.sync == other.sync and a.facts.apart == b.facts.apart
    batches_differ = one.train.global_batch != other.train.global_batch
    if batches_differ or _step_batches_differ(a, b) or (inexact and not (alike and _dealt_alike(a, b))):
        return "tokens"
    done = agreements(a, b)
    if done is not None and len(done) > a.steps.height:
        return "step"
    if done is None or not windows_agree(a, b):
        return "stream"
    ends = np.concatenate([_ends_of_stretches(run) for run in (a, b)])
    return "window" if np.isin(ends, done).all() else "stream"


def _step_batches_differ(a: MergedRun, b: MergedRun) -> bool:
    """Whether a step that both have is of more samples in one of them, as under a budget of tokens."""
    both = a.steps.join(b.steps, on="step")
    return bool((both["global_batch"] != both["global_batch_right"]).any())


def _dealt_alike(a: MergedRun, b: MergedRun) -> bool:
    """Whether every rank of both launches computed the same samples in every step."""
    one, other = (run.worker_rows().select("step", "worker", "work_hash").sort("step", "worker") for run in (a, b))
    return one.collect().equals(other.collect())


def _ends_of_stretches(run: MergedRun) -> NDArray[np.int64]:
    """Numbers of steps after which steps begin or cease to count, and of all steps."""
    unmeasured = run.steps["warmup"].to_numpy()
    return np.append(np.flatnonzero(np.diff(unmeasured)) + 1, len(unmeasured))


def windows_agree(a: MergedRun, b: MergedRun) -> bool:
    """Whether both launches computed the same samples in every window that they finished."""
    done = agreements(a, b)
    if done is None:
        return False
    steps = np.array([*done, a.steps.height])
    return int(np.diff(steps).max()) <= max(a.facts.window, b.facts.window)


def agreements(a: MergedRun, b: MergedRun) -> NDArray[np.int64] | None:
    """Numbers of steps, from 0 on, after which both launches have computed the same samples; warm-up included.

    There the sums of all work hashes so far are equal. Windows begin anew with every epoch, so these points need not
    lie at multiples of W, but never further apart. None when the launches do not have the same steps, or have a hole in
    them.
    """
    steps = a.steps["step"].to_numpy()
    if len(steps) == 0 or not np.array_equal(steps, np.arange(len(steps))) or b.steps.height != len(steps):
        return None
    if not np.array_equal(steps, b.steps["step"].to_numpy()):
        return None
    ahead = np.cumsum(a.steps["work_hash"].to_numpy() - b.steps["work_hash"].to_numpy(), dtype=np.uint64)
    return np.concatenate(([0], np.flatnonzero(ahead == 0) + 1))


def loss_difference(pairs: Sequence[Pair]) -> float | None:
    """Largest relative difference of the global loss of a step between the launches of a pair.

    Sums in another order round differently, and training amplifies that without end: over hundreds of steps the losses
    of equal gradients come apart smoothly, or under AdamW within ten. So the first `PARITY_STEPS` steps count, in which
    wrong gradients show, or `_AGREED_STEPS` of them where these differ by rounding alone; and of the later ones those
    that rise to `_JUMP` times all before them at once. A step without weight has a loss of 0.

    Returns:
        None where there is nothing to compare: a loss is not finite, or the model normalises over the samples that a
        rank runs together, so that its losses depend on the plan.
    """
    worst = 0.0
    for a, b in pairs:
        left, right = (run.steps["loss_global"].fill_null(0.0).to_numpy() for run in (a, b))
        if not (np.isfinite(left).all() and np.isfinite(right).all()) or any(map(_normalises, (a, b))):
            return None
        scale = np.maximum(np.maximum(np.abs(left), np.abs(right)), np.finfo(np.float64).tiny)
        differences = np.abs(left - right) / scale
        before = np.maximum.accumulate(np.concatenate(([ROUNDING], differences)))[:-1]
        counted = _AGREED_STEPS if differences[:_AGREED_STEPS].max(initial=0.0) <= ROUNDING else PARITY_STEPS
        counts = (np.arange(len(differences)) < counted) | (differences > _JUMP * before)
        worst = max(worst, float(differences[counts].max(initial=0.0)))
    return worst


@dataclass(frozen=True, slots=True)
class LossTolerance:
    """What the losses of equal gradients may differ by, relatively, and what it follows from.

    Attributes:
        limit: the difference.
        precision: the coarsest of the launches.
        steps: that are compared.
    """

    limit: float
    precision: str
    steps: int


def loss_tolerance(pairs: Sequence[Pair]) -> LossTolerance:
    """The tolerance of `loss_difference` where none was given.

    Every step rounds the weights' gradients anew, by half a unit roundoff in the mean, and errors without a common sign
    add up to a random walk. Two layers of DistilBERT came apart by 1.4e-3 within 27 steps of bf16, of 1.0e-2 allowed.
    """
    runs = [run for pair in pairs for run in pair]
    precision = max((run.facts.config.train.precision for run in runs), key=lambda name: _UNIT_ROUNDOFF.get(name, 0.0))
    steps = min(PARITY_STEPS, max(run.steps.height for run in runs))
    walk = _UNIT_ROUNDOFF.get(precision, 0.0) / 2 * math.sqrt(steps)
    return LossTolerance(max(LEAST_TOLERANCE, walk), precision, steps)


def _normalises(run: MergedRun) -> bool:
    entry = known_entry(run.facts.config)
    return entry is not None and entry.batch_norm


def loss_drift(pairs: Sequence[Pair]) -> float | None:
    """By which part the candidate's training loss is above the baseline's: means over measured steps, then over pairs.

    Returns:
        None where a loss is not finite, or the baseline's are zero.
    """
    means = np.array([[run.measured["loss_global"].mean() for run in pair] for pair in pairs], dtype=np.float64)
    baseline, candidate = means.mean(axis=0)
    return float(candidate / baseline - 1) if baseline and np.isfinite(means).all() else None


def weights_difference(pairs: Sequence[Pair]) -> float | None:
    """Largest difference of a weight between the launches of a pair, relative to the largest weight.

    Returns:
        None where a launch kept no model, or a large one, or their models are not of one shape, or some difference of
        their weights is no number.
    """
    found = [_difference(_read(a.run), _read(b.run)) for a, b in pairs] if pairs and _readable(pairs) else []
    known = [difference for difference in found if difference is not None]
    return max(known) if known and len(known) == len(found) else None


def _readable(pairs: Sequence[Pair]) -> bool:
    """Whether all launches kept a model that is read in a moment."""
    files = [run.run.path / LAST for pair in pairs for run in pair]
    return all(file.is_file() and 0 < file.stat().st_size <= 1e6 * _LARGEST_MB for file in files)


def _read(run: Run) -> Weights | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(run.path / LAST))
    except (OSError, SafetensorError) as error:
        log.warning("%s cannot be read (%s); its weights are not compared", run.path / LAST, error)
        return None


def _difference(one: Weights | None, other: Weights | None) -> float | None:
    if one is None or other is None or {*one} != {*other}:
        return None
    if any(one[name].shape != other[name].shape for name in one):
        return None
    with np.errstate(invalid="ignore"):
        apart = [float(np.abs(a - b).max(initial=0)) for a, b in zip(_floats(one), _floats(other), strict=True)]
    if not np.isfinite(apart).all():
        return None
    largest = max((float(np.abs(weights).max(initial=0)) for weights in _floats(one)), default=0.0)
    return max(apart, default=0.0) / (largest or 1.0)


def _floats(weights: Weights) -> Iterator[NDArray[np.float64]]:
    """The weights in order of their names; counts among them are left out."""
    for name in sorted(weights):
        if np.issubdtype(weights[name].dtype, np.floating):
            yield weights[name].astype(np.float64)
