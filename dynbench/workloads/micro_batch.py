"""Samples that a rank runs together: how many, what they weigh, how long they are padded, and their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dynbench.padding import padded_width
from dynbench.workloads.base import Workload
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.packed import packs

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One padded batch on a device, or one packed row."""

    n: int
    """Samples."""
    weight: float
    """What they count in the loss together."""
    width: int
    """Tokens of the longest, as it is padded."""
    tokens: int
    """That the model is given, padding included."""
    inputs: dict[str, Any]
    """What the workload's `collate` gave, on the device."""
    second: int = 0
    """Units of its samples' second number, which stand for work besides the tokens."""
    repeats: bool = False
    """Run once more without counting, because other ranks have more micro-batches."""


@dataclass(frozen=True, slots=True)
class LossPart:
    """What is kept of a micro-batch that was run."""

    n: int
    weight: float
    width: int
    tokens: int
    total: Tensor
    """Its samples' losses added up, a detached scalar."""
    correct: Tensor | None = None
    """How many of them were right, a scalar; None where that is not counted."""


def make_micro_batch(
    workload: Workload, data: TokenisedData, ids: IntArray, multiple: int, device: torch.device = CPU
) -> MicroBatch:
    """The samples `ids` of `data`, padded as everywhere or packed, and moved to `device`.

    Args:
        workload: makes the tensors.
        data: its own, or of its kind.
        ids: sample ids, int64, shape [n].
        multiple: `workload.pad_to_multiple_of`, tokens.
        device: where to.
    """
    lengths = data.lengths[ids]
    packed = packs(workload)
    width = int(lengths.max()) if packed else padded_width(lengths, multiple, workload.positions)
    tokens = int(lengths.sum()) if packed else len(ids) * width
    inputs = {name: tensor.to(device) for name, tensor in workload.collate(data, ids, width).items()}
    second = 0 if data.second is None else int(data.second[ids].sum())
    return MicroBatch(len(ids), data.weight(ids), width, tokens, inputs, second)


def evened_out(batches: Sequence[MicroBatch], count: int) -> list[MicroBatch]:
    """Micro-batches up to `count`: the smallest again and again, counting nothing."""
    smallest = min(batches, key=lambda batch: batch.tokens)
    return [*batches, *[replace(smallest, repeats=True)] * (count - len(batches))]


def total_correct(parts: Sequence[LossPart]) -> int:
    """Samples of a share that were right; waits for the device."""
    return sum(int(part.correct.item()) for part in parts if part.correct is not None)


def mean_loss(parts: Sequence[LossPart]) -> float:
    """Weighted mean loss over a share's samples, 0 where they weigh nothing; waits for the device."""
    weight = sum(part.weight for part in parts)
    return sum(part.total.item() for part in parts) / weight if weight else 0.0
