"""Attention over a packed row by each way to keep its samples apart: time forward and backward, by tokens per row.

`by_length` and `repadded` are the two arrangements of `dynbench.kernels`, `block_mask` is what a mask of the whole row
costs: every token scored against every other. `linear` is what the layer's linear parts cost on the same tokens, so
that one sees from how many tokens on attention with a mask is the larger part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynbench.bench.base import Benchmark, Case, Columns, Measured, Row, titled
from dynbench.bench.measuring import time_calls
from dynbench.kernels import Boundaries
from dynbench.kernels.packed_attention import Arrangement, attend
from dynbench.plugins.benchmarks import PackedAttentionOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

WAYS = ("by_length", "repadded", "block_mask", "linear")
"""What is measured at every number of tokens."""


class PackedAttention(Benchmark):
    """One layer on rows of `tokens`, whose samples have the lengths that `lengths` names."""

    options: PackedAttentionOptions
    headers: ClassVar = titled(
        "tokens", "samples", "way", "p20", "p50", "p80", "reference_error", tokens="tokens per row"
    )

    def cases(self) -> Sequence[Case]:
        """Every way at every number of tokens, fewest first."""
        options, cases = self.options, []
        for tokens, way in product(sorted(set(options.tokens)), WAYS):
            samples = len(row_lengths(tokens, options.mean, options.longest))
            columns: Columns = {"way": way, "tokens": tokens, "samples": samples, "width": options.width}
            columns["heads"] = options.heads
            cases.append(Case(f"{way} {tokens} tokens", [tokens, options.width], "float32", columns))
        return cases

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The iterations of one way, and how far its result is from attention of every sample alone."""
        options, way, device = self.options, str(case.columns["way"]), context.device
        lengths = row_lengths(int(case.columns["tokens"]), options.mean, options.longest)
        boundaries = Boundaries(tuple(lengths), device)
        drawn = torch.Generator().manual_seed(0)
        shape = boundaries.tokens, options.heads, options.channels
        query, key, value = (torch.randn(shape, generator=drawn).to(device).requires_grad_() for _ in range(3))
        layer = _linear(query, options.width) if way == "linear" else _attention(way, query, key, value, boundaries)
        count = options.warmup + options.iterations
        times = time_calls(lambda: torch.autograd.backward(layer().sum()), count, device)
        error = None if way == "linear" else float((layer().detach() - _alone(query, key, value, lengths)).abs().max())
        return Measured(times[options.warmup :], {}, error)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """How many times as long as the fastest way each takes, by tokens; ways without a time are left out."""
        return {"times_of_fastest": {str(tokens): _relative(rows, tokens) for tokens in _tokens(rows)}}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same at the longest row, and what the mask costs of the linear parts."""
        if not rows:
            return []
        last = _tokens(rows)[-1]
        ratios = ", ".join(f"{way} {ratio:.3g}" for way, ratio in _relative(rows, last).items())
        medians = _medians(rows, last)
        lines = [f"at {last} tokens, times of the fastest way: {ratios}"] if ratios else []
        if {"block_mask", "linear"} <= medians.keys():
            share = medians["block_mask"] / medians["linear"]
            lines.append(f"a mask of the whole row takes {share:.3g} times what the layer's linear parts take")
        return lines


def row_lengths(tokens: int, mean: int, longest: int) -> list[int]:
    """Lengths of the samples of a row, ascending: lognormal as texts are, the same in every call.

    Args:
        tokens: of the row, exactly.
        mean: of the lengths, about.
        longest: none is longer.
    """
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - 0.18, 0.6, size=tokens)
    lengths = np.clip(drawn.round(), 1, longest).astype(np.int64)
    whole = lengths[: np.searchsorted(lengths.cumsum(), tokens)]
    left = tokens - int(whole.sum())
    return sorted([*whole.tolist(), *([left] if left else [])])


def _tokens(rows: Sequence[Row]) -> list[int]:
    return sorted({int(row.columns["tokens"]) for row in rows})


def _medians(rows: Sequence[Row], tokens: int) -> dict[str, float]:
    """Median ms of each way that was measured, ms."""
    return {str(row.columns["way"]): row.p50 for row in rows if row.columns["tokens"] == tokens and row.p50 is not None}


def _relative(rows: Sequence[Row], tokens: int) -> dict[str, float]:
    medians = {way: ms for way, ms in _medians(rows, tokens).items() if way != "linear"}
    return {way: ms / min(medians.values()) for way, ms in medians.items()}


def _attention(way: str, query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries) -> Callable[[], Tensor]:
    if way == "block_mask":
        mask = boundaries.sample[:, None] == boundaries.sample
        return lambda: _in_one(query, key, value, mask)
    arranged = Boundaries(boundaries.lengths, boundaries.device, cast(Arrangement, way))
    return lambda: attend(query, key, value, arranged, causal=False)


def _linear(states: Tensor, width: int) -> Callable[[], Tensor]:
    """The projections of attention and the two of the part behind it, which is four times as wide."""
    parts = nn.Sequential(nn.Linear(width, 3 * width), nn.Linear(3 * width, width)).to(states.device)
    behind = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(states.device)
    return lambda: cast(Tensor, behind(parts(states.flatten(1))))


@torch.no_grad()
def _alone(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    """Attention of every sample by itself, [T, heads, channels]."""
    each = (torch.split(states, list(lengths)) for states in (query, key, value))
    return torch.cat([_in_one(q, k, v) for q, k, v in zip(*each, strict=True)])


def _in_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention over all tokens but what a mask [T, T] forbids; all states are [T, heads, channels]."""
    q, k, v = (states.transpose(0, 1)[None] for states in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)
