"""What compression left out, kept for the next time (error feedback: Seide et al., 2014; Karimireddy et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dynbench.compress.message import Part
from dynbench.errors import RecordError


class Residuals:
    """What this rank has not yet sent of every parameter, in float32; how gradients are cut may change."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def corrected(self, part: Part, gradient: Tensor) -> Tensor:
        """A gradient, shape [numel], with what was left out before: a view of what is kept, to be taken from."""
        return self.of(part, gradient).add_(gradient)

    def of(self, part: Part, like: Tensor) -> Tensor:
        """What is kept of a part, shape [numel], where a tensor is.

        Raises:
            RecordError: a saved residual of a parameter of another size.
        """
        whole = self._kept.get(part.name)
        whole = torch.zeros(part.whole, device=like.device) if whole is None else whole.to(like.device)
        if len(whole) != part.whole:
            raise RecordError(
                f"{part.name}: the saved residual has {len(whole)} elements, the parameter {part.whole}",
                "Go on with the model that it was saved from.",
            )
        self._kept[part.name] = whole
        return whole[part.start : part.start + part.numel]

    @property
    def nbytes(self) -> int:
        """Memory."""
        return sum(whole.numel() * whole.element_size() for whole in self._kept.values())

    def norm(self) -> float:
        """2-norm of all that is kept."""
        return float(sum(float(whole.double().square().sum()) for whole in self._kept.values()) ** 0.5)

    def state(self) -> Mapping[str, Tensor]:
        """Residuals by parameter."""
        return self._kept

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up what was kept."""
        self._kept = {name: whole.clone() for name, whole in state.items()}


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

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up what was kept."""
        self._left = {}
        for key, left in state.items():
            start, numel, name = key.split(".", 2)
            self._left[name, int(start), int(numel)] = left.clone()


def settle(residual: Tensor) -> None:
    """Forget what is not finite: it was sent, and would come back for ever."""
    residual.nan_to_num_(0.0, 0.0, 0.0)
