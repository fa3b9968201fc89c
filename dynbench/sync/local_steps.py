"""Ranks that train apart for several steps between averages: local SGD, and DiLoCo's outer optimizer over the changes.

Local SGD: Stich, ICLR 2019. DiLoCo: Douillard et al., 2023; parameters are averaged in fragments, one after the other,
as in Streaming DiLoCo (Douillard et al., 2025, arXiv:2501.18512), each waited for at once or some steps later.
With one inner step, and a plain outer step where there is one, the ranks take the mean of their updates, which under
SGD is the update by the mean gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.futures import Future
from torch.optim import Optimizer

from dynbench.plugins import options_of
from dynbench.plugins.strategies import DilocoOptions, LocalOptions
from dynbench.runs.records import Column
from dynbench.sync.base import Stepper, Strategy
from dynbench.sync.synchronised import flat_like, share_model, trained_parameters, view_like
from dynbench.wire.base import Wire
from dynbench.wire.segment import Segment, lay_out

Named = Sequence[tuple[str, nn.Parameter]]

PIECE = 2**20
"""Elements of a parameter that all ranks' values are gathered of at a time."""


class LocalSgd(Strategy):
    """Every rank steps by its own gradients; every few steps the parameters become their mean over ranks.

    In between no rank waits for another. Each clips by the norm of its own gradient, and scales its own loss.
    """

    equal_gradients: ClassVar[bool] = False
    steps_apart: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("met_parameters", "integer", "", "Parameters that went on from their mean after this step."),
    )

    def _wrapped(self, model: nn.Module) -> nn.Module:
        share_model(model, self.wire)
        self._steps = 0
        self._met, self._has_met = 0, False
        self._fragments = [Fragment(named) for named in self._cut(trained_parameters(model))]
        return model

    @property
    def _every(self) -> int:
        return options_of(self.settings, LocalOptions).inner_steps

    def buffers(self) -> Iterable[Tensor]:
        """The parameters at the last average, the outer momentum, and changes on their way."""
        tensors = (each for one in self._fragments for each in (one.anchor, one.momentum, one.change))
        return [each for each in tensors if each is not None]

    def _cut(self, named: Named) -> list[Named]:
        """What is averaged jointly."""
        return _by_kind(named)

    def _due(self) -> Iterable[Fragment]:
        """The fragments whose averaging begins after the step that is the `_steps`-th."""
        return self._fragments if self._steps % self._every == 0 else ()

    def finish(self) -> None:
        """Gradients stay this rank's own."""
        self.on_ready()

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The inner step, and the averages that are due after it."""
        precision.step(optimizer)
        self._steps += 1
        self._average_due()

    @property
    def _overlap(self) -> int:
        """Steps that averaging takes, in which ranks go on."""
        return 0

    @torch.no_grad()
    def _average_due(self) -> None:
        for fragment in self._due():
            fragment.send(self.wire, self._steps)
        averaged = [each for each in self._fragments if each.sent_after == self._steps - self._overlap]
        for fragment in averaged:
            with self.waiting():
                change = fragment.receive()
            self._outer(fragment, change)
        self._met = sum(fragment.size for fragment in averaged)
        self._has_met = self._has_met or self._met > 0

    def _outer(self, fragment: Fragment, change: Tensor) -> None:
        """Go on from the last average, by the mean of what the ranks did since."""
        fragment.anchor += change
        fragment.put(fragment.anchor)

    def drain(self) -> None:
        """Wait for what is on its way; when ranks go on from it stays as it is."""
        for fragment in self._fragments:
            fragment.wait()

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The ranks' mean model, for as long as it is evaluated."""
        with self._putting_back():
            self._average()
            yield self.model

    @contextmanager
    def _putting_back(self) -> Iterator[None]:
        own = [(parameter, parameter.detach().clone()) for _, parameter in trained_parameters(self.model)]
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in own:
                    parameter.copy_(value)

    def full_state(self) -> dict[str, Tensor] | None:
        """The ranks' mean model."""
        with self.evaluating():
            return super().full_state()

    @torch.no_grad()
    def state_alone(self) -> dict[str, Tensor] | None:
        """The model at the last average; None before the first."""
        if not self._has_met:
            return None
        with self._putting_back():
            for fragment in self._fragments:
                fragment.put(fragment.anchor)
            return super().full_state()

    @torch.no_grad()
    def _average(self) -> None:
        """In place, a piece after the other, which takes little memory."""
        for _, parameter in trained_parameters(self.model):
            flat = flat_like(parameter.detach(), parameter)
            for piece in torch.split(flat, PIECE):
                everyone = piece.repeat(self.wire.world_size)
                self.wire.gather(everyone, piece.clone()).wait()
                piece.copy_(everyone.view(self.wire.world_size, -1).mean(0))
            if flat.data_ptr() != parameter.data_ptr():
                parameter.copy_(view_like(flat, parameter))

    def row(self) -> Mapping[str, object]:
        """Of the step that ended."""
        return {"met_parameters": self._met}


