"""torch's fully_shard (FSDP2): every rank keeps a part of each parameter, and gathers a block's while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.modules.batchnorm import _BatchNorm

from dynbench.errors import UsageError
from dynbench.sync.blocks import blocks_of
from dynbench.sync.empty import give_memory, share_what_is_trained
from dynbench.sync.one_model import check_same_model, share_tensors, unused_everywhere, wire_for
from dynbench.wire.base import Wire
from dynbench.wire.segment import Segment, lay_out

Waiting = Callable[[], AbstractContextManager[None]]


class FullyShardedDDP(nn.Module):
    """`fully_shard` of each block of a module and of the rest, with its gathers and reduce-scatters on a wire.

    Blocks are moved to the device one by one, each with rank 0's values, so that the module is never whole there. On
    other ranks it may be on the meta device, and is never whole at all. A parameter that no rank has used gets no
    gradient; where some ranks did, it counts as zeros on the others. Optimizers take `parameters()`, which are shards.

    Args:
        module: the same on every rank but for its values; its parameters are replaced.
        compute_dtype: in which blocks are gathered and computed, with gradients averaged in float32, but for batch
            norm, whose statistics are not; None is the parameters' own for all.
        device: where it shall be; None where it is, which is not the meta device.
        wire: how it talks to the other ranks; None for the default process group.
        on_ready: called once a step when this rank's last gradients are complete and before they are sent.
        waiting: entered while a pass waits for what other ranks send.
        reshard: free a block after its forward pass and gather it anew for its backward pass.

    Raises:
        UsageError: parameters or buffers differ between ranks in number, shape, layout or type; a parameter cannot be
            divided; or no device is known.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        *,
        device: torch.device | None = None,
        wire: Wire | None = None,
        on_ready: Callable[[], None] = lambda: None,
        waiting: Waiting = nullcontext,
        reshard: bool = True,
    ) -> None:
        super().__init__()
        where = next(module.parameters()).device if device is None else device
        if where.type == "meta":
            raise UsageError("a module on the meta device, and no device for it", "Name one: device=torch.device(...).")
        self._wire = wire_for(torch.empty(0, device=where)) if wire is None else wire
        self._on_ready = on_ready
        share_what_is_trained(module, self._wire)
        check_same_model(module, self._wire)
        _refuse_undividable(module)
        policy = MixedPrecisionPolicy(compute_dtype, None if compute_dtype is None else torch.float32)
        mesh = DeviceMesh.from_group(self._wire.group, where.type)
        done: set[int] = set()
        parts = [*_blocks_apart(module), module]
        for part in parts:
            give_memory(part, module, where)
            part.to(where)
            own = [each for each in chain(part.parameters(), part.buffers()) if id(each) not in done]
            share_tensors([each for each in own if not isinstance(each, DTensor)], self._wire)
            if compute_dtype is not None:
                for norm in _batch_norms(part):
                    fully_shard(norm, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard and part is not module, mp_policy=policy)
            done |= {id(each) for each in chain(part.parameters(), part.buffers())}
        self.module = module
        self._sharded = [each for each in module.modules() if isinstance(each, FSDPModule)]
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._under_way: list[Future[Tensor]] = []
        for each in self._sharded:
            each.set_custom_all_gather(_Gather(self._wire, waiting))
            layouts = self._layouts(each)
            scatter = _Scatter(self._wire, waiting, self._sending, _parameters_of(each), layouts, self._under_way)
            each.set_custom_reduce_scatter(scatter)
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)
            if hasattr(each, "set_reduce_scatter_unused_params"):
                each.set_reduce_scatter_unused_params(True)
        if where.type == "cpu":  # elsewhere torch runs ahead of the device, and so gathers ahead
            for part, following in pairwise((module, *parts[:-1])):
                part.set_modules_to_forward_prefetch([following])  # type: ignore[operator]  # fully_shard made it one
        groups = [group for each in self._sharded for group in each._get_fsdp_state()._fsdp_param_groups]
        trained = [[each for each in group.fsdp_params if each.sharded_param.requires_grad] for group in groups]
        self._trained = [each for group in trained for each in group]
        self._messages = sum(map(bool, trained))
        self._sent = 0
        self._used: set[int] = set()
        self._watched = False

    def forward(self, *inputs: object, **kwargs: object) -> object:
        """The module's."""
        output = self.module(*inputs, **kwargs)
        if not self._watched:  # what gets gradients is made in the first forward pass
            self._watched = True
            for place, each in enumerate(self._trained):
                if hasattr(each, "_unsharded_param"):
                    note = partial(self._note_used, place)
                    each._unsharded_param.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside it add up gradients, whole on every rank, and send nothing."""
        self._set_sends(False)
        try:
            yield
        finally:
            self._set_sends(True)

    def finish_gradient_synchronization(self) -> None:
        """Called between the last backward pass, which ends with shards of the mean, and the optimizer's step."""
        if not self._sent:
            self._on_ready()
        self._sent = 0
        for future in self._under_way:
            future.wait()
        self._under_way.clear()
        device = self._trained[0].sharded_param.device
        for place in unused_everywhere(self._used, len(self._trained), self._wire, device):
            self._trained[place].sharded_param.grad = None
        self._used = set()

    @property
    def shards(self) -> list[Tensor]:
        """Of the gradients, what this rank has."""
        found = (each.sharded_param.grad for each in self._trained)
        return [each.to_local() for each in found if isinstance(each, DTensor)]

    def gather_full_params(self) -> dict[str, Tensor]:
        """The module's whole state, on every rank, parameter by parameter; a collective."""
        return {name: tensor.clone() for name, tensor in self.whole()}

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole tensors of the module's state, one after the other; a collective, to be run to its end."""
        self.reshard()
        seen: dict[int, Tensor] = {}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen = {id(tensor): self._whole(tensor) if isinstance(tensor, DTensor) else tensor.detach()}
            yield name, seen[id(tensor)]

    def reshard(self) -> None:
        """Free what a forward pass without a backward pass has left gathered."""
        for each in self._sharded:
            each.reshard()

    def _whole(self, tensor: DTensor) -> Tensor:
        """A parameter that is cut along its first dimension, into equal parts but for the last."""
        local = tensor.to_local().detach()
        if tensor.device_mesh.size() == 1:
            return local
        rows = -(-tensor.shape[0] // self._wire.world_size)
        mine = local.new_zeros(rows, *tensor.shape[1:])
        mine[: len(local)] = local
        whole = mine.new_empty(rows * self._wire.world_size, *tensor.shape[1:])
        self._wire.gather(whole.view(-1), mine.view(-1)).wait()
        return whole[: tensor.shape[0]]

    def _set_sends(self, sends: bool) -> None:
        for each in self._sharded:
            each.set_requires_gradient_sync(sends, recurse=False)

    def _layouts(self, module: FSDPModule) -> Mapping[int, Sequence[Segment]]:
        """By its elements, what is sent of a module: of every rank in turn its shards of the parameters, filled up."""
        found = {}
        for group in module._get_fsdp_state()._fsdp_param_groups:
            trained = [each for each in group.fsdp_params if each.sharded_param.requires_grad]
            segments = lay_out(
                (f"{self._names[id(each.sharded_param)]}/{rank}", each.padded_sharded_param_size)
                for rank in range(self._wire.world_size)
                for each in trained
            )
            found[sum(segment.numel for segment in segments)] = segments
        return found

    def _sending(self) -> None:
        """A block's gradients are about to be sent; when the last are, all are complete."""
        self._sent += 1
        if self._sent == self._messages:
            self._on_ready()

    def _note_used(self, place: int, _: Tensor) -> None:
        self._used.add(place)


def _blocks_apart(module: nn.Module) -> list[nn.Module]:
    """The blocks of a module but those of whose parameters something else holds one, too."""

    def holds_alone(block: nn.Module) -> bool:
        inside = set(block.modules())
        outside = {id(p) for each in module.modules() if each not in inside for p in each.parameters(recurse=False)}
        return outside.isdisjoint(map(id, block.parameters()))

    return [block for block in blocks_of(module) if holds_alone(block)]


def _batch_norms(part: nn.Module) -> list[nn.Module]:
    """Those within a part that are not sharded yet, and have parameters."""
    found = [each for each in part.modules() if isinstance(each, _BatchNorm) and not isinstance(each, FSDPModule)]
    return [each for each in found if each is not part and each.affine]


def _refuse_undividable(module: nn.Module) -> None:
    """Refuse what torch cannot cut along a first dimension, by name.

    Raises:
        UsageError: a parameter is a scalar, or not contiguous.
    """
    for name, parameter in module.named_parameters():
        if not parameter.dim() or not parameter.is_contiguous():
            what = "not contiguous" if parameter.dim() else "a scalar"
            raise UsageError(
                f"parameter {name} is {what}, which fully_shard cannot divide",
                "Give it one dimension, or contiguous memory (.contiguous()); zero1 takes it as it is.",
            )


def _parameters_of(part: FSDPModule) -> list[Any]:
    """What torch keeps of each parameter that is sharded with a part."""
    return [each for group in part._get_fsdp_state()._fsdp_param_groups for each in group.fsdp_params]


class _UnderWay(dist.Work):
    """A gather on the wire, as torch waits for one."""

    def __init__(self, future: Future[Tensor], waiting: Waiting) -> None:
        super().__init__()
        self._future, self._waiting = future, waiting

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is done; a wire has a limit of its own."""
        with self._waiting():
            self._future.wait()
        return True


class _Gather(DefaultAllocMixin, AllGather):
    """On the wire, in place; on a CPU under way when it returns."""

    def __init__(self, wire: Wire, waiting: Waiting) -> None:
        self._wire, self._waiting = wire, waiting

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        future = self._wire.gather(output_tensor, input_tensor)
        if output_tensor.device.type == "cpu":
            return _UnderWay(future, self._waiting)
        future.wait()
        return None


class _Scatter(DefaultAllocMixin, ReduceScatter):
    """On the wire, which averages; `under_way` when it returns where nothing looks at it before all are waited for.

    Args:
        wire: the wire.
        waiting: entered while it is waited for.
        sending: called before.
        parameters: whose gradients it is called with.
        layouts: by its elements, what is sent is made of.
        under_way: what is to be waited for.
    """

    def __init__(
        self,
        wire: Wire,
        waiting: Waiting,
        sending: Callable[[], None],
        parameters: Sequence[Any],
        layouts: Mapping[int, Sequence[Segment]],
        under_way: list[Future[Tensor]],
    ) -> None:
        self._wire, self._waiting, self._sending = wire, waiting, sending
        self._parameters, self._layouts, self._under_way = parameters, layouts, under_way

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        self._sending()
        segments = self._layouts.get(len(input_tensor))
        if segments is None:  # torch before 2.13 leaves out what this rank has not used
            segments = lay_out(
                [(f"{next(iter(self._layouts.values()))[0].name}/{len(input_tensor)}", input_tensor.shape)]
            )
        future = self._wire.mean_shard(input_tensor, segments, output_tensor)
        if output_tensor.device.type == "cpu" and not any(self._read(each, output_tensor) for each in self._parameters):
            self._under_way.append(future)
        else:
            with self._waiting():
                future.wait()

    @staticmethod
    def _read(parameter: Any, output: Tensor) -> bool:
        """Whether torch casts the output, adds it to a gradient, or calls back with it, as it returns."""
        held = parameter.sharded_param
        hooks = getattr(held, "_post_accumulate_grad_hooks", None)
        return held.dtype != output.dtype or held.grad is not None or bool(hooks)
