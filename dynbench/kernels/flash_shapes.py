"""What both FlashAttention-2 kernels take: which shapes, and how states of heads become rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from dynbench.errors import UsageError
from dynbench.kernels.packed_rows import Boundaries

MASKED = -1e30
"""Score of a key that a query must not see: its weight is zero, and a tile of such scores is no NaN."""


def prepared(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The states as [batch, n, d], heads being rows of the batch; under autocast in its type.

    Args:
        query: [batch, n_queries, d] or [batch, heads, n_queries, d].
        key: the same with n_keys.
        value: as `key`.
        boundaries: of the samples of a packed row, the same in every row of the batch.

    Raises:
        UsageError: shapes, types or devices that do not belong together, or no tokens.
    """
    states = {"query": query, "key": key, "value": value}
    shown = ", ".join(f"{name} {list(each.shape)} {each.dtype} on {each.device}" for name, each in states.items())
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in states.values())
    alike = query.shape[:-2] == key.shape[:-2] and query.shape[-1] == key.shape[-1] and key.shape == value.shape
    one_kind = len({(each.dtype, each.device) for each in (query, key, value)}) == 1
    if query.dim() not in (3, 4) or not alike or not one_kind or not query.is_floating_point():
        raise UsageError(
            f"attention of {shown}: these do not belong together",
            "Give [batch, n, d] or [batch, heads, n, d], keys and values of one length, all of one type and device.",
        )
    if not query.numel() or not key.numel():
        raise UsageError(f"attention of {shown}: there are no tokens", "Leave empty batches out.")
    if boundaries is not None and not query.shape[-2] == key.shape[-2] == boundaries.tokens:
        raise UsageError(
            f"attention of {shown}: the samples of the packed row have {boundaries.tokens} tokens together",
            "Give the boundaries of this row, and its queries, keys and values whole.",
        )
    return tuple(each.flatten(0, -3) for each in (query, key, value))  # type: ignore[return-value]
