"""What the training loop needs to know of a workload."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from dynbench.workloads.data import IntArray, TokenisedData


class Workload(Protocol):
    """Data, model, loss and evaluation of one training task."""

    train: TokenisedData
    """Training samples, after the subset was drawn."""
    eval: TokenisedData | None
    """Held-out samples; None where the data has none."""
    positions: int | None
    """Longest padded sample that the model takes, tokens; None for any."""
    facts: dict[str, object]
    """Sources, sizes, fingerprints and decisions with their reasons, ready for JSON."""

    def build_model(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32, in training mode; equal seeds give equal weights on every rank."""
        ...

    def collate(self, data: TokenisedData, ids: IntArray, pad_to_multiple_of: int) -> dict[str, Tensor]:
        """The samples `ids`, shape [n], as one batch of CPU tensors, n first, padded as `dynbench.padding` says."""
        ...

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Mean loss over the batch's samples, a scalar with gradient."""
        ...

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """Sums that add up over batches and ranks: `loss_sum`, `correct`, `n`; the caller switches gradients off."""
        ...
