"""How long a step with overlapped buckets takes: a model fitted to some numbers of buckets, and tried on the others.

Computing n buckets and sending them overlap as a pipeline of two stages. A step takes as long as the longer stage, and
in addition what one bucket takes in the shorter one: the first one's computing, while nothing is there to send, or the
last one's transfer, while nothing is left to compute. With a for the longer stage and all that overlaps with nothing, o
for the overhead of a call, c for the shorter stage, and p for the part of all gradients that a full bucket holds,

    T = a + o*n + c*p

where p is 1/n of buckets that are alike, so that it is least at n = sqrt(c/o). Of the numbers of buckets in order,
every second one is left out of the fit, the ends never: what the model predicts there says whether it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from dynbench.analysis.measure import Summaries, lookup, mean_over
from dynbench.plugins import STRATEGIES
from dynbench.units import mib

FEWEST = 5
"""Numbers of buckets of which three unknowns are fitted to some, and the others are left."""
ROUNDING = 1e-9
"""Part of the longest step below which a part of the model is none."""
FLAGS = ("flat", "overlap", "bucketed")
"""Of the strategies that send buckets as soon as they are full, those one of whose calls tells which parameters were
used."""
_OF_STRATEGY: Mapping[str, str] = {"flat": "one", "overlap": "parameter"}
ONE, PARAMETER = "one", "parameter"

Case = Literal["best", "no_call", "no_overlap", "misses", "constant"]


class BucketPoint(NamedTuple):
    """An arm whose gradients are all-reduced in buckets; means over its launches."""

    arm: str
    size: str
    """Of a bucket: MiB, `one` for all gradients, or `parameter`."""
    calls: float
    """Buckets that are sent in a step."""
    total: float
    """Bytes of all gradients."""
    step_ms: float

    @property
    def size_bytes(self) -> float:
        """Of a bucket, on average."""
        return self.total / self.calls

    @property
    def part(self) -> float:
        """p: the last bucket of a step holds what is left, the others as much as they may."""
        return 1 / self.calls if self.size in (ONE, PARAMETER) else min(1.0, float(self.size) / mib(self.total))


class BucketFit:
    """The model, fitted by least squares, no part below 0.

    Args:
        fitted: the arms that it is fitted to.
        held_out: the others.
    """

    within: ClassVar[float] = 0.1
    """Part of a step by which a prediction may miss it."""

    def __init__(self, fitted: Sequence[BucketPoint], held_out: Sequence[BucketPoint]) -> None:
        from scipy.optimize import nnls

        self.fitted, self.held_out = fitted, held_out
        calls = np.array([point.calls for point in fitted])
        steps = np.array([point.step_ms for point in fitted])
        parts = np.column_stack([np.ones_like(calls), calls, [point.part for point in fitted]])
        solved, _ = nnls(parts, steps)
        kept = np.where(solved * parts.max(axis=0) > ROUNDING * steps.max(), solved, 0.0)
        self.constant_ms, self.call_ms, self.shorter_ms = (float(part) for part in kept)

    def step_ms(self, point: BucketPoint) -> float:
        """As predicted of an arm."""
        return self.constant_ms + point.calls * self.call_ms + point.part * self.shorter_ms

    def miss(self, point: BucketPoint) -> float:
        """By which part of the measured step the predicted one is longer."""
        return self.step_ms(point) / point.step_ms - 1

    @cached_property
    def worst(self) -> float:
        """The largest miss of an arm that was left out."""
        return max(abs(self.miss(point)) for point in self.held_out)

    @cached_property
    def worst_of_mean(self) -> float:
        """The same of the mean of the fitted arms' steps, which knows nothing of buckets."""
        mean = fmean(point.step_ms for point in self.fitted)
        return max(abs(mean / point.step_ms - 1) for point in self.held_out)

    @property
    def holds(self) -> bool:
        """Whether it predicts every arm that was left out, and better than the mean does."""
        return self.worst <= self.within and self.worst < self.worst_of_mean

    @property
    def case(self) -> Case:
        """Whether it has a best size, or why none; where it does not hold, why not."""
        if not self.holds:
            return "misses" if self.worst > self.within else "constant"
        return "no_call" if not self.call_ms else "best" if self.shorter_ms else "no_overlap"

    @property
    def best_calls(self) -> float | None:
        """The number of buckets with the shortest step, one at least; None where it names none."""
        return max(1.0, math.sqrt(self.shorter_ms / self.call_ms)) if self.case == "best" else None

    @property
    def best_bytes(self) -> float | None:
        """The size of these buckets."""
        return None if self.best_calls is None else fmean(point.total for point in self.fitted) / self.best_calls


def bucket_point(arm: str, config: Mapping[str, object], summaries: Summaries) -> BucketPoint | None:
    """The arm as a point of the curve; None where it sends no buckets, or its numbers are not known.

    Args:
        arm: its name.
        config: dotted key to value.
        summaries: of its launches.
    """
    name = str(config.get("sync.name"))
    if name not in (*FLAGS, "ddp") or name not in STRATEGIES:
        return None
    size = _OF_STRATEGY.get(name) or str(config.get("sync.bucket_mb"))
    mean: Callable[[str], float | None] = partial(mean_over, summaries, of_known=True)
    calls, total, step = mean("collectives.mean"), mean("bytes_raw.mean"), mean("step_time_ms.mean")
    if calls is None or not total or step is None or lookup(summaries[0], "workers") == 1:
        return None
    return BucketPoint(arm, ONE if size == "none" else size, max(1.0, calls - (name in FLAGS)), total, step)


def fit_buckets(points: Sequence[BucketPoint]) -> BucketFit | None:
    """The model over arms of one model; None where they do not differ in size, or in too few numbers of buckets."""
    counts = sorted({round(point.calls) for point in points})
    if len(counts) < FEWEST or len({point.size for point in points} - {ONE, PARAMETER}) < 2:
        return None
    left_out = counts[1:-1:2]
    fitted, held_out = ([each for each in points if (round(each.calls) in left_out) == out] for out in (False, True))
    return BucketFit(fitted, held_out)


def nearest(points: Sequence[BucketPoint], size_bytes: float) -> BucketPoint:
    """The arm whose buckets, on average, are nearest a size, by ratio."""
    return min(points, key=lambda point: abs(math.log(point.size_bytes / size_bytes)))


def size_of(point: BucketPoint) -> str:
    """The size that was asked for, in English."""
    words = {ONE: "one bucket", PARAMETER: "one per parameter"}
    return words.get(point.size) or f"{float(point.size):g} MiB"
