"""Batches as training pads them, for tests that look at tensors."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from dynbench.workloads.base import Workload
from dynbench.workloads.batches import make_micro_batch
from dynbench.workloads.data import TokenisedData


def batch_of(
    workload: Workload, ids: np.ndarray, multiple: int = 1, data: TokenisedData | None = None
) -> dict[str, Tensor]:
    """Some samples, of those trained on by default."""
    return make_micro_batch(workload, workload.train if data is None else data, ids, multiple).inputs
