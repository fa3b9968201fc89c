"""Fully sharded modules: values that one rank alone has, types to compute in, and layers that are not sharded."""

from __future__ import annotations

import warnings

import pytest
import torch
from gpu.fully_shard import peaks_of
from sharding_jobs import (
    Wide,
    built,
    filled,
    gathered_in_bytes,
    partly_sharded,
)
from sync_models import MODELS
from torch import nn
from warm import WarmRanks

from dynbench.errors import UsageError
from dynbench.sync import FullyShardedDDP
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
    assert ranks(built) == [True, False]


@pytest.mark.usefixtures("alone")
def test_batch_norm_stays_out_of_what_is_gathered_in_bf16() -> None:
    norm, seen = nn.BatchNorm2d(4), []
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    module = FullyShardedDDP(layers, torch.bfloat16)
    norm.register_forward_hook(lambda norm, given, _: seen.extend([given[0].dtype, norm.weight.dtype]))
    module(torch.randn(4, 3, 8, 8)).float().sum().backward()
    module.finish_gradient_synchronization()
    assert [*seen, norm.running_mean.dtype] == [torch.bfloat16, torch.float32, torch.float32]
    assert all(bool(shard.isfinite().all()) for shard in module.shards)


SCALAR = (torch.tensor(1.0), nn.Module, "parameter odd is a scalar, which fully_shard cannot divide")
TURNED = (torch.ones(3, 2).t(), nn.Module, "parameter odd is not contiguous, which fully_shard cannot divide")
NOTHING = (torch.ones(1), nn.Embedding, "nothing to shard: no module of the types that are sharded")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("odd", "kind", "said"), [SCALAR, TURNED, NOTHING], ids=["scalar", "turned", "nothing"])
def test_what_cannot_be_sharded_is_refused_by_name(odd: torch.Tensor, kind: type[nn.Module], said: str) -> None:
    model = nn.Linear(3, 2)
    model.odd = nn.Parameter(odd)
    with pytest.raises(UsageError, match=said):
        FullyShardedDDP(model, sharded=kind)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("compute_dtype", [None, torch.float16])
def test_layers_that_are_not_sharded_are_replicated(
    ranks: WarmRanks, compute_dtype: torch.dtype | None, tied: bool
) -> None:
    """And a module's output that is a view may be changed in place, of which torch would warn."""
    (sharded, plain, first), (_, same, second) = ranks(partly_sharded, compute_dtype, tied)
    assert sharded == ["embed.weight", "up.weight", "up.bias", *["head.weight"] * (not tied), "head.bias"]
    assert plain == same and sum(gradient is None for gradient in plain) == 2
    assert (first, second) == ([3, 3, 3], [4, 4, 4]), "once a step, with all that this rank has used"


@pytest.mark.usefixtures("alone")
def test_what_a_fully_sharded_module_returns_may_be_changed_in_place() -> None:
    """Though it is a view, of which torch would warn."""
    module = FullyShardedDDP(nn.Linear(4, 3))
    with warnings.catch_warnings(action="error"):
        output = module(torch.ones(2, 5, 4))
        output *= 2
        output.sum().backward()
    module.finish_gradient_synchronization()
    assert [p.grad.full_tensor().unique().tolist() for p in module.parameters()] == [[20.0], [20.0]]


def test_peaks_beside_those_of_torch(ranks: WarmRanks) -> None:
    """As the page of the first run on GPUs has them; a process's own memory says no more than that they were taken."""
    for found in ranks(peaks_of, torch.device("cpu")):
        assert len(found) == 2 and min(found.values()) > 0


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
