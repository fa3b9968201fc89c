"""The tiles that Triton's kernels are tuned over, compiled for two GPUs: they fit, and do not spill badly."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from compiled_tiles import Case, Usage, compiler_lacks, usages

from dynbench.kernels.flash_triton_tiles import tiles_of

LACKS = compiler_lacks()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(LACKS is not None, reason=str(LACKS))]

SHARED_BYTES = {80: 166_912, 90: 232_448}
"""Shared memory that a block may have, by capability."""
SPILLED_BYTES = 256
"""Of stack at most: a quarter of the registers that a thread may have. The best tile of a list has none."""
KERNELS = ("forward", "queries", "keys")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def too_much(taken: Mapping[Case, Usage]) -> list[Case]:
    """Cases that do not fit, or spill badly."""
    return [
        case
        for case, usage in taken.items()
        if usage.shared > SHARED_BYTES[case.capability] or usage.stack > SPILLED_BYTES
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("channels", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_tiles_fit_and_one_does_not_spill(kernel, dtype, channels, capability, packed):
    tiles = tiles_of(kernel, channels, DTYPES[dtype])
    taken = usages([Case(capability, kernel, dtype, channels, packed, tile) for tile in tiles])
    assert not too_much(taken), taken
    assert min(usage.stack for usage in taken.values()) == 0, taken


@pytest.mark.matrix
def test_the_largest_tile_of_wide_heads_fits_and_one_that_was_listed_once_does_not():
    largest = Case(80, "keys", "bf16", 128, False, tiles_of("keys", 128, torch.bfloat16)[0])
    beyond = largest._replace(tile=(128, 64, 4, 3))
    assert too_much(usages([largest, beyond])) == [beyond]
