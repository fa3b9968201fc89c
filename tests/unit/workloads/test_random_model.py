from __future__ import annotations

import torch

from dynbench.config.schema import Workload
from dynbench.workloads.pretrained_model import SMALL_SHAPE, random_model


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_equal_seeds_give_equal_weights_whatever_came_before():
    source = random_model(Workload(), vocab_size=50, pad_id=0, num_labels=2)
    first = source.build(3)
    torch.rand(5)
    assert torch.equal(weights(first), weights(source.build(3)))
    assert not torch.equal(weights(first), weights(source.build(4)))
    assert first.training
    assert {parameter.dtype for parameter in first.parameters()} == {torch.float32}


def test_building_leaves_the_callers_random_numbers_alone():
    source = random_model(Workload(), vocab_size=50, pad_id=0, num_labels=2)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    source.build(9)
    assert torch.equal(torch.rand(3), expected)


def test_sizes():
    small = random_model(Workload(), vocab_size=50, pad_id=0, num_labels=3).config
    assert {key: getattr(small, key) for key in SMALL_SHAPE} == SMALL_SHAPE
    assert (small.vocab_size, small.num_labels) == (50, 3)
    base = random_model(Workload(size="base"), vocab_size=50, pad_id=0, num_labels=2).config
    assert (base.dim, base.n_layers, base.n_heads, base.vocab_size) == (768, 6, 12, 30522)
    assert random_model(Workload(size="base"), 40_000, 0, 2).config.vocab_size == 40_000


def test_dropout_reaches_every_module_or_stays_the_models_own():
    def probabilities(dropout: float | None) -> set[float]:
        model = random_model(Workload(dropout=dropout), 50, 0, 2).build(0)
        return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}

    assert probabilities(0.0) == {0.0}
    assert probabilities(0.3) == {0.3}
    assert probabilities(None) == {0.1, 0.2}
