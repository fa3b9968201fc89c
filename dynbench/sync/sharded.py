"""Buckets of which every rank averages and updates its part: a reduce-scatter, the step, an all-gather."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.optim import Optimizer

from dynbench.plugins import options_of
from dynbench.plugins.strategies import BucketOptions
from dynbench.sync.base import OptimizerFactory, Stepper, gradient_norm
from dynbench.sync.fully_sharded_streams import blocks_of
from dynbench.sync.in_order import Bucket, BucketedDDP, Members, Part
from dynbench.sync.replicated import Replicated
from dynbench.sync.synchronised import view_like
from dynbench.wire.base import Wire


class ShardedBucket(Bucket):
    """A bucket, filled up to equal shards, with its parameters beside its gradients.

    `weights`, shape [n], holds the parameters, which become views into it. `pieces` are what this rank's shard has of
    them, by member, one-dimensional: what an optimizer steps.
    """

    def __init__(self, members: Members, wire: Wire) -> None:
        super().__init__(members, wire)
        self.weights = torch.zeros_like(self.flat)
        size = len(self.flat) // wire.world_size
        start, end = wire.rank * size, (wire.rank + 1) * size
        self._own, self._mean = self.weights[start:end], self.flat.new_zeros(size)
        self.pieces: dict[int, nn.Parameter] = {}
        self._means: dict[int, Tensor] = {}
        for segment, (index, (_, parameter)) in zip(self.segments, members.items(), strict=True):
            first, last = segment.offset, segment.offset + segment.numel
            view = view_like(self.weights[first:last], parameter)
            view.copy_(parameter.detach())
            parameter.data = view
            first, last = max(first, start), min(last, end)
            if first < last:
                self.pieces[index] = nn.Parameter(self.weights[first:last])
                self._means[index] = self._mean[first - start : last - start]
        self._gathered: Future[Tensor] | None = None

    def _filled_up(self, size: int) -> int:
        return size + -size % self._wire.world_size

    def send(self) -> Future[Tensor]:
        """Begin to average this rank's shard."""
        return self._wire.mean_shard(self.flat, self.segments, self._mean)

    def take_back(self, used: Iterable[int]) -> None:
        """Give the pieces their gradients, and take the parameters' away, which were this rank's own."""
        used = set(used)
        for index, (_, parameter) in self.members.items():
            parameter.grad = None
            if index in self.pieces:
                self.pieces[index].grad = self._means[index] if index in used else None

    def gather(self) -> None:
        """Begin to collect what every rank has made of its shard."""
        self._gathered = self._wire.gather(self.weights, self._own)

    def wait(self) -> None:
        """Return when the parameters are whole."""
        if (gathered := self._gathered) is not None:
            self._gathered = None
            gathered.wait()


class ShardedBuckets(BucketedDDP):
    """A module whose rank's part of the mean gradient lies in `pieces`, and whose forward passes wait for parameters.

    A block waits for those of its own as it begins, so that later ones are still collected while it runs. What is also
    used outside of blocks is waited for as the module begins, and so are the parameters of blocks that no forward pass
    has called, whose weights the module's code may use by itself.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_size_mb: float | None,
        wire: Wire,
        on_ready: Callable[[], None],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._waiting = waiting
        super().__init__(module, bucket_size_mb, wire, on_ready)
        blocks = blocks_of(module)
        inside = {id(each) for block in blocks for each in block.modules()}
        outside = [p for each in module.modules() if id(each) not in inside for p in each.parameters(recurse=False)]
        self._of_block = {block: self._holding(block.parameters()) for block in blocks}
        self._outside = self._holding(outside)
        self._uncalled = dict.fromkeys(blocks)
        self._hooks.append(module.register_forward_pre_hook(self._begins))
        self._hooks += [block.register_forward_pre_hook(self._block_begins) for block in blocks]

    def _holding(self, parameters: Iterable[nn.Parameter]) -> list[ShardedBucket]:
        """The buckets that these parameters are in."""
        wanted = {id(parameter) for parameter in parameters}
        return [each for each in self.sharded if any(id(p) in wanted for _, p in each.members.values())]

    def _begins(self, *_: object) -> None:
        for buckets in (self._outside, *(self._of_block[block] for block in self._uncalled)):
            self._wait(buckets)

    def _block_begins(self, block: nn.Module, _: object) -> None:
        self._uncalled.pop(block, None)
        self._wait(self._of_block[block])

    @property
    def sharded(self) -> list[ShardedBucket]:
        """The buckets, in the order in which their gradients are sent."""
        return [part for part in self._parts if isinstance(part, ShardedBucket)]

    @property
    def pieces(self) -> list[nn.Parameter]:
        """What this rank's optimizer steps."""
        return [piece for bucket in self.sharded for piece in bucket.pieces.values()]

    def gather(self) -> None:
        """Begin to collect the parameters, those first that the next forward pass needs first."""
        for bucket in reversed(self.sharded):
            bucket.gather()

    def wait(self) -> None:
        """Return when all parameters are whole."""
        self._wait(self.sharded)

    def _wait(self, buckets: Iterable[ShardedBucket]) -> None:
        with self._waiting():
            for bucket in buckets:
                bucket.wait()

    def _bucket(self, members: Members) -> Bucket:
        return ShardedBucket(members, self._wire)

    def _deal(self) -> None:
        """Buckets stay as they are, as an optimizer has state of their pieces; those with unused parameters go last."""
        if not hasattr(self, "_parts"):
            super()._deal()
            return
        self._parts.sort(key=self._is_behind)
        self._begin()

    def _is_behind(self, part: Part) -> bool:
        return not self._behind.isdisjoint(part.members)


class Zero1(Replicated):
    """Optimizer state divided evenly, as in ZeRO stage 1 (Rajbhandari et al., SC 2020), for element-wise optimizers.

    The all-gather that follows a step goes on behind the next forward pass; what of it is not hidden is in the time to
    synchronise.
    """

    equal_gradients: ClassVar[bool] = False
    module: ShardedBuckets

    def _wrapped(self, model: nn.Module) -> nn.Module:
        size = options_of(self.settings, BucketOptions).bucket_mb
        return ShardedBuckets(model, None if size == "none" else size, self.wire, self.on_ready, self.waiting)

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        """Over this rank's pieces, or over nothing where there are fewer elements than ranks."""
        return factory(self.module.pieces or [nn.Parameter(torch.empty(0))])

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The step on the pieces; the parameters begin to be collected."""
        self.module.wait()  # for those of blocks that no forward pass has reached
        precision.step(optimizer)
        self.module.gather()

    def buffers(self) -> Iterable[Tensor]:
        """The buckets in which whole gradients are assembled."""
        return [bucket.flat for bucket in self.module.sharded]

    def gradient_norm(self) -> Tensor:
        """Over the pieces of all ranks."""
        return self.norm_over_shards(gradient_norm(self.module.pieces).to(self.module.sharded[0].weights))

    def drain(self) -> None:
        """Wait for the parameters."""
        self.module.wait()

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The model, whole."""
        self.module.wait()
        yield self.model

    def full_state(self) -> dict[str, Tensor] | None:
        """The model's state, once it is whole."""
        self.module.wait()
        return super().full_state()
