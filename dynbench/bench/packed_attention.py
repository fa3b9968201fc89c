"""Attention over a packed row by each way to keep its samples apart: time forward and backward, by tokens per row.

`by_length` and `repadded` are the two arrangements of `dynbench.kernels`, `block_mask` is what a mask of the whole row
costs: every token scored against every other. `linear` is what the layer's linear parts cost on the same tokens, so
that one sees from how many tokens on attention with a mask is the larger part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dynbench.bench.base import Case, Measured, OnOneDevice, Row
from dynbench.plugins.benchmarks import PackedAttentionOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

WAYS = ("by_length", "repadded", "block_mask", "linear")
"""What is measured at every number of tokens."""


class PackedAttention(OnOneDevice):
    """One layer on rows of `tokens`, whose samples have the lengths that `lengths` names."""

    options: PackedAttentionOptions
    headers: ClassVar = {
        "tokens": "tokens per row",
        "samples": "samples",
        "way": "way",
        "p20": "p20 (ms)",
        "p50": "p50 (ms)",
        "p80": "p80 (ms)",
        "reference_error": "largest difference",
    }

    def cases(self) -> Sequence[Case]:
        """Every way at every number of tokens, fewest first."""
        return [self._case(way, tokens) for tokens in sorted(set(self.options.tokens)) for way in WAYS]

    def _case(self, way: str, tokens: int) -> Case:
        lengths = row_lengths(tokens, self.options.mean, self.options.longest)
        columns: dict[str, float | int | str] = {"way": way, "tokens": tokens, "samples": len(lengths)}
        columns |= {"width": self.options.width, "heads": self.options.heads}
        return Case(f"{way} {tokens} tokens", [tokens, self.options.width], "float32", columns)

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The iterations of one way."""
        from dynbench.bench.packed_layer import measure_way

        lengths = row_lengths(int(case.columns["tokens"]), self.options.mean, self.options.longest)
        return measure_way(str(case.columns["way"]), lengths, self.options, context.device)

    def summary(self, rows: Sequence[Row]) -> dict[str, object]:
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
