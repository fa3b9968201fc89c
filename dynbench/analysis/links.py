"""What messages cost, by models fitted to their times: over links of other speeds, and in buckets of other sizes.

A step of T, in which t_tr went to transfer, a part h of it beside other work, would last over a link of speed b, with V
bytes of all traffic,

    T(b) = T - (t_tr - h) + max(0, V / b - h)

so that what was hidden stays hidden and what a slower link takes longer is exposed, with nothing for its delay or for
collectives that disturb each other. A strategy that has more to hide it behind is faster than that. Compressing is
in T, so that the speeds over which a compressor pays follow from the same: there its T(b) is the smaller one.

A step of n buckets of together s bytes lasts longer than one without communication by n*o + s/(n*w): o for every call,
and the transfer of the last bucket, which nothing is left to hide, if computing a bucket takes as long as sending it.
The least is at n = sqrt(s/(o*w)), buckets of sqrt(s*o*w) bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np

from dynbench.analysis.measure import Launches, Summaries, lookup, mean_over, measure
from dynbench.plugins import STRATEGIES
from dynbench.table_text import Label, format_value, in_english

SLOWEST_GBPS = 0.001
"""No slower link is looked at: arms whose bytes are all but equal cross at speeds that no link has."""
Span = tuple[float, float | None]
"""From one speed to another, Gb/s; None as the end is none."""
LEAST = 1e-9
"""Part of a step by which a shorter one is no rounding."""


def faster_gbps(arm: Summaries, baseline: Summaries) -> list[Span] | None:
    """Spans of speeds over which an arm's step is the shorter one, from slow links to fast; None where not known.

    A span that reaches `SLOWEST_GBPS` begins at 0. Both times are straight lines of 1/b that bend where more than was
    hidden is exposed: they are compared between all points at which one of them bends or the two cross.
    """
    steps, others = steps_of(arm), steps_of(baseline)
    if steps is None or others is None:
        return None

    def ahead(ms_per_byte: float) -> float:
        least = mean_ms(others, ms_per_byte)
        return least - mean_ms(steps, ms_per_byte) - LEAST * least

    end = _inverse(SLOWEST_GBPS)
    bends = (each.hidden_ms / each.sent for each in (*steps, *others) if each.sent)
    edges = sorted({0.0, end, *(bend for bend in bends if bend < end)})
    edges = sorted({*edges, *_crossings(ahead, edges)})
    spans: list[Span] = []
    for low, high in pairwise(edges):
        if ahead((low + high) / 2) <= 0:
            continue
        slowest, fastest = 0.0 if high == end else _inverse(high), _inverse(low) if low else None
        if spans and spans[-1][0] == fastest:
            spans[-1] = (slowest, spans[-1][1])
        else:
            spans.append((slowest, fastest))
    return spans[::-1]


def over_link(launches: Launches, gbps: float) -> dict[str, float]:
    """Each arm's predicted step over one link, ms, of those that can be predicted."""
    found = {name: predicted_ms(summaries, gbps) for name, summaries in launches.items()}
    return {name: ms for name, ms in found.items() if ms is not None}


def link_sentence(predicted: Mapping[str, float], gbps: float) -> str:
    """What `over_link` comes to, the quickest arm first."""
    link = f"a link of {gbps:g} Gb/s"
    if not predicted:
        return f"steps over {link} cannot be predicted: no arm's transfer is known"
    (quickest, least), *others = sorted(predicted.items(), key=lambda item: item[1])
    steps = [f"{name} {_cell(ms)} ms ({ms / least:.2f} times that)" for name, ms in others]
    return f"over {link}, predicted: " + ", ".join([f"a step of {quickest} takes {_cell(least)} ms", *steps])


def spans_text(spans: Sequence[Span] | None, label: Label = in_english) -> str:
    """Over which speeds, in words and Gb/s; empty where it is not known."""
    if spans is None:
        return ""
    texts = []
    for low, high in spans:
        slow, fast = _cell(low), _cell(high)
        if high is None:
            texts.append(label("links.above", "above …").replace("…", slow) if low else label("links.any", "any speed"))
        else:
            texts.append(f"{slow}–{fast}" if low else label("links.below", "below …").replace("…", fast))
    return ", ".join(texts) or label("links.no", "no speed")


def _crossings(ahead: Callable[[float], float], edges: Sequence[float]) -> list[float]:
    """Where a function that bends at no other points than `edges` is 0 between these."""
    found = []
    for low, high in pairwise(edges):
        start, rise = ahead(low), ahead(high) - ahead(low)
        point = low - start * (high - low) / rise if rise else low
        if low < point < high:
            found.append(point)
    return found


def _cell(value: float | None) -> str:
    return format_value(value, "")


SPEEDS_GBPS = (1, 10, 25, 100, 400)
"""Links that steps are predicted for, Gb/s."""
BYTES_PER_MS = 1e9 / 8 / 1e3
"""Of a link of 1 Gb/s."""


class Step(NamedTuple):
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


def _step_of(summary: Mapping[str, object]) -> Step | None:
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
    return None if steps is None else mean_ms(steps, _inverse(gbps))


def steps_of(summaries: Summaries) -> list[Step] | None:
    """The steps of an arm; None where that of one launch is not known."""
    known = [step for each in summaries if (step := _step_of(each)) is not None]
    return known if known and len(known) == len(summaries) else None


def mean_ms(steps: Sequence[Step], ms_per_byte: float) -> float:
    """Over a link so slow, mean over launches."""
    return fmean(step.over(ms_per_byte) for step in steps)


def _inverse(speed: float) -> float:
    """Ms per byte of a link of so many Gb/s, and the other way round."""
    return 1 / (speed * BYTES_PER_MS)


def over_speeds(summaries: Summaries) -> dict[str, float | None]:
    """T(b) of an arm by the speeds `SPEEDS_GBPS`."""
    return {f"{speed}": predicted_ms(summaries, speed) for speed in SPEEDS_GBPS}


class Links:
    """Predicted from what was measured."""

    predicted_ms: dict[str, float | None] = measure(lambda at: over_speeds([at.summary]))
    """By speed of the link in Gb/s the step time; null where the transfer is not known."""


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


class BucketPoint(NamedTuple):
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


class BucketFit(NamedTuple):
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
