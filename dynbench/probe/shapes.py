"""Micro-batches of any shape, cut from the data's own tokens."""

from __future__ import annotations

import numpy as np

from dynbench.workloads.base import Workload
from dynbench.workloads.data import TokenisedData


def shaped(workload: Workload, n: int, length: int) -> TokenisedData:
    """`n` samples, one token short of `length`.

    Short, so that padding to `length` leaves a mask: without padding the attention drops it and takes a kernel that
    training hardly ever gets.
    """
    real = max(1, length - 1)
    tokens = np.resize(workload.train.tokens, n * real)
    labels = np.resize(workload.train.labels, n)
    return TokenisedData(tokens, np.arange(n + 1, dtype=np.int64) * real, labels, "probe")
