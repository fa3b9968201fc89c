"""Shards of models that one rank alone has values of, and of next to nothing; overflow that ranks agree on."""

from __future__ import annotations

import pytest
import torch
from gpu.fully_shard import told
from sharding_jobs import (
    FILLED,
    OneWeight,
    Wide,
    built,
    changed_in_place,
    course_fully_sharded,
    filled,
    gathered_in_bytes,
    in_single,
    norm_of_one_weight,
    normalised,
    nothing_sharded,
    one_weight,
    overflowing,
    partly_sharded,
    peaks_beside_torchs,
    refused,
)
from warm import WarmRanks

from dynbench.plugins import STRATEGIES
from dynbench.sync.fully_sharded_streams import blocks_of

pytestmark = pytest.mark.multiproc

EXACT = [name for name, entry in STRATEGIES.items() if entry.exact]
EVERYONE_TRAINS = [name for name in EXACT if not STRATEGIES[name].servers]


@pytest.mark.parametrize("model", FILLED)
def test_a_model_that_the_first_rank_alone_has_is_trained_as_in_one_process(ranks: WarmRanks, model: str) -> None:
    """And the others never hold more of it than one of its parts."""
    (found, whole, elements), (none, most, _) = ranks(filled, model)
    assert none is None and found is not None
    assert found.of_rounding <= 1, found
    parts = [sum(p.numel() for p in block.parameters()) for block in blocks_of(FILLED[model]())]
    assert whole == elements
    assert most <= max(*parts, elements - sum(parts) + max(parts)) < elements


@pytest.mark.parametrize("packed", [False, True])
def test_ranks_but_the_first_build_no_values(ranks: WarmRanks, packed: bool) -> None:
    assert ranks(built, packed) == [["build_model"], ["build_empty_model"]]


@pytest.mark.parametrize("sync", EVERYONE_TRAINS)
def test_fewer_elements_than_ranks_are_trained_and_clipped(ranks: WarmRanks, sync: str) -> None:
    assert sum(p.numel() for p in OneWeight().parameters()) == 1
    found, none = ranks(one_weight, sync)
    assert none is None and found.of_rounding <= 1, found
    assert ranks(norm_of_one_weight, sync) == [(3.0, pytest.approx(0.5, rel=1e-5)), (3.0, 0.0)]


@pytest.mark.parametrize("sync", EVERYONE_TRAINS)
def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(ranks: WarmRanks, sync: str) -> None:
    first, second = ranks(overflowing, sync)
    assert first == [(False, True), (True, False), (False, True)]
    assert [skipped for skipped, _ in second] == [False, True, False]


@pytest.mark.parametrize("model", ["gpt2", pytest.param("toy", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("sync", EXACT)
def test_in_single_precision_sgd_stays_within_rounding(
    ranks: WarmRanks, three: WarmRanks, sync: str, model: str
) -> None:
    found, *others = (three if STRATEGIES[sync].servers else ranks)(in_single, sync, model)
    assert found is not None and found < 1e-5
    assert others == [None] * len(others)


def test_batch_norm_stays_out_of_what_is_gathered_in_bf16(ranks: WarmRanks) -> None:
    assert ranks(normalised) == [([torch.bfloat16, torch.float32, torch.float32], True)] * 2


@pytest.mark.parametrize(("scalar", "what"), [(True, "a scalar"), (False, "not contiguous")])
def test_a_parameter_that_cannot_be_divided_is_named(ranks: WarmRanks, scalar: bool, what: str) -> None:
    assert ranks(refused, scalar) == [f"parameter odd is {what}, which fully_shard cannot divide"] * 2


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


@pytest.mark.parametrize("adamw", [False, True])
@pytest.mark.parametrize("compute_dtype", [None, torch.float16])
def test_the_course_s_fully_sharded_adapter(ranks: WarmRanks, compute_dtype: torch.dtype | None, adamw: bool) -> None:
    """Its `test_fsdp_correctness` and `test_fsdp_gradient_sync`, with no warning from the forward pass."""
    found = ranks(course_fully_sharded, compute_dtype, adamw)
    assert [(each["near"], each["gradients"], len(each["norms"])) for each in found] == [(True, True, 2)] * 2
    assert found[0]["norms"] == found[1]["norms"]


def test_what_a_fully_sharded_module_returns_may_be_changed_in_place(ranks: WarmRanks) -> None:
    assert max(ranks(changed_in_place)) < 1e-6


def test_no_layer_to_shard_is_refused(ranks: WarmRanks) -> None:
    assert ranks(nothing_sharded) == ["nothing to shard: no module of the types that are sharded"] * 2


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
