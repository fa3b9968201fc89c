"""Ranks that train apart for several steps and meet then: local SGD, and DiLoCo's outer optimizer over what they did.

Local SGD: Stich, ICLR 2019. DiLoCo: Douillard et al., 2023; parameters meet in fragments, one after the other, as in
Streaming DiLoCo (2025), here each waited for when its turn comes. With one inner step, and a plain outer step where
there is one, the ranks take the mean of their updates, which under SGD is the update by the mean gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.plugins import options_of
from dynbench.plugins.strategies import DilocoOptions, LocalOptions
from dynbench.runs.columns import Column
from dynbench.sync.base import Stepper, Strategy
from dynbench.sync.one_model import flat_like, share_model, trained_parameters, view_like
from dynbench.wire.segment import Segment, lay_out

Named = Sequence[tuple[str, nn.Parameter]]


class LocalSteps(Strategy):
    """Every rank steps by its own gradients; what they did since they last met is averaged every few steps.

    In the engine ranks tell each other in every step what its samples weigh, so that they keep in step all the same;
    that wait is in the time to synchronise.
    """

    equal_gradients: ClassVar[bool] = False
    collective_state: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("met_parameters", "integer", "", "Parameters whose changes were averaged after this step."),
    )

    def _wrapped(self, model: nn.Module) -> nn.Module:
        share_model(model, self.wire)
        self._steps = 0
        self._met = 0
        self._fragments = [Fragment(named) for named in self._cut(trained_parameters(model))]
        return model

    @property
    def _every(self) -> int:
        return options_of(self.settings, LocalOptions).inner_steps

    def _cut(self, named: Named) -> list[Named]:
        """What meets together."""
        return _by_kind(named)

    def _due(self) -> Iterable[Fragment]:
        """The fragments that meet after the step that is the `_steps`-th."""
        return self._fragments if self._steps % self._every == 0 else ()

    def accumulating(self) -> AbstractContextManager[None]:
        """Nothing is sent in a backward pass."""
        return nullcontext()

    def finish(self) -> None:
        """Gradients stay this rank's own."""
        self.on_ready()

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The inner step, and what meets after it."""
        precision.step(optimizer)
        self._steps += 1
        self._meet()

    @torch.no_grad()
    def _meet(self) -> None:
        meeting = [(fragment, fragment.change()) for fragment in self._due()]
        futures = [self.wire.mean(change, fragment.segments) for fragment, change in meeting]
        for (fragment, change), future in zip(meeting, futures, strict=True):
            with self.waiting():
                future.wait()
            self._outer(fragment, change)
        self._met = sum(fragment.size for fragment, _ in meeting)

    def _outer(self, fragment: Fragment, change: Tensor) -> None:
        """Go on from where the ranks last met, by the mean of what they did since."""
        fragment.move(change)

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The ranks' mean model, for as long as it is evaluated."""
        own = [(parameter, parameter.detach().clone()) for part in self._fragments for _, parameter in part.named]
        self._average()
        try:
            yield self.model
        finally:
            with torch.no_grad():
                for parameter, kept in own:
                    parameter.copy_(kept)

    def full_state(self) -> dict[str, Tensor] | None:
        """The ranks' mean model."""
        with self.evaluating():
            return super().full_state()

    @torch.no_grad()
    def _average(self) -> None:
        for fragment in self._fragments:
            mean = torch.cat([flat_like(p.detach(), p) for _, p in fragment.named])
            parts = mean.repeat(self.wire.world_size)
            self.wire.gather(parts, mean).wait()
            fragment.put(parts.view(self.wire.world_size, -1).mean(0))

    def row(self) -> Mapping[str, object]:
        """Of the step that ended."""
        return {"met_parameters": self._met}


class Fragment:
    """Parameters that meet together, and where they were when they last did.

    Args:
        named: their names and themselves, of one type.
    """

    def __init__(self, named: Named) -> None:
        self.named = named
        self.segments: tuple[Segment, ...] = lay_out((name, p.shape) for name, p in named)
        self.size = sum(p.numel() for _, p in named)
        self.anchor = self._now()
        self.momentum: Tensor | None = None

    def change(self) -> Tensor:
        """What they have moved by since, shape [n]."""
        return self._now() - self.anchor

    def move(self, change: Tensor) -> None:
        """Meet at so much beyond where they last met."""
        self.anchor += change
        self.put(self.anchor)

    def put(self, flat: Tensor) -> None:
        """Set the parameters, not where they last met."""
        for segment, (_, parameter) in zip(self.segments, self.named, strict=True):
            parameter.detach().copy_(view_like(flat[segment.offset : segment.offset + segment.numel], parameter))

    def _now(self) -> Tensor:
        return torch.cat([flat_like(p.detach(), p) for _, p in self.named])


class LocalSgd(LocalSteps):
    """Local SGD: the parameters become their mean over ranks."""


class Diloco(LocalSteps):
    """DiLoCo: an outer step of SGD with Nesterov momentum along the mean of what the ranks did.

    Fragments meet in turn, evenly over the inner steps.
    """

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
        fragment.move(change * options.outer_rate)


def _by_kind(named: Named) -> list[Named]:
    kinds = dict.fromkeys(parameter.dtype for _, parameter in named)
    return [[each for each in named if each[1].dtype == kind] for kind in kinds]
