"""What the size of buckets costs: a model of bandwidth and overhead per call, fitted to what was measured.

A step of n buckets of together s bytes lasts longer than one without communication by n*o + s/(n*w): o for every call,
and the transfer of the last bucket, which nothing is left to hide, if computing a bucket takes as long as sending it.
The least is at n = sqrt(s/(o*w)), buckets of sqrt(s*o*w) bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Literal

import numpy as np

from dynbench.analysis.measure import Summaries, lookup, mean_over
from dynbench.plugins import STRATEGIES

FEWEST = 3
"""Numbers of buckets that two unknowns are fitted to."""
FLAGS = ("flat", "overlap", "bucketed")
"""Of the strategies that send buckets as soon as they are full, those one of whose calls tells which parameters were
used."""
EXPLAINS = 0.5
"""Part of the variance of the overheads below which the model explains too little to say anything."""
CLOSE = 0.1
"""By which part computing and sending may differ to count as equally long."""
ROUNDING = 1e-9
"""Part of the largest overhead below which a part of the model is none."""
_OF_STRATEGY: Mapping[str, str] = {"flat": "one", "overlap": "parameter"}
ONE, PARAMETER = "one", "parameter"

Assumption = Literal["alike", "computing", "sending", "assumed"]


@dataclass(frozen=True, slots=True)
class BucketPoint:
    """An arm whose gradients are all-reduced in buckets; means over its launches."""

    arm: str
    size: str
    """Of a bucket: MiB, `one` for all gradients, or `parameter`."""
    calls: float
    """Buckets that are sent in a step."""
    total: float
    """Bytes of all gradients."""
    overhead_ms: float
    """What a step takes more than one without communication; where that was not measured, what is exposed."""
    step_ms: float
    against_null: bool
    """Whether the overhead is against a step without communication."""
    compute_ms: float | None = None
    """Forward and backward passes of a step."""
    transfer_ms: float | None = None
    """What its all-reduces take while they transfer."""

    @property
    def size_bytes(self) -> float:
        """Of a bucket, on average."""
        return self.total / self.calls

    @property
    def assumption(self) -> Assumption:
        """Whether computing takes as long as sending, or which of them longer; `assumed` where that is not known."""
        compute, transfer = self.compute_ms, self.transfer_ms
        if compute is None or transfer is None:
            return "assumed"
        if abs(compute - transfer) <= CLOSE * max(compute, transfer):
            return "alike"
        return "computing" if compute > transfer else "sending"


@dataclass(frozen=True, slots=True)
class BucketFit:
    """The model, fitted by least squares over the arms, neither part below 0."""

    total: float
    """s, bytes."""
    call_ms: float
    """o, ms."""
    bytes_per_ms: float | None
    """w; None where no part of the overhead shrinks with the number of buckets."""
    r_squared: float | None
    """Part of the variance of the overheads that it explains; None where they do not vary."""

    def overhead_ms(self, calls: float) -> float:
        """Of so many buckets."""
        return calls * self.call_ms + (self.total / calls / self.bytes_per_ms if self.bytes_per_ms else 0.0)

    @property
    def explains(self) -> bool:
        """Whether it explains enough for advice."""
        return self.r_squared is not None and self.r_squared >= EXPLAINS

    @property
    def best_bytes(self) -> float | None:
        """The size of bucket with the least overhead; None where more, or fewer, buckets are always better."""
        if not self.bytes_per_ms or not self.call_ms:
            return None
        return math.sqrt(self.total * self.call_ms * self.bytes_per_ms)


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
    mean = partial(mean_over, summaries, of_known=True)
    calls, total, step = mean("collectives.mean"), mean("bytes_raw.mean"), mean("step_time_ms.mean")
    beyond, exposed = mean("exposed_vs_null_ms.mean"), mean("exposed_comm_ms.mean")
    computing = mean("time_ms.compute"), mean("comm_transfer_ms.mean")
    overhead = exposed if beyond is None else beyond
    if calls is None or not total or step is None or overhead is None or lookup(summaries[0], "workers") == 1:
        return None
    sent = max(1.0, calls - (name in FLAGS))
    size = ONE if size == "none" else size
    return BucketPoint(arm, size, sent, total, overhead, step, beyond is not None, *computing)


def sizes_differ(points: Sequence[BucketPoint]) -> bool:
    """Whether buckets of several sizes are among the arms, so that something is to be said of it."""
    return len({point.size for point in points} - {ONE, PARAMETER}) > 1


def fit_buckets(points: Sequence[BucketPoint]) -> BucketFit | None:
    """The model over arms of one model; None where too few numbers of buckets are among them."""
    if len({round(point.calls) for point in points}) < FEWEST:
        return None
    from scipy.optimize import nnls

    total = fmean(point.total for point in points)
    calls = np.array([point.calls for point in points])
    measured = np.array([point.overhead_ms for point in points])
    parts = np.column_stack([calls, total / calls])
    solved, _ = nnls(parts, measured)
    call_ms, ms_per_byte = np.where(solved * parts.max(axis=0) > ROUNDING * np.abs(measured).max(), solved, 0.0)
    spread = float(((measured - measured.mean()) ** 2).sum())
    left = float(((measured - calls * call_ms - total / calls * ms_per_byte) ** 2).sum())
    return BucketFit(
        total, float(call_ms), 1 / float(ms_per_byte) if ms_per_byte else None, 1 - left / spread if spread else None
    )


def fewest(points: Sequence[BucketPoint]) -> BucketPoint:
    """The arm with the fewest buckets; of several, the one with the least overhead."""
    return min(points, key=lambda point: (round(point.calls), point.overhead_ms))


def fastest(points: Sequence[BucketPoint]) -> BucketPoint:
    """The arm whose step takes least."""
    return min(points, key=lambda point: point.step_ms)


def bears_out(points: Sequence[BucketPoint], fit: BucketFit) -> bool:
    """Whether the arms bear the model out, so that its curve is drawn and its best size named.

    It explains them, computing takes as long as sending in the fastest, as it assumes, and the arm that is nearest its
    best size, if it has one, is measured below the one with the fewest buckets.
    """
    if not fit.explains or fastest(points).assumption != "alike":
        return False
    return fit.best_bytes is None or nearest(points, fit.best_bytes).overhead_ms < fewest(points).overhead_ms


def nearest(points: Sequence[BucketPoint], size_bytes: float) -> BucketPoint:
    """The arm whose buckets, on average, are nearest a size, by ratio."""
    return min(points, key=lambda point: abs(math.log(point.size_bytes / size_bytes)))


def size_of(point: BucketPoint) -> str:
    """The size that was asked for, in English."""
    words = {ONE: "one bucket", PARAMETER: "one per parameter"}
    return words.get(point.size) or f"{float(point.size):g} MiB"
