"""What compression leaves out: measured, and added to the next step.

Error feedback: Seide et al., 2014; Karimireddy et al., 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.runs.columns import GRAD_MAX_ERROR, GRAD_REL_ERROR, Column
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part

ERROR_COLUMNS: tuple[Column, ...] = (
    GRAD_REL_ERROR,
    GRAD_MAX_ERROR,
    Column("grad_cos_sim", "number", "", "Cosine of the angle between the two; likewise."),
    Column("residual_norm", "number", "", "2-norm of what compression has left out so far; likewise."),
)


class Error:
    """Sums over what was averaged in a step."""

    def __init__(self) -> None:
        self.measured = False
        self._sums, self._most = torch.zeros(4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)

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
        self._sums += sums.cpu()
        self._most = torch.maximum(self._most, most.cpu())
        self.measured = True

    def row(self, residual_norm: float) -> dict[str, object]:
        """The values of the columns; none where nothing was measured."""
        if not self.measured:
            return dict.fromkeys(column.name for column in ERROR_COLUMNS)
        difference, exact, found, product = self._sums.tolist()
        largest, largest_difference = self._most.tolist()
        both = (exact * found) ** 0.5
        return {
            GRAD_REL_ERROR.name: (difference / exact) ** 0.5 if exact else None,
            GRAD_MAX_ERROR.name: largest_difference / largest if largest else None,
            "grad_cos_sim": product / both if both else None,
            "residual_norm": residual_norm,
        }


def exact_mean(channel: Channel, flat: Tensor) -> Tensor:
    """The mean over ranks as it is, by an all-reduce that is not counted."""
    exact = flat.clone().div_(channel.world_size)
    dist.all_reduce(exact, group=channel.group)
    return exact


class Residuals:
    """What this rank has not yet sent of every parameter, in float32; how gradients are cut may change."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        """Of the whole parameter, shape [n]."""

    def corrected(self, part: Part, gradient: Tensor) -> Tensor:
        """A gradient, shape [numel], with what was left out before: a view of the residual, to be taken from."""
        return self.of(part, gradient).add_(gradient)

    def of(self, part: Part, like: Tensor) -> Tensor:
        """The residual of a part, shape [numel], where a tensor is."""
        whole = self.by_name.get(part.name)
        whole = torch.zeros(part.whole, device=like.device) if whole is None else whole.to(like.device)
        self.by_name[part.name] = whole
        return whole[part.start : part.start + part.numel]

    @property
    def nbytes(self) -> int:
        """Memory."""
        return sum(whole.numel() * whole.element_size() for whole in self.by_name.values())

    def norm(self) -> float:
        """2-norm of all residuals."""
        return float(sum(float(whole.double().square().sum()) for whole in self.by_name.values()) ** 0.5)


class SecondResiduals:
    """What this rank has left out of the means that it sent, of the parts that it averages."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, int, int], Tensor] = {}

    def corrected(self, part: Part, mean: Tensor) -> Tensor:
        """As of the first stage."""
        key = (part.name, part.start, part.numel)
        if key not in self._left:
            self._left[key] = torch.zeros(part.numel, device=mean.device)
        self._left[key] = self._left[key].to(mean.device)
        return self._left[key].add_(mean)

    def hand_over(self, cuts: Sequence[Sequence[Part]], rank: int, first: Residuals, like: Tensor) -> None:
        """What was left out of parts that this rank averages no more goes to what it sends of them as one of all ranks.

        Args:
            cuts: parts of the pieces of each rank; of one piece for all, where there is no second stage.
            rank: this one.
            first: what it has not yet sent.
            like: a tensor where gradients are.
        """
        sizes = {part.name: part.whole for piece in cuts for part in piece}
        own = {(part.name, part.start, part.numel) for part in cuts[rank]} if len(cuts) > 1 else set()
        for key in [key for key in self._left if key[0] in sizes and key not in own]:
            name, start, numel = key
            part = Part(name, start, 0, numel, sizes[name])
            first.of(part, like).add_(self._left.pop(key).to(like.device), alpha=len(cuts))

    @property
    def nbytes(self) -> int:
        """Memory."""
        return sum(left.numel() * left.element_size() for left in self._left.values())

    def state(self) -> Mapping[str, Tensor]:
        """Residuals by first element, number of elements, and parameter."""
        return {f"{start}.{numel}.{name}": left for (name, start, numel), left in self._left.items()}


def settle(residual: Tensor) -> None:
    """Forget what is not finite: it was sent, and would come back for ever."""
    residual.nan_to_num_(0.0, 0.0, 0.0)
