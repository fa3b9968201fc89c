"""One all-reduce per parameter, one after the other, once the backward pass is over."""

from __future__ import annotations

import torch

from dynbench.sync.one_model import flat_like, view_like
from dynbench.sync.synchronised import SynchronisedModule
from dynbench.wire.segment import lay_out


class NaiveDDP(SynchronisedModule):
    """Data parallelism as it is first written down: nothing overlaps, and every parameter is a message of its own."""

    def _average(self) -> None:
        self._on_ready()
        unused = self._unused()
        for index, (name, parameter) in enumerate(self._trained):
            if index not in unused:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                flat = flat_like(parameter.grad, parameter)
                self._wire.mean(flat, lay_out([(name, parameter.shape)])).wait()
                if flat.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.copy_(view_like(flat, parameter))
