"""Attention by length and width: every way right, memory that grows as it should, and what runs out of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dynbench.bench import attention_passes
from dynbench.bench.attention import Attention, Flash, hand_count, plain_bytes
from dynbench.bench.base import Row
from dynbench.bench.options import read_options
from dynbench.bench.rank import rows_of
from dynbench.engine.rank.rank_process import RankContext
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import AttentionOptions

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"lengths": (64, 16), "widths": (8,), "iterations": 3, "warmup": 1, "device": "cpu"}


def rows(benchmark: Attention) -> list[Row]:
    return [row for case in benchmark.cases() for row in rows_of(benchmark, case, RankContext(0, 0, 1, CPU))]


@pytest.fixture(scope="module")
def flash() -> tuple[Flash, list[Row]]:
    benchmark = Flash(AttentionOptions(**SMALL))
    return benchmark, rows(benchmark)


def test_every_pass_of_every_way(flash: tuple[Flash, list[Row]]) -> None:
    benchmark, measured = flash
    named = [(row.columns["length"], row.columns["way"], row.columns["pass"]) for row in measured]
    ways = ("plain", "sdpa", "flash_torch")
    assert named == [(n, way, each) for n in (16, 64) for way in ways for each in ("forward", "backward", "both")]
    for row in measured:
        assert (row.status, row.unit, row.n, row.shape) == ("ok", "ms", 3, [1, row.columns["length"], 8])
        assert row.p50 is not None and row.p50 > 0 and row.columns["causal"] == 1
        assert row.reference_error is not None and row.reference_error < 1e-6
        assert 0 < float(row.columns["saved_mb"]) <= float(row.columns["peak_mb"])
        assert bool(row.columns["tiles"]) == (row.columns["way"] == "flash_torch")
    ratios = benchmark.summary(measured)["times_of_sdpa"]
    assert isinstance(ratios, dict) and list(ratios)[-1] == "both 64 x 8 float32"
    assert all(set(each) == set(ways) and each["sdpa"] == 1 for each in ratios.values())
    assert len(benchmark.said(measured)) == 6 and benchmark.said([]) == []


def test_plain_memory_is_quadratic_and_as_counted_by_hand() -> None:
    options = AttentionOptions(
        **{**SMALL, "lengths": (128, 256), "batch": 2, "ways": ("plain", "sdpa"), "iterations": 1}
    )
    found = {(row.columns["way"], row.columns["length"]): row.columns for row in rows(Attention(options))}
    for name in ("saved_mb", "peak_mb"):
        grown = {way: float(found[way, 256][name]) / float(found[way, 128][name]) for way in ("plain", "sdpa")}
        assert grown["plain"] > 3 and grown["sdpa"] < 3, (name, grown)
    peak, counted = (float(found["plain", 256][name]) for name in ("peak_mb", "hand_count_mb"))
    assert counted <= peak < 1.5 * counted
    assert counted == plain_bytes(2, 256, "float32") / 1e6 == 3 * 2 * 256**2 * 4 / 1e6


def test_what_runs_out_of_memory_is_a_row_with_its_hand_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_passes, "free_bytes", lambda _: 10_000)
    benchmark = Attention(AttentionOptions(**{**SMALL, "batch": 1}))
    measured = rows(benchmark)
    assert [row.case for row in measured if row.status == "oom"] == [
        f"plain {each} 64 x 8 float32" for each in ("forward", "backward")
    ]
    told = benchmark.said(measured)[-1]
    assert (
        told.startswith("plain first runs out of memory at plain forward 64 x 8")
        and hand_count(1, 64, "float32") in told
    )


@pytest.mark.parametrize("way", ["flex", "sdpa_flash"])
def test_what_needs_a_gpu_is_a_row_that_says_so(way: str) -> None:
    measured = rows(Attention(AttentionOptions(**{**SMALL, "ways": (way,)})))
    assert {row.status for row in measured} == {"skipped"} and all(way in str(row.reason) for row in measured)


def test_a_wrong_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attention_passes.plain_attention
    own = lambda way, causal, device: lambda q, k, v: plain(q, k, v, not causal)  # noqa: E731
    monkeypatch.setattr(attention_passes, "_own", own)
    wrong = {row.columns["way"]: row.reference_error for row in rows(Attention(AttentionOptions(**SMALL)))}
    assert wrong["sdpa"] > 1e-2 and wrong["flash_torch"] < 1e-6


@pytest.mark.parametrize("name", ["attention", "flash", "collectives"])
def test_full_options_are_options(name: str) -> None:
    entry = BENCHMARKS.find(name)
    full = read_options(name, entry.full)
    assert full != entry.options()
    assert len(entry.load()(full).cases()) > len(entry.load()(entry.options()).cases())
    later = read_options("flash", [*BENCHMARKS.find("flash").full, "lengths=7"])
    assert isinstance(later, AttentionOptions) and later.lengths == (7,) and later.widths == (16, 32, 64, 128)


def test_plain_attention_is_torchs_own() -> None:
    query, key, value = (torch.randn(2, 9, 4) for _ in range(3))
    for causal in (False, True):
        own: Tensor = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        assert torch.allclose(attention_passes.plain_attention(query, key, value, causal), own, atol=1e-6)
