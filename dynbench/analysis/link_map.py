"""How much of fully sharded training waits for communication, over links of other speeds and batches of other sizes.

The passes of a step compute for C(n) = a + c*n, with n tokens on a rank. Over a link of b bytes a millisecond, which
carries one message after the other, the V bytes that a rank sends take L = V/b. The block that is gathered before all
others and scattered behind them, with embeddings and head, overlaps with nothing: of the bytes its part is u (it is
gathered once and scattered once), of the computing h, its part of the parameters. The messages of the other blocks and
their computing, R = (1 - u) L and D = (1 - h) C, are a pipeline of two stages in k pieces, so that the passes last

    P = u L + h C + max(D, R) + min(D, R) / k

and ranks wait for E = P - C + W in it, where W is what they wait for where the machine's own link carries the
messages. The share of communication is what they wait for over all that the passes last, E / (C + E); a free link would
shorten them by so much. It is one half where E = C.

a, c, and W are fitted to arms without an emulated link; V, u, h and k are counted. Nothing is fitted to what is
predicted. A message's own latency is in W, and the link has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from dynbench.analysis.links import BYTES_PER_MS
from dynbench.analysis.measure import Summaries, mean_over

HALF = 0.5
"""Share from which communication is the larger part."""
FEWEST = 2
"""Numbers of tokens that computing is fitted to."""


class LinkPoint(NamedTuple):
    """An arm of fully sharded training; means over its launches.

    Attributes:
        arm: its name.
        workers: ranks that train.
        gbps: of the emulated link, Gb/s; None where there is none.
        tokens: of a rank in a step.
        compute_ms: of the forward and the backward pass.
        waited_ms: for other ranks in these.
        backward_ms: of that in the backward pass and until all gradients are there.
        sent: bytes that a rank sends in a step.
        root: bytes of that in either message of the block that is gathered once; the others are gathered twice.
        blocks: of parameters that are gathered and scattered at a time, the root among them.
    """

    arm: str
    workers: int
    gbps: float | None
    tokens: float
    compute_ms: float
    waited_ms: float
    backward_ms: float
    sent: float
    root: float
    blocks: float

    @property
    def share(self) -> float:
        """Of the passes, in which ranks wait."""
        return self.waited_ms / (self.compute_ms + self.waited_ms)


class LinkModel(NamedTuple):
    """The model, as the docstring of the module has it.

    Attributes:
        fixed_ms: a.
        token_ms: c.
        waited_ms: W.
        sent: V, bytes.
        root: half of u V, bytes.
        blocks: k + 1.
    """

    fixed_ms: float
    token_ms: float
    waited_ms: float
    sent: float
    root: float
    blocks: float

    @property
    def root_sent(self) -> float:
        """Part u of the bytes."""
        return 2 * self.root / self.sent

    @property
    def root_computed(self) -> float:
        """Part h of the computing: a step sends the other blocks' parameters three times."""
        return self.root / (self.root + (self.sent - 2 * self.root) / 3)

    @property
    def pieces(self) -> float:
        """Pieces k of the pipeline."""
        return max(self.blocks - 1, 1.0)

    def compute_ms(self, tokens: float) -> float:
        """C."""
        return self.fixed_ms + self.token_ms * tokens

    def share(self, gbps: float, tokens: float) -> float:
        """Predicted of a link of so many Gb/s and so many tokens of a rank."""
        compute, transfer = self.compute_ms(tokens), self.sent / (gbps * BYTES_PER_MS)
        stages = (1 - self.root_computed) * compute, (1 - self.root_sent) * transfer
        hidden = min(stages) * (1 - 1 / self.pieces)
        waited = transfer - hidden + self.waited_ms
        return waited / (compute + waited)

    def half_gbps(self, tokens: float) -> float:
        """The speed of the link below which the share is above one half; infinite where it is over any."""
        compute, overlaps = self.compute_ms(tokens), 1 - 1 / self.pieces
        computed, sent = 1 - self.root_computed, 1 - self.root_sent
        transfer = compute - self.waited_ms + computed * compute * overlaps
        if sent * transfer < computed * compute:  # messages are the shorter stage
            transfer = (compute - self.waited_ms) / (1 - sent * overlaps)
        return self.sent / (transfer * BYTES_PER_MS) if transfer > 0 else inf


