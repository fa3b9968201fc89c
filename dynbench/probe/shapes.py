"""Micro-batches of any shape, cut from the data's own tokens."""

from __future__ import annotations

import numpy as np
import torch

from dynbench.kernels.packed_attention import most_demanding
from dynbench.workloads.base import Workload
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.micro_batch import MicroBatch, make_micro_batch
from dynbench.workloads.packed import packs


def shaped(workload: Workload, n: int, length: int, device: torch.device, most: bool = False) -> TokenisedData:
    """`n` samples, one token short of `length`; packed, of `length`.

    Short, so that padding to `length` leaves a mask: without padding the attention drops it and takes a kernel that
    training hardly ever gets.

    Args:
        workload: whose tokens and labels they have.
        n: how many.
        length: tokens.
        device: where they will be run.
        most: of a packed row, other lengths that need more memory, if there are any; as many tokens and as long.
    """
    lengths = [max(1, length - 1)] * n
    if packs(workload):
        lengths = list(most_demanding(n, length, device)) if most else [length] * n
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    total, count = int(offsets[-1]), len(lengths)
    tokens = np.resize(workload.train.tokens[:total], total)
    labels, weights = np.resize(workload.train.labels, count), workload.train.weights
    return TokenisedData(
        tokens,
        offsets,
        labels,
        "probe",
        weights=None if weights is None else np.resize(weights[weights > 0], count),
    )


def shaped_batch(workload: Workload, n: int, length: int, device: torch.device, most: bool = False) -> MicroBatch:
    """`shaped` samples as one micro-batch, padded to `length`, or as one packed row."""
    data = shaped(workload, n, length, device, most)
    return make_micro_batch(workload, data, np.arange(len(data), dtype=np.int64), length, device)
