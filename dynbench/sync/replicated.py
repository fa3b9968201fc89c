"""Strategies under which every rank holds the whole model, over the public classes of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from torch import Tensor, nn

from dynbench.clock import clock_for
from dynbench.plugins import options_of
from dynbench.plugins.strategies import BucketOptions
from dynbench.runs.columns import Column
from dynbench.sync.base import Strategy
from dynbench.sync.bucketed import BucketedDDP
from dynbench.sync.flat import FlatDDP, Named
from dynbench.sync.naive import NaiveDDP
from dynbench.sync.overlap import OverlapDDP
from dynbench.sync.synchronised import SynchronisedModule


class Replicated(Strategy):
    """One of the public modules, on the wire that the engine gives."""

    equal_gradients: ClassVar[bool] = True
    module: SynchronisedModule

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

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return NaiveDDP(model, self.wire, self.on_ready)


class Overlap(Replicated):
    """`OverlapDDP`."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return OverlapDDP(model, self.wire, self.on_ready)


class Bucketed(Replicated):
    """`BucketedDDP`."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        size = options_of(self.settings, BucketOptions).bucket_mb
        return BucketedDDP(model, None if size == "none" else size, self.wire, self.on_ready)


class Flat(Replicated):
    """`FlatDDP`, with the time that copying takes apart."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("flatten_ms", "number", "ms", "Copying all gradients into one, within the time to synchronise."),
        Column("unflatten_ms", "number", "ms", "Copying their means back, within the time to synchronise."),
    )
    module: _Timed

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return _Timed(model, self.wire, self.on_ready)

    def row(self) -> Mapping[str, object]:
        """Their values, of a step that the device has done."""
        return self.module.take_ms()


class _Timed(FlatDDP):
    """Notes when copies begin and end."""

    def flatten(self, together: Named) -> Tensor:
        with self._timed("flatten_ms"):
            return super().flatten(together)

    def unflatten(self, flat: Tensor, together: Named) -> None:
        with self._timed("unflatten_ms"):
            super().unflatten(flat, together)

    def take_ms(self) -> dict[str, object]:
        """Milliseconds of each since the last call; the device must be synchronised."""
        spans, self._spans = self._spans, []
        clock = clock_for(self._device)
        names = [column.name for column in Flat.columns]
        return {name: sum(clock.elapsed_ms(*span) for key, *span in spans if key == name) for name in names}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        clock = clock_for(self._device)
        start = clock.mark()
        yield
        self._spans.append((name, start, clock.mark()))

    _spans: list[tuple[str, object, object]] = []  # noqa: RUF012  replaced, never changed