class LinkMap(NamedTuple):
    """What was measured, and the model of it.

    Attributes:
        points: over emulated links.
        bases: without one, which the model is fitted to.
        model: the model.
    """

    points: Sequence[LinkPoint]
    bases: Sequence[LinkPoint]
    model: LinkModel

    def predicted(self, point: LinkPoint) -> float:
        """The share of a point by the model."""
        return self.model.share(point.gbps or inf, point.tokens)

    @property
    def above(self) -> Sequence[LinkPoint]:
        """Arms of which more than one half is communication."""
        return [point for point in (*self.bases, *self.points) if point.share > HALF]

    @property
    def below(self) -> Sequence[LinkPoint]:
        """The others."""
        return [point for point in (*self.bases, *self.points) if point.share <= HALF]

    @property
    def halves(self) -> Mapping[float, float | None]:
        """Tokens of a rank, of the points, to the speed at which the model has one half; None where any has more."""
        found = {tokens: self.model.half_gbps(tokens) for tokens in sorted({point.tokens for point in self.points})}
        return {tokens: gbps if gbps < inf else None for tokens, gbps in found.items()}

    @property
    def errors(self) -> Mapping[str, float]:
        """By point, predicted less measured share."""
        return {point.arm: self.predicted(point) - point.share for point in self.points}

    @property
    def mean_error(self) -> float:
        """Of the errors without their signs."""
        return fmean(map(abs, self.errors.values()))

    @property
    def worst(self) -> str:
        """The point that the model misses most."""
        return max(self.errors, key=lambda arm: abs(self.errors[arm]))


def link_point(arm: str, config: Mapping[str, object], summaries: Summaries) -> LinkPoint | None:
    """The arm as a point; None where it is not fully sharded over several ranks, or its numbers are not known.

    Args:
        arm: its name.
        config: dotted key to value.
        summaries: of its launches.
    """
    if config.get("sync.name") != "fsdp" or config.get("compress.name") != "none" or config.get("sync.gather_bf16"):
        return None
    mean = partial(mean_over, summaries, of_known=True)
    keys = ("time_ms.compute", "time_ms.wait", "time_ms.exposed_comm", "sync_forward_ms.mean", "sync_optimizer_ms.mean")
    times = [mean(key) for key in keys]
    tokens, steps, workers, sent = (mean(key) for key in ("real_tokens", "steps", "workers", "bytes_wire.mean"))
    scatters = [_scatters(summary) for summary in summaries]
    blocks, scattered = (fmean(each) for each in zip(*scatters, strict=True))
    if None in times or not (tokens and steps and workers and sent and blocks):
        return None
    compute, wait, exposed, forward, optimizer = (float(each or 0.0) for each in times)
    waited = wait + exposed - optimizer
    link = summaries[0].get("link_gbps")
    return LinkPoint(
        arm=arm,
        workers=round(workers),
        gbps=float(link) if isinstance(link, int | float) else None,
        tokens=tokens / steps / workers,
        compute_ms=compute,
        waited_ms=waited,
        backward_ms=waited - forward,
        sent=sent,
        root=max(0.0, 3 * scattered - sent),  # of root + others scattered, and 2 root + 3 others sent in all
        blocks=blocks,
    )


def _scatters(summary: Mapping[str, Any]) -> tuple[float, float]:
    """Reduce-scatters of a step, and their bytes."""
    found = [one for one in summary.get("by_operation") or () if one["operation"] == "reduce_scatter"]
    return sum(float(one["calls"]) for one in found), sum(float(one["bytes"]) for one in found)


def link_map(points: Sequence[LinkPoint]) -> LinkMap | None:
    """The map of the arms; None without one over a link, or too few without, on as many ranks, to fit to."""
    linked = [point for point in points if point.gbps is not None]
    bases = [point for point in points if point.gbps is None and linked and point.workers == linked[0].workers]
    if len({round(base.tokens) for base in bases}) < FEWEST:
        return None
    from scipy.optimize import nnls

    tokens = np.array([base.tokens for base in bases])
    parts = np.column_stack([np.ones_like(tokens), tokens])
    (fixed, per_token), _ = nnls(parts, np.array([base.compute_ms for base in bases]))
    model = LinkModel(
        float(fixed),
        float(per_token),
        *(fmean(getattr(base, name) for base in bases) for name in ("waited_ms", "sent", "root", "blocks")),
    )
    return LinkMap([point for point in linked if point.workers == bases[0].workers], bases, model)
