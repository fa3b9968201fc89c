"""Arithmetic peaks of devices, for the share of it that a model reaches (MFU)."""

from __future__ import annotations

import math
from collections.abc import Mapping

_HOPPER = {"float32": 67e12, "bfloat16": 989e12, "float16": 989e12}
_PEAKS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H200": _HOPPER,
    "NVIDIA A100-SXM4-40GB": {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
    "NVIDIA A100-SXM4-80GB": {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
}
"""FLOP/s of dense products by device name and type, from the data sheets of NVIDIA; fp32 without TF32, as torch has it
unless told otherwise."""


def peak_flops(device: str, dtype: str) -> float:
    """FLOP/s; NaN where it is not known.

    Args:
        device: as torch names it.
        dtype: of what is multiplied.
    """
    return _PEAKS.get(device, {}).get(dtype, math.nan)
