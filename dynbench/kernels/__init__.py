"""Packed rows: samples side by side in one row of real tokens, which do not see each other.

For a training loop of your own, with `PlannedBatchSampler(…, layout="packed")`:

    model = use_packed_rows(model)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=PackedCollator())

`check_packed_rows` proves on your own samples that they do not see each other. `recipes/own_loop` has a whole program.
"""

from dynbench.kernels.flash_torch import FlashAttentionCompiled, FlashAttentionTorch
from dynbench.kernels.flash_triton import FlashAttentionTriton
from dynbench.kernels.leak_check import check_packed_rows
from dynbench.kernels.packed_attention import Boundaries, PackedCollator
from dynbench.kernels.packed_models import use_packed_rows

__all__ = [
    "Boundaries",
    "FlashAttentionCompiled",
    "FlashAttentionTorch",
    "FlashAttentionTriton",
    "PackedCollator",
    "check_packed_rows",
    "use_packed_rows",
]
