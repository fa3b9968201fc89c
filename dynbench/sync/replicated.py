"""Strategies under which every rank holds the whole model, over the public classes of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar

from torch import Tensor, nn

from dynbench.clock import clock_for
from dynbench.plugins import options_of
from dynbench.plugins.strategies import BucketOptions
from dynbench.runs.records import Column
from dynbench.sync.base import Strategy
from dynbench.sync.in_order import BucketedDDP, OverlapDDP
from dynbench.sync.synchronised import FlatDDP, NaiveDDP, Named, SynchronisedModule
from dynbench.wire.base import Wire
from dynbench.wire.traffic import Spans


class Replicated(Strategy):
    """One of the public modules, on the wire that the engine gives."""

    equal_gradients: ClassVar[bool] = True
    public: ClassVar[type[SynchronisedModule]]
    """The public class."""
    module: SynchronisedModule

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return self.public(model, self.wire, self.on_ready)

    def accumulating(self) -> AbstractContextManager[None]:
        """The module's `no_sync`."""
        return self.module.no_sync()

    def finish(self) -> None:
        """The module's `finish_gradient_synchronization`."""
        self.module.finish_gradient_synchronization()

    def close(self) -> None:
        """Remove the module's hooks, which hold it."""
        if (module := self.__dict__.pop("module", None)) is not None:
            module.close()
        super().close()


class Naive(Replicated):
    """`NaiveDDP`."""

    public = NaiveDDP


class Overlap(Replicated):
    """`OverlapDDP`."""

    public = OverlapDDP


class Bucketed(Replicated):
    """`BucketedDDP`."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        size = options_of(self.settings, BucketOptions).bucket_mb
        return BucketedDDP(model, None if size == "none" else size, self.wire, self.on_ready)


class _Timed(FlatDDP):
    """Notes what copies take."""

    def __init__(self, module: nn.Module, wire: Wire, on_ready: Callable[[], None]) -> None:
        super().__init__(module, wire, on_ready)
        self.times = Spans(clock_for(self._device))

    def flatten(self, named: Named) -> Tensor:
        with self.times.of("flatten_ms"):
            return super().flatten(named)

    def unflatten(self, flat: Tensor, named: Named) -> None:
        with self.times.of("unflatten_ms"):
            super().unflatten(flat, named)


class Flat(Replicated):
    """`FlatDDP`, with the time that copying takes apart."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("flatten_ms", "number", "ms", "Copying all gradients into one, within the time to synchronise."),
        Column("unflatten_ms", "number", "ms", "Copying their means back, within the time to synchronise."),
    )
    public = _Timed
    module: _Timed

    def row(self) -> Mapping[str, object]:
        """Their values, of a step that the device has done."""
        times = self.module.times.take_ms()
        return {column.name: times[column.name] for column in self.columns}
