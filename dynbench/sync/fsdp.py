"""torch's fully_shard (FSDP2): every rank keeps a part of each parameter, and gathers a block's while it runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
from torch.distributed.tensor import DTensor

from dynbench.plugins import options_of
from dynbench.plugins.strategies import FsdpOptions
from dynbench.sync.base import Strategy
from dynbench.sync.blocks import blocks_of
from dynbench.sync.one_model import check_same_parameters, share_tensors, unused_everywhere
from dynbench.wire.base import Wire
from dynbench.wire.segment import lay_out


class Fsdp(Strategy):
    """`fully_shard` of each block and of the rest, with its gathers and reduce-scatters on the wire.

    The model is moved block by block, each with rank 0's values, so that it is never whole on a device. A parameter
    that no rank has used gets no gradient; where some ranks did, it counts as zeros on the others.
    """

    equal_gradients: ClassVar[bool] = False
    collective_forward: ClassVar[bool] = True
    module: FSDPModule  # type: ignore[assignment]  # which is a module besides

    def wrap(self, model: nn.Module, device: torch.device, on_ready: Callable[[], None] = lambda: None) -> nn.Module:
        """Take up the model, a block at a time."""
        self.on_ready = on_ready
        self.model = model
        check_same_parameters(model, self.wire)
        options = options_of(self.settings, FsdpOptions)
        mesh = DeviceMesh.from_group(self.wire.group, device.type)
        low = torch.bfloat16 if options.gather_bf16 else None
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
        done: set[int] = set()
        for part in (*blocks_of(model), model):
            part.to(device)
            own = [each for each in chain(part.parameters(), part.buffers()) if id(each) not in done]
            share_tensors([each for each in own if not isinstance(each, DTensor)], self.wire)
            fully_shard(part, mesh=mesh, reshard_after_forward=options.reshard, mp_policy=policy)
            done |= {id(each) for each in chain(part.parameters(), part.buffers())}
        self._sharded = [each for each in model.modules() if isinstance(each, FSDPModule)]
        for each in self._sharded:
            each.set_custom_all_gather(_Gather(self.wire))
            each.set_custom_reduce_scatter(_Scatter(self.wire, self._sending))
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)
        assert isinstance(model, FSDPModule)
        if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            model.set_reduce_scatter_unused_params(True)
        self._groups = [group for each in self._sharded for group in each._get_fsdp_state()._fsdp_param_groups]
        self._trained = [
            each for group in self._groups for each in group.fsdp_params if each.sharded_param.requires_grad
        ]
        self._used: set[int] = set()
        self._watched = False
        self._sends = 0
        model.register_forward_hook(self._watch)
        self.module = model
        return model

    def _wrapped(self, model: nn.Module) -> nn.Module:
        raise NotImplementedError("taken up block by block")

    def _watch(self, *_: object) -> None:
        """From the first forward pass on, when they are there, tell which parameters get gradients."""
        if not self._watched:
            self._watched = True
            for place, each in enumerate(self._trained):
                if hasattr(each, "_unsharded_param"):
                    note = partial(self._note_used, place)
                    each._unsharded_param.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]

    def _note_used(self, place: int, _: Tensor) -> None:
        self._used.add(place)

    def _sending(self) -> None:
        """A block's gradients are about to be sent; the last are when the root's are, which come last."""
        self._sends += 1
        if self._sends == sum(any(p.sharded_param.requires_grad for p in group.fsdp_params) for group in self._groups):
            self.on_ready()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Gradients stay whole on every rank."""
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)

    def finish(self) -> None:
        """The backward pass ends with shards of the mean; those that no rank has used are taken away."""
        if not self._sends:
            self.on_ready()
        self._sends = 0
        unused = unused_everywhere(self._used, len(self._trained), self.wire, self._trained[0].sharded_param.device)
        self._used = set()
        for place in unused:
            self._trained[place].sharded_param.grad = None

    def gradient_norm(self) -> Tensor:
        """Over all shards."""
        local = [p.grad.to_local() for p in self._parameters() if isinstance(p.grad, DTensor)]
        norm: Tensor = nn.utils.get_total_norm(local)
        return self.norm_over_shards(norm.to(self._trained[0].sharded_param.dtype))

    def _parameters(self) -> list[nn.Parameter]:
        return [each.sharded_param for each in self._trained]

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The module, which gathers its blocks as in training."""
        yield self.model
        self._reshard()

    def full_state(self) -> dict[str, Tensor] | None:
        """Gathered parameter by parameter."""
        self._reshard()
        state, seen = {}, dict[int, Tensor]()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            whole = self._whole(tensor, seen.get(id(tensor))) if isinstance(tensor, DTensor) else tensor
            seen[id(tensor)] = whole
            if self.wire.rank == 0:
                state[name] = whole.detach().to("cpu", copy=True)
        return state if self.wire.rank == 0 else None

    def _whole(self, tensor: DTensor, known: Tensor | None) -> Tensor:
        """A parameter that is cut along its first dimension, into equal parts but for the last; a tied one once."""
        if known is not None:
            return known
        local = tensor.to_local().detach()
        if tensor.device_mesh.size() == 1:
            return local
        rows = -(-tensor.shape[0] // self.wire.world_size)
        mine = local.new_zeros(rows, *tensor.shape[1:])
        mine[: len(local)] = local
        whole = mine.new_empty(rows * self.wire.world_size, *tensor.shape[1:])
        self.wire.gather(whole.view(-1), mine.view(-1)).wait()
        return whole[: tensor.shape[0]]

    def _reshard(self) -> None:
        for each in self._sharded:
            each.reshard()

    def close(self) -> None:
        """Let go of the module, which holds the process group."""
        for name in ("module", "model", "_sharded", "_groups", "_trained"):
            self.__dict__.pop(name, None)
        gc.collect()
        super().close()


class _Gather(DefaultAllocMixin, AllGather):
    """On the wire; done when it returns."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        self._wire.gather(output_tensor, input_tensor.clone()).wait()


class _Scatter(DefaultAllocMixin, ReduceScatter):
    """On the wire, which averages; done when it returns."""

    def __init__(self, wire: Wire, sending: Callable[[], None]) -> None:
        self._wire = wire
        self._sending = sending

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        self._sending()
        segments = lay_out([(f"block.{len(input_tensor)}", input_tensor.shape)])
        self._wire.mean_shard(input_tensor, segments, output_tensor).wait()
