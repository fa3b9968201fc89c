"""What the second number of a sample costs in training: arithmetic that stands in for patches or tokens of its own.

A trace says only how many there are. A unit takes as long as a token does in the model's matrices, forward and
backward; it trains nothing, so that losses and gradients are those of the tokens alone.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 256
"""Of the matrix that a unit is multiplied with, again and again."""
PASSES = 3
"""Products with each of the model's matrices for a token: one forward, two backward."""


class SecondWork:
    """The same work for every unit.

    Args:
        model: whose matrices say how much; embeddings, which multiply nothing, are left out.
        device: where it is done.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        embedded = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
        matrices = sum(each.numel() for each in model.parameters() if each.dim() == 2 and id(each) not in embedded)
        self.products = max(1, round(PASSES * matrices / WIDTH**2))
        self._matrix = torch.eye(WIDTH, device=device)

    @torch.no_grad()
    def run(self, units: int) -> None:
        """The work of so many units, at least one."""
        rows = self._matrix.new_ones(units, WIDTH)
        for _ in range(self.products):
            rows = rows @ self._matrix
