"""Differences of the weights that runs ended with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from dynbench.analysis.levels import LAST, weights_difference

NAN, INF = float("nan"), float("inf")


def kept(folder: Path, **weights: list[float]) -> SimpleNamespace:
    """What is read of a run that kept a model of such weights."""
    (folder / LAST).parent.mkdir(parents=True)
    save_file({name: np.array(values, np.float32) for name, values in weights.items()}, folder / LAST)
    return SimpleNamespace(run=SimpleNamespace(path=folder))


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ({"a": [1, 2], "b": [4]}, {"a": [1, 2.5], "b": [4]}, 0.125),
        ({"a": [1, 2], "b": [4]}, {"a": [1, 2], "b": [NAN]}, None),
        ({"a": [NAN], "b": [4]}, {"a": [1], "b": [4]}, None),
        ({"a": [NAN], "b": [4]}, {"a": [NAN], "b": [4]}, None),
        ({"a": [1], "b": [INF]}, {"a": [1], "b": [INF]}, None),
        ({"a": [1], "b": [INF]}, {"a": [1], "b": [4]}, None),
        ({"a": [1]}, {"b": [1]}, None),
    ],
)
def test_a_difference_that_is_no_number_is_none_of_all(tmp_path: Path, one, other, difference: float | None) -> None:
    pairs = [(kept(tmp_path / "one", **one), kept(tmp_path / "other", **other))]
    fine = [(kept(tmp_path / "three", a=[1]), kept(tmp_path / "four", a=[1]))]
    for found in (pairs, fine + pairs, pairs + fine):
        assert weights_difference(found) == difference  # type: ignore[arg-type]  # what is read of runs
