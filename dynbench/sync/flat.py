"""One all-reduce of all gradients together, once the backward pass is over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from dynbench.sync.one_model import refuse_sparse
from dynbench.sync.synchronised import SynchronisedModule
from dynbench.wire.segment import lay_out

Named = Sequence[tuple[str, nn.Parameter]]


class FlatDDP(SynchronisedModule):
    """Data parallelism in one message, or one for each type of parameters: copied together, averaged, copied back."""

    def _average(self) -> None:
        self._on_ready()
        unused = self._unused()
        used = [named for index, named in enumerate(self._trained) if index not in unused]
        kinds = sorted(used, key=lambda named: str(named[1].dtype))
        for _, kind in groupby(kinds, key=lambda named: named[1].dtype):
            together = list(kind)
            flat = self.flatten(together)
            self._wire.mean(flat, lay_out((name, p.shape) for name, p in together)).wait()
            self.unflatten(flat, together)

    def flatten(self, together: Named) -> Tensor:
        """Their gradients one after the other, shape [n]; zeros for one that this rank lacks."""
        given = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in together]
        for gradient in given:
            refuse_sparse(gradient)
        return torch.cat([gradient.reshape(-1) for gradient in given])

    def unflatten(self, flat: Tensor, together: Named) -> None:
        """Back to the gradients."""
        for segment, (_, parameter) in zip(lay_out((name, p.shape) for name, p in together), together, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(segment.of(flat))
