"""What a rank holds of a model, by kind, at three moments of its first step: counted in tensors, not in pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.replica import Replica
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.units import mb

MOMENTS = ("initialised", "before_step", "after_step")
"""The model, its strategy and its optimizer are made; gradients are synchronised; the optimizer has stepped."""


class HeldMemory:
    """Counts what a rank holds, where it is asked for, in its first step.

    A tensor of several ranks counts with this rank's part of it, and storage that several share counts once. What lives
    within a pass only is not held at any of the moments, but for the activations: what autograd saves for the backward
    pass of a micro-batch.

    Args:
        run: its folder.
        rank: the rank.
        replica: the model, strategy and optimizer.
        memory: tells the peak up to a moment, where it can.
        wanted: whether anything is counted.
    """

    def __init__(self, run: Run, rank: int, replica: Replica, memory: MemoryMeter, *, wanted: bool) -> None:
        self._rank = rank
        self._file = run.held_file(rank)
        self._replica = replica
        self._memory = memory
        self._wanted = wanted
        self._found: dict[str, dict[str, float | None]] = {}
        self._activations = 0
        self._note(MOMENTS[0])

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The forward and backward passes of a step, at whose end the gradients are synchronised."""
        if not self._wanted:
            yield
            return
        saved = Saved()
        with saved_tensors_hooks(saved.save, lambda kept: kept.tensor):
            yield
        self._activations = saved.most
        self._note(MOMENTS[1])

    def stepped(self) -> None:
        """The optimizer has stepped; gradients are still there. What was counted is written."""
        if self._wanted:
            self._note(MOMENTS[2])
            model = self._replica.model.parameters()
            whole = sum(each.numel() * each.element_size() for each in model if each.requires_grad)
            facts = {"rank": self._rank, "whole_mb": mb(whole), "activations_mb": mb(self._activations)}
            write_json(self._file, {**facts, **self._found})
            self._wanted = False

    def _note(self, moment: str) -> None:
        if not self._wanted:
            return
        replica, optimizer = self._replica, self._replica.optimizer
        stepping = getattr(optimizer, "optim", optimizer)  # a ZeroRedundancyOptimizer's own
        parameters = list(self._parameters())
        kinds: dict[str, Iterable[Tensor]] = {
            "parameters_mb": parameters,
            "gradients_mb": [each.grad for each in parameters if each.grad is not None],
            "optimizer_mb": [value for state in stepping.state.values() for value in _tensors(state)],
            "strategy_mb": replica.strategy.buffers(),
        }
        counted: set[int] = set()
        found: dict[str, float | None] = {kind: mb(_bytes(tensors, counted)) for kind, tensors in kinds.items()}
        self._found[moment] = {**found, "peak_mb": self._memory.peak_mb()}

    def _parameters(self) -> Iterator[Tensor]:
        yield from self._replica.strategy.module.parameters()
        for group in self._replica.optimizer.param_groups:
            yield from group["params"]


class Saved:
    """What autograd has saved and not let go of, storage that several tensors share counted once, in bytes.

    A micro-batch lets go of its own in its backward pass, after which the next has other storage at the same addresses.
    """

    def __init__(self) -> None:
        self.now = self.most = 0
        self._users: Counter[int] = Counter()

    def save(self, tensor: Tensor) -> _Kept:
        """Count a tensor for as long as what is returned lives; parameters are held anyway."""
        of_parameter = isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)
        return _Kept(tensor, None if of_parameter else self)

    def count(self, storage: int, size: int, users: int) -> None:
        """So many more users of a storage of `size` bytes, or fewer."""
        before, self._users[storage] = self._users[storage], self._users[storage] + users
        if not before or not self._users[storage]:
            self.now += users * size
            self.most = max(self.most, self.now)


class _Kept:
    def __init__(self, tensor: Tensor, of: Saved | None) -> None:
        self.tensor, self._of = tensor, of
        if of is not None:
            storage = _storage(tensor)
            self._storage, self._size = storage._cdata, storage.nbytes()
            of.count(self._storage, self._size, 1)

    def __del__(self) -> None:
        if self._of is not None:
            self._of.count(self._storage, self._size, -1)


def _bytes(tensors: Iterable[Tensor], counted: set[int]) -> int:
    """Of storage that is not among that `counted`, which it joins."""
    total = 0
    for tensor in tensors:
        storage = _storage(tensor)
        if storage.nbytes() and storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor has a part
    return local.untyped_storage()


def _tensors(state: dict[str, Any]) -> Iterator[Tensor]:
    return (value for value in state.values() if isinstance(value, Tensor) and value.dim())
