"""How far a mean of what was compressed is from the mean of the gradients as they were."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.runs.columns import GRAD_MAX_ERROR, GRAD_REL_ERROR, Column
from dynbench.wire.channel import Channel

ERROR_COLUMNS: tuple[Column, ...] = (
    GRAD_REL_ERROR,
    GRAD_MAX_ERROR,
    Column("grad_cos_sim", "number", "", "Cosine of the angle between the two; likewise."),
    Column("residual_norm", "number", "", "2-norm of what compression has left out so far; likewise."),
)


@dataclass
class Error:
    """Sums over what was averaged in a step."""

    difference: float = 0.0
    exact: float = 0.0
    found: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    largest_difference: float = 0.0
    measured: bool = False

    def add(self, exact: Tensor, found: Tensor, holders: dist.ProcessGroup | None = None) -> None:
        """A flat gradient's mean, and what came of it, both of shape [n].

        Args:
            exact: the mean.
            found: what came of it.
            holders: the ranks that hold a part of both each, all of which is counted on each of them, by collectives
                that are not counted; None where this rank has all of it.
        """
        a, b = exact.double(), found.double()
        apart = a - b
        sums = torch.stack([apart.square().sum(), a.square().sum(), b.square().sum(), a @ b])
        most = torch.stack([torch.cat([each.new_zeros(1), each.abs()]).amax() for each in (a, apart)])
        if holders is not None:
            dist.all_reduce(sums, group=holders)
            dist.all_reduce(most, dist.ReduceOp.MAX, group=holders)
        difference, square, found_square, product = sums.tolist()
        largest, largest_difference = most.tolist()
        self.difference += difference
        self.exact += square
        self.found += found_square
        self.product += product
        self.largest = max(self.largest, largest)
        self.largest_difference = max(self.largest_difference, largest_difference)
        self.measured = True

    def row(self, residual_norm: float) -> dict[str, object]:
        """The values of the columns; none where nothing was measured."""
        if not self.measured:
            return dict.fromkeys(column.name for column in ERROR_COLUMNS)
        both = (self.exact * self.found) ** 0.5
        return {
            GRAD_REL_ERROR.name: (self.difference / self.exact) ** 0.5 if self.exact else None,
            GRAD_MAX_ERROR.name: self.largest_difference / self.largest if self.largest else None,
            "grad_cos_sim": self.product / both if both else None,
            "residual_norm": residual_norm,
        }


def exact_mean(channel: Channel, flat: Tensor) -> Tensor:
    """The mean over ranks as it is, by an all-reduce that is not counted."""
    exact = flat.clone().div_(channel.world_size)
    dist.all_reduce(exact, group=channel.group)
    return exact
