"""Which training samples are kept for evaluation where there is no file of their own for it, and which are a subset."""

from __future__ import annotations

import numpy as np

from dynbench.workloads.data import IntArray

HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1024
HELD_OUT_SEED = 0
"""Not `train.seed`: runs of different seeds are evaluated on the same samples."""

EVAL_SEED = 0
"""Not `train.seed` either."""

SUBSET_STREAM = 1
"""Keeps the subset's random numbers apart from those of the data order, which is seeded with `train.seed` too."""


def held_out_of(n_samples: int) -> int:
    """A tenth of the training samples, at most `HELD_OUT_MOST`; none of a few."""
    return min(HELD_OUT_MOST, int(n_samples * HELD_OUT_SHARE))


def held_out_ids(n_samples: int) -> tuple[IntArray, IntArray]:
    """The samples to evaluate on, and those that are left to train on, both ascending."""
    order = np.random.default_rng(HELD_OUT_SEED).permutation(n_samples)
    held_out = held_out_of(n_samples)
    return np.sort(order[:held_out]), np.sort(order[held_out:])


def subset_ids(n_samples: int, wanted: int, seed: int) -> IntArray:
    """Random `wanted` of the samples, ascending."""
    order = np.random.default_rng([seed, SUBSET_STREAM]).permutation(n_samples)
    return np.sort(order[:wanted])


def evaluated_ids(n_samples: int, wanted: int) -> IntArray:
    """Random `wanted` of the samples to evaluate on, or all, in a random order."""
    return np.random.default_rng(EVAL_SEED).permutation(n_samples)[:wanted].astype(np.int64)
