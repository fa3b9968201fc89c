"""By how much the weights differ that two runs ended with, where both kept their model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pairing import Pair
from dynbench.runs.run import Run

log = logging.getLogger(__name__)

LAST = "model/last/model.safetensors"
"""Within a run's folder: the model after the last step."""
LARGEST_MB = 256
"""Larger models are not read."""
Weights = Mapping[str, NDArray[np.generic]]


def weights_difference(pairs: Sequence[Pair]) -> float | None:
    """Largest difference of a weight between the launches of a pair, relative to the largest weight.

    Returns:
        None where a launch kept no model, or a large one, or their models are not of one shape, or some difference of
        their weights is no number.
    """
    found = [_difference(_read(a.run), _read(b.run)) for a, b in pairs] if pairs and _kept(pairs) else []
    known = [difference for difference in found if difference is not None]
    return max(known) if known and len(known) == len(found) else None


def _kept(pairs: Sequence[Pair]) -> bool:
    """Whether all launches kept a model that is read in a moment."""
    return all(0 < _size_mb(run) <= LARGEST_MB for pair in pairs for run in pair)


def _size_mb(merged: MergedRun) -> float:
    try:
        return (merged.run.path / LAST).stat().st_size / 1e6
    except OSError:
        return 0.0


def _read(run: Run) -> Weights | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(run.path / LAST))
    except (OSError, SafetensorError) as error:
        log.warning("%s cannot be read (%s); its weights are not compared", run.path / LAST, error)
        return None


def _difference(one: Weights | None, other: Weights | None) -> float | None:
    if one is None or other is None or {*one} != {*other}:
        return None
    if any(one[name].shape != other[name].shape for name in one):
        return None
    with np.errstate(invalid="ignore"):
        apart = [float(np.abs(a - b).max(initial=0)) for a, b in zip(_floats(one), _floats(other), strict=True)]
    if not np.isfinite(apart).all():
        return None
    largest = max((float(np.abs(weights).max(initial=0)) for weights in _floats(one)), default=0.0)
    return max(apart, default=0.0) / (largest or 1.0)


def _floats(weights: Weights) -> Iterator[NDArray[np.float64]]:
    """The weights in order of their names; counts among them are left out."""
    for name in sorted(weights):
        if np.issubdtype(weights[name].dtype, np.floating):
            yield weights[name].astype(np.float64)
