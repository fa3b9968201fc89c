"""Attention over a packed row, measured by each way: rows of the tokens asked for, and results that are right."""

from __future__ import annotations

import pytest
from bench_jobs import rows_here

from dynbench.bench import packed_attention
from dynbench.bench.base import Row
from dynbench.bench.packed_attention import WAYS, PackedAttention, row_lengths
from dynbench.plugins.benchmarks import PackedAttentionOptions

SMALL = PackedAttentionOptions(
    tokens=(48, 32), heads=2, channels=8, mean=6, longest=12, iterations=3, warmup=1, device="cpu"
)


def rows() -> list[Row]:
    return rows_here(PackedAttention(SMALL))


def test_every_way_gives_attention_of_each_sample_alone():
    measured = rows()
    assert [(row.columns["tokens"], row.columns["way"]) for row in measured] == [(t, w) for t in (32, 48) for w in WAYS]
    for row in measured:
        assert (row.n, row.unit) == (3, "ms") and row.p50 is not None and row.p50 > 0
        assert row.reference_error is None if row.columns["way"] == "linear" else row.reference_error < 1e-6
    benchmark = PackedAttention(SMALL)
    ratios = benchmark.summary(measured)["times_of_fastest"]
    assert set(ratios) == {"32", "48"} and min(ratios["48"].values()) == 1
    assert next(iter(benchmark.said(measured))).split(":")[0] == "at 48 tokens, times of the fastest way"
    assert benchmark.said([]) == []


def test_a_way_that_mixes_samples_is_seen(monkeypatch):
    attend = packed_attention.attend

    def mixing(query, key, value, boundaries, *, causal):
        return attend(query, key, value, packed_attention.Boundaries((boundaries.tokens,)), causal=causal)

    monkeypatch.setattr(packed_attention, "attend", mixing)
    wrong = {row.columns["way"]: row.reference_error for row in rows() if row.columns["tokens"] == 48}
    assert wrong["by_length"] > 1e-2 and wrong["repadded"] > 1e-2 and wrong["block_mask"] < 1e-6


@pytest.mark.parametrize("tokens", [1, 7, 256, 4096])
def test_a_row_has_the_tokens_asked_for(tokens):
    lengths = row_lengths(tokens, 24, 256)
    assert sum(lengths) == tokens and lengths == sorted(lengths) and lengths[0] >= 1 and lengths[-1] <= 256
    assert lengths == row_lengths(tokens, 24, 256)
