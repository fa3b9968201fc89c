"""What a rank's mean loss is multiplied with, from its samples or its target tokens."""

from array import array
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from dynbench.errors import UsageError
from dynbench.kernels import PackedCollator
from dynbench.sampler import PlannedBatchSampler

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 203).astype(int), 2, 300)
RANKS, BATCH = 3, 12


def sampler(rank=0) -> PlannedBatchSampler:
    return PlannedBatchSampler(LENGTHS, RANKS, rank, BATCH)


X, Y = torch.zeros(5, 7), torch.zeros(5, dtype=torch.int64)


@pytest.mark.parametrize(
    "batch",
    [
        5, np.int64(5), np.uint8(5), np.array(5), torch.tensor(5), [0] * 5, (0,) * 5, range(5), array("q", [0] * 5),
        list(np.zeros(5, dtype=np.int32)), X, Y, X.numpy(), Y.numpy(), {"labels": Y},
        {"x": X, "y": Y, "scale": torch.tensor(2.0)}, UserDict(x=X, y=Y.numpy(), names=["a", "b"]),
    ],
    ids=lambda batch: f"{type(batch).__module__}.{type(batch).__name__}",
)  # fmt: skip
def test_the_weight_of_a_batch_is_its_share(batch):
    assert sampler().weight(batch) == 5 * RANKS / BATCH


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([X, Y], "a list does not tell"),
        ((X, Y), "a tuple does not tell"),
        ([X[0], X[1], X[2]], "a list does not tell"),
        ({"q": torch.zeros(2), "y": Y}, r"\{'q': 2, 'y': 5\}"),
        ({"names": ["a"] * 5}, r"first dimensions \{\}"),
        ({}, r"first dimensions \{\}"),
        ("abcde", "a str does not tell"),
        (5.0, "a float does not tell"),
        (torch.tensor(5.0), "samples: tensor"),
        (None, "a NoneType does not tell"),
        (0, "samples: 0"),
        (-1, "samples: -1"),
        ([], "samples: 0"),
        (BATCH + 1, "samples: 13\nhint: Give a whole number from 1 to 12"),
    ],
    ids=str,
)
def test_a_batch_whose_samples_are_not_clear_is_refused(batch, message):
    with pytest.raises(UsageError, match=message) as refused:
        sampler().weight(batch)
    assert "tensor whose first dimension is the batch" in str(refused.value) or "whole number" in str(refused.value)


def test_target_weights_need_the_other_ranks():
    alone = PlannedBatchSampler(LENGTHS, 1, 0, BATCH)
    assert alone.weight(X, targets=np.int64(7)) == 1.0
    assert alone.target_weights([3, 0, torch.tensor(9)]) == [0.75, 0.0, 2.25]
    with pytest.raises(UsageError, match=r"1 of the sampler's 3 ranks can be asked\nhint: .*init_process_group"):
        sampler().weight(X, targets=7)


@pytest.mark.parametrize(
    ("targets", "message"), [(0, "targets: 0 on all ranks"), (-1, "targets: -1"), (2.5, "targets: 2.5")]
)
def test_targets_that_make_no_weight_are_refused(targets, message):
    with pytest.raises(UsageError, match=message):
        PlannedBatchSampler(LENGTHS, 1, 0, BATCH).weight(X, targets=targets)


def test_the_weighted_gradient_is_that_of_the_global_batch():
    """Averaged over ranks as DDP does; without weights it is another one."""
    inputs = torch.randn(len(LENGTHS), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = nn.Linear(4, 1, dtype=torch.float64)
    ranks = [sampler(rank) for rank in range(RANKS)]

    def gradient(ids, weight=1.0):
        model.zero_grad()
        (weight * model(inputs[ids]).pow(2).mean()).backward()
        return model.weight.grad.clone()

    for batches in zip(*ranks, strict=True):
        whole = gradient([i for ids in batches for i in ids])
        weighted = sum(gradient(ids, ranks[0].weight(ids)) for ids in batches) / RANKS
        plain = sum(gradient(ids) for ids in batches) / RANKS
        torch.testing.assert_close(weighted, whole, rtol=1e-12, atol=0)
        assert (plain - whole).abs().max() > 1e-3 * whole.abs().max()


def test_a_packed_row_weighs_what_its_samples_do():
    packed = PlannedBatchSampler(LENGTHS, RANKS, 0, BATCH, layout="packed")
    samples = [{"input_ids": [7] * n, "labels": [8] * n} for n in (3, 1, 4, 1, 5)]
    row = PackedCollator()(samples)
    for batch in (row, UserDict(row), row["boundaries"], 5, [0] * 5):
        assert packed.weight(batch) == 5 * RANKS / BATCH


@pytest.mark.parametrize("part", ["input_ids", "labels", None])
def test_tensors_of_a_packed_row_are_refused_as_a_batch(part):
    packed = PlannedBatchSampler(LENGTHS, RANKS, 0, BATCH, policy="packed")
    row = PackedCollator()([{"input_ids": [7] * n, "labels": n % 2} for n in (3, 1, 4, 1, 5)])
    batch = {"input_ids": row["input_ids"]} if part is None else row[part]
    with pytest.raises(UsageError, match="tensors do not tell how many samples") as refused:
        packed.weight(batch)
    assert "targets=" in refused.value.hint
