"""Micro-batches of any shape, cut from the data's own tokens."""

from __future__ import annotations

import numpy as np
import torch

from dynbench.workloads.base import Workload
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.micro_batch import MicroBatch, make_micro_batch
from dynbench.workloads.packed import packs


def shaped(workload: Workload, n: int, length: int) -> TokenisedData:
    """`n` samples, one token short of `length`; packed, of `length`.

    Short, so that padding to `length` leaves a mask: without padding the attention drops it and takes a kernel that
    training hardly ever gets.
    """
    real = length if packs(workload) else max(1, length - 1)
    tokens = np.resize(workload.train.tokens[: n * real], n * real)
    labels, weights = np.resize(workload.train.labels, n), workload.train.weights
    return TokenisedData(
        tokens,
        np.arange(n + 1, dtype=np.int64) * real,
        labels,
        "probe",
        weights=None if weights is None else np.resize(weights[weights > 0], n),
    )


def shaped_batch(workload: Workload, n: int, length: int, device: torch.device) -> MicroBatch:
    """`shaped` samples as one micro-batch, padded to `length`, or as one packed row."""
    ids = np.arange(n, dtype=np.int64)
    return make_micro_batch(workload, shaped(workload, n, length), ids, length, device)
