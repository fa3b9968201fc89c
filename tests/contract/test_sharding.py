"""Fully sharded modules: values that one rank alone has, types to compute in, and layers that are not sharded."""

from __future__ import annotations

import pytest
import torch
from gpu.fully_shard import told
from sharding_jobs import (
    Wide,
    built,
    changed_in_place,
    filled,
    gathered_in_bytes,
    normalised,
    partly_sharded,
    peaks_beside_torchs,
    refused,
)
from sync_models import MODELS
from warm import WarmRanks

from dynbench.sync.fully_sharded_streams import blocks_of

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("model", ["toy", "gpt2", "tied_block"])
def test_a_model_that_the_first_rank_alone_has_is_trained_as_in_one_process(ranks: WarmRanks, model: str) -> None:
    """And the others never have more of it than one of its parts."""
    (found, whole), (none, most) = ranks(filled, model)
    assert none is None and found is not None
    assert found.of_rounding <= 1, found
    made = MODELS[model]()
    elements = sum(p.numel() for p in made.parameters())
    parts = [sum(p.numel() for p in block.parameters()) for block in blocks_of(made)]
    assert whole == elements
    assert most <= max(*parts, elements - sum(parts) + max(parts)) < elements


def test_ranks_but_the_first_build_no_values(ranks: WarmRanks) -> None:
    assert ranks(built) == [["build_model"], ["build_empty_model"]]


def test_batch_norm_stays_out_of_what_is_gathered_in_bf16(ranks: WarmRanks) -> None:
    assert ranks(normalised) == [([torch.bfloat16, torch.float32, torch.float32], True)] * 2


def test_what_cannot_be_sharded_is_refused_by_name(ranks: WarmRanks) -> None:
    assert ranks(refused) == [
        [
            *(f"parameter odd is {what}, which fully_shard cannot divide" for what in ("a scalar", "not contiguous")),
            "nothing to shard: no module of the types that are sharded",
        ]
    ] * 2  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("compute_dtype", [None, torch.float16])
def test_layers_that_are_not_sharded_are_replicated(
    ranks: WarmRanks, compute_dtype: torch.dtype | None, tied: bool
) -> None:
    """And a module's output that is a view may be changed in place, of which torch would warn."""
    found = ranks(partly_sharded, compute_dtype, tied)
    for each in found:
        assert each["sharded"] == ["embed.weight", "up.weight", "up.bias", *["head.weight"] * (not tied), "head.bias"]
        assert each["gradients"] < (1e-6 if compute_dtype is None else 5e-3)
        assert each["weights"] < (1e-5 if compute_dtype is None else 5e-2)
        assert each["plain"] == found[0]["plain"]
        assert sum(gradient is None for gradient in each["plain"]) == 2
    assert [each["ready"] for each in found] == [[3, 3, 3], [4, 4, 4]], "once a step, with all that this rank has used"


def test_what_a_fully_sharded_module_returns_may_be_changed_in_place(ranks: WarmRanks) -> None:
    assert max(ranks(changed_in_place)) < 1e-6


def test_peaks_beside_those_of_torch(ranks: WarmRanks) -> None:
    """As the page of the first run on GPUs has them; a process's own memory says no more than that they were taken."""
    for found in ranks(peaks_beside_torchs):
        assert len(found) == 2 and min(found.values()) > 0
        assert told(found).startswith("peaks of 3 steps: torch's fully_shard ")


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("compress", ["none", "fp8"])
@pytest.mark.parametrize("gather", ["int8", "fp8"])
def test_parameters_gathered_in_bytes_train_as_rounded_ones_do_in_one_process(
    ranks: WarmRanks, gather: str, compress: str, compute_dtype: torch.dtype | None
) -> None:
    in_blocks, rest = (sum(p.numel() for p in part.parameters()) for part in (Wide().blocks, Wide().head))
    for apart, rounding, traffic in ranks(gathered_in_bytes, gather, compress, compute_dtype):
        exact = compress == "none" and compute_dtype is None
        assert apart < (1e-6 if exact else 2e-3)
        assert rounding > 1e-3, "what is gathered differs from what is kept"
        wanted = (2 * in_blocks + rest) // 2 * (4 if compute_dtype is None else 2)
        assert traffic.gathered_raw == pytest.approx(wanted, rel=0.01), "blocks are gathered twice, the rest once"
        least = 3.5 if compute_dtype is None else 1.8
        assert traffic.gathered_raw / traffic.gathered_wire > least
        assert traffic.bytes_uncompressed == traffic.bytes_wire + (
            traffic.gathered_raw - traffic.gathered_wire + traffic.gradient_raw - traffic.gradient_wire
        )
