"""Buckets sent in order, and the times of a strategy's step.

Ranks need not complete their gradients in the same order: a rank may leave a parameter unused that another one uses.
So what is sent has a fixed order, and whatever is complete waits for what comes before it. A parameter that no rank
used in some step goes behind all others from then on, where it keeps nothing waiting; all ranks know of it alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.futures import Future

from dynbench.clock import clock_for
from dynbench.errors import UsageError
from dynbench.sync.synchronised import SynchronisedModule
from dynbench.wire.base import Wire
from dynbench.wire.segment import lay_out


class StepTimes:
    """Intervals of a step by name; nothing waits for the device until they are taken.

    Args:
        device: whose clock they are on.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = clock_for(device)
        self._spans: list[tuple[str, object, object]] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time a block; those of one name add up."""
        start = self._clock.mark()
        yield
        self._spans.append((name, start, self._clock.mark()))

    def take_ms(self) -> defaultdict[str, float]:
        """Milliseconds by name since the last call, 0 for any other; the device must be synchronised."""
        spans, self._spans = self._spans, []
        total: defaultdict[str, float] = defaultdict(float)
        for name, start, end in spans:
            total[name] += self._clock.elapsed_ms(start, end)
        return total


Members = Mapping[int, tuple[str, nn.Parameter]]
"""Name and parameter by place among the trained ones."""


class Part(ABC):
    """Gradients that are sent as one.

    Args:
        members: of these parameters, in their order in what is sent.
        wire: sends them.
    """

    def __init__(self, members: Members, wire: Wire) -> None:
        self.members = members
        self.segments = lay_out((name, parameter.shape) for name, parameter in members.values())
        self.missing = set(members)
        """Members whose gradients have not come in this step."""
        self._wire = wire

    @abstractmethod
    def take_up(self, index: int) -> None:
        """A member's gradient has come; None where this rank has none, which counts as zeros."""

    @abstractmethod
    def send(self) -> Future[Tensor]:
        """Begin to average."""

    @abstractmethod
    def take_back(self, used: Iterable[int]) -> None:
        """The mean is there; the gradients of these members, which some rank has used, become it."""


class InOrder(SynchronisedModule):
    """A synchronised module that sends a part as soon as it, and all before it, are complete."""

    def __init__(
        self, module: nn.Module, wire: Wire | None = None, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(module, wire, on_ready)
        self._behind: frozenset[int] = frozenset()
        self._deal()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, (_, parameter) in enumerate(self._trained)
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @abstractmethod
    def _cut(self, order: Sequence[int]) -> Iterable[Part]:
        """Parts of parameters in this order."""

    def _deal(self) -> None:
        """Cut what is sent: parameters from the last to the first, those behind all others after them."""
        backwards = range(len(self._trained))[::-1]
        first = [index for index in backwards if index not in self._behind]
        last = [index for index in backwards if index in self._behind]
        self._parts = [*self._cut(first), *self._cut(last)]
        self._part_of = {index: part for part in self._parts for index in part.members}
        self._begin()

    def _begin(self) -> None:
        for part in self._parts:
            part.missing = set(part.members)
        self._left = len(self._trained)
        self._sent: list[Future[Tensor]] = []

    @torch.no_grad()
    def _arrived(self, index: int, parameter: Tensor) -> None:
        if not self._sends:
            return
        part = self._part_of[index]
        if index not in part.missing:
            raise UsageError(
                f"{self._trained[index][0]} got a gradient twice in a step",
                "Call finish_gradient_synchronization before the next step, and run all backward passes of a step but "
                "the last inside no_sync().",
            )
        self._take_up(part, index)
        self._left -= 1
        if not self._left:
            self._on_ready()
        self._send_complete()

    def _take_up(self, part: Part, index: int) -> None:
        part.take_up(index)
        part.missing.remove(index)

    def _send_complete(self) -> None:
        while len(self._sent) < len(self._parts) and not self._parts[len(self._sent)].missing:
            self._sent.append(self._parts[len(self._sent)].send())

    def _average(self) -> None:
        if self._left:
            self._on_ready()
        for part in self._parts:
            for index in sorted(part.missing):
                self._take_up(part, index)
        self._send_complete()
        unused = self._unused()
        for part, future in zip(self._parts, self._sent, strict=True):
            future.wait()
            part.take_back(part.members.keys() - unused)
        if unused <= self._behind:
            self._begin()
        else:
            self._behind |= unused
            self._deal()
