"""Generated data with the lengths of a published benchmark of batch rebalancing: lognormal(5, 1), in tokens.

The benchmark is that of huggingface/transformers#47340, with lengths clamped to 16-1,024; the words are `embedded`'s.
"""

from __future__ import annotations

import numpy as np

from dynbench.config.schema import Workload
from dynbench.workloads.data import IntArray
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.embedded import generate

MU, SIGMA = 5.0, 1.0
"""Mean and standard deviation of the length's natural logarithm."""
SHORTEST, LONGEST = 16, 1024


def load(settings: Workload) -> Splits:
    """8,192 training and 1,024 evaluation samples of two classes; no setting changes them."""
    return generate(draw_lengths)


def draw_lengths(n: int, rng: np.random.Generator) -> IntArray:
    """Lengths in tokens, shape [n]."""
    return np.clip(np.rint(rng.lognormal(MU, SIGMA, n)), SHORTEST, LONGEST).astype(np.int64)