class Fragment:
    """Parameters that are averaged jointly, and what they were after the last average.

    Args:
        named: their names and themselves, of one type.
    """

    def __init__(self, named: Named) -> None:
        self.named = named
        self.segments: tuple[Segment, ...] = lay_out((name, p.shape) for name, p in named)
        self.size = sum(p.numel() for _, p in named)
        self.anchor = self.now()
        self.momentum: Tensor | None = None
        self.sent_after: int | None = None
        """The step after which its change was sent that ranks have not gone on from."""
        self.change: Tensor | None = None
        """That change, and the mean over ranks once it has come."""
        self._future: Future[Tensor] | None = None

    def send(self, wire: Wire, step: int) -> None:
        """Begin to average what they have moved by since, after a step."""
        self.sent_after, self.change = step, self.now() - self.anchor
        self._future = wire.mean(self.change, self.segments)

    def wait(self) -> None:
        """Return when the mean is there."""
        if self._future is not None:
            self._future.wait()
            self._future = None

    def receive(self) -> Tensor:
        """The mean change, shape [n]; it is taken."""
        self.wait()
        change, self.change, self.sent_after = self.change, None, None
        assert change is not None, "sent"
        return change

    def put(self, flat: Tensor) -> None:
        """Set the parameters, not the anchor."""
        for segment, (_, parameter) in zip(self.segments, self.named, strict=True):
            parameter.detach().copy_(view_like(flat[segment.offset : segment.offset + segment.numel], parameter))

    def now(self) -> Tensor:
        """The parameters, shape [n]."""
        return torch.cat([flat_like(p.detach(), p) for _, p in self.named])


class Diloco(LocalSgd):
    """DiLoCo: an outer step of SGD with Nesterov momentum along the mean of what the ranks did.

    Fragments are averaged in turn, evenly over the inner steps. Where that takes steps, a rank goes on from a mixture
    of where the outer step has led and where it is itself by then.
    """

    @property
    def _overlap(self) -> int:
        return options_of(self.settings, DilocoOptions).overlap_steps

    def _cut(self, named: Named) -> list[Named]:
        wanted = min(options_of(self.settings, DilocoOptions).fragments, len(named))
        total, found = sum(p.numel() for _, p in named), [[] for _ in range(wanted)]  # type: ignore[var-annotated]
        done = 0
        for each in named:
            found[min(wanted - 1, done * wanted // total)].append(each)
            done += each[1].numel()
        return [kind for part in found if part for kind in _by_kind(part)]

    def _due(self) -> Iterable[Fragment]:
        number, every = len(self._fragments), self._every
        return [
            fragment
            for place, fragment in enumerate(self._fragments)
            if (self._steps - (place + 1) * every // number) % every == 0
        ]

    def _outer(self, fragment: Fragment, change: Tensor) -> None:
        """Nesterov's, as torch.optim.SGD takes it, with the negative change for a gradient."""
        options = options_of(self.settings, DilocoOptions)
        if options.outer_momentum:
            if fragment.momentum is None:
                fragment.momentum = change.clone()
            else:
                fragment.momentum.mul_(options.outer_momentum).add_(change)
            change = change.add(fragment.momentum, alpha=options.outer_momentum)
        fragment.anchor += change * options.outer_rate
        own = options.own_share if options.overlap_steps else 0
        fragment.put(fragment.anchor.lerp(fragment.now(), own) if own else fragment.anchor)


def _by_kind(named: Named) -> list[Named]:
    kinds = dict.fromkeys(parameter.dtype for _, parameter in named)
    return [[each for each in named if each[1].dtype == kind] for kind in kinds]


class LocalSgdTorch(LocalSgd):
    """Ranks that step apart, with a PeriodicModelAverager, whose all-reduces go past the wire and are not counted.

    It averages after the first step, and then every `sync.inner_steps`.
    """

    def _wrapped(self, model: nn.Module) -> nn.Module:
        self._averager = PeriodicModelAverager(period=self._every, process_group=self.wire.group)
        return super()._wrapped(model)

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The inner step, and the mean where it is due."""
        precision.step(optimizer)
        meets = self._averager.step % self._every == 0
        for fragment in self._fragments:
            for _, parameter in fragment.named:
                if parameter.grad is None:  # torch leaves it out, on this rank alone
                    parameter.grad = torch.zeros_like(parameter)
        with self.waiting():
            self._averager.average_parameters(self.model.parameters())
        self._met = sum(fragment.size for fragment in self._fragments) if meets else 0
        if meets:
            self._has_met = True
            for fragment in self._fragments:
                fragment.anchor = fragment.now()
