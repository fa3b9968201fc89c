"""torch's fully_shard (FSDP2): every rank keeps a part of each parameter, and gathers a block's while it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from dynbench.errors import UsageError
from dynbench.sync import synchronised
from dynbench.sync.fully_sharded_streams import Gather, Scatter, Waiting, blocks_of, streams_of
from dynbench.wire.base import Wire
from dynbench.wire.segment import Segment, lay_out


class FullyShardedDDP(nn.Module):
    """`fully_shard` of each block of a module and of the rest, with its gathers and reduce-scatters on a wire.

    Blocks are moved to the device one by one, each with rank 0's values, so that the module is never whole there. On
    other ranks it may be on the meta device, and is never whole at all. A parameter that no rank has used gets no
    gradient; where some ranks did, it counts as zeros on the others. Optimizers take `parameters()`, which are shards.

    Where modules of some types alone are `sharded`, each of these is by itself, and what two of them hold with the
    whole. The other parameters are replicated: plain tensors, whose gradients are averaged when the step is finished.

    Args:
        module: the same on every rank but for its values; its parameters are replaced.
        compute_dtype: in which blocks are gathered and computed, with gradients averaged in float32, but for batch
            norm, whose statistics are not; None is the parameters' own for all. What is replicated keeps its own: it
            is given inputs of that, and its outputs are of this.
        sharded: the types of the modules that are, outermost ones; they are called, and not their weights used alone.
        device: where it shall be; None where it is, which is not the meta device.
        wire: how it talks to the other ranks; None for the default process group.
        on_ready: called once a step when this rank's last gradients are complete and before they are sent.
        waiting: entered while a pass waits for what other ranks send; on a GPU its stream does.
        reshard: free a block after its forward pass and gather it anew for its backward pass.

    Raises:
        UsageError: parameters or buffers differ between ranks in number, shape, layout or type; a parameter cannot be
            divided; nothing is to be sharded; or no device is known.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        *,
        sharded: type[nn.Module] | tuple[type[nn.Module], ...] = nn.Module,
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
        self._wire = synchronised.wire_for(torch.empty(0, device=where)) if wire is None else wire
        self._on_ready = on_ready
        synchronised.share_what_is_trained(module, self._wire)
        synchronised.check_same_model(module, self._wire)
        by_blocks = isinstance(module, sharded)
        chosen = [module] if by_blocks else _outermost(module, sharded)
        wanted = {id(parameter) for each in chosen for parameter in each.parameters()}
        _refuse_undividable(module, wanted)
        policy = MixedPrecisionPolicy(compute_dtype, None if compute_dtype is None else torch.float32)
        mesh = DeviceMesh.from_group(self._wire.group, where.type)
        done: set[int] = set()
        apart = _apart(blocks_of(module) if by_blocks else chosen, module)
        if compute_dtype is not None and not by_blocks:
            _keep_types(module, apart, compute_dtype)
        parts = [*apart, module]
        for part in parts:
            synchronised.give_memory(part, module, where)
            part.to(where)
            own = [each for each in chain(part.parameters(), part.buffers()) if id(each) not in done]
            synchronised.share_tensors([each for each in own if not isinstance(each, DTensor)], self._wire)
            mixed = policy if by_blocks or part is not module else MixedPrecisionPolicy()
            if mixed.param_dtype is not None:
                for norm in _batch_norms(part):
                    fully_shard(norm, mesh=mesh, reshard_after_forward=reshard)
            part.register_forward_hook(_without_views)
            again = reshard and part is not module
            now = {id(each) for holder in chosen for each in holder.parameters()}  # those given memory are new ones
            rest = {each for each in part.parameters() if id(each) not in now}
            fully_shard(part, mesh=mesh, reshard_after_forward=again, mp_policy=mixed, ignored_params=rest or None)
            done |= {id(each) for each in chain(part.parameters(), part.buffers())}
        self.module = module
        self._sharded = [each for each in module.modules() if isinstance(each, FSDPModule)]
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._under_way: list[Future[Tensor]] = []
        streams = streams_of(where, waiting)
        for each in self._sharded:
            gather = Gather(self._wire, waiting, streams, self._shards(each))
            layouts = self._layouts(each)
            sends = (self._wire, waiting, streams, self._sending)
            parameters = [one for group in _groups_of(each) for one in group.fsdp_params]
            scatter = Scatter(*sends, parameters, layouts, self._under_way)
            each.set_custom_all_gather(gather)
            each.set_custom_reduce_scatter(scatter)
            if streams is not None:
                for group in _groups_of(each):
                    streams.watch(group, gather, scatter)
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)
            if hasattr(each, "set_reduce_scatter_unused_params"):
                each.set_reduce_scatter_unused_params(True)
        if where.type == "cpu" and by_blocks:  # called in turn; elsewhere torch runs ahead of the device
            for part, following in pairwise((module, *parts[:-1])):
                part.set_modules_to_forward_prefetch([following])  # type: ignore[operator]  # fully_shard made it one
        groups = [group for each in self._sharded for group in _groups_of(each)]
        trained = list(map(_trained, groups))
        self._trained = [each for group in trained for each in group]
        self._messages = sum(map(bool, trained))
        plain = nn.ParameterList(each for each in module.parameters() if not isinstance(each, DTensor))
        self._replicated = [synchronised.FlatDDP(plain, self._wire)] if len(plain) else []  # listed: once in the state
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
                    each._unsharded_param.register_post_accumulate_grad_hook(note)
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
        """Called between the last backward pass, which ends with shards of the mean, and the optimizer's step.

        What is replicated is averaged here.
        """
        if not self._sent or self._replicated:
            self._on_ready()
        self._sent = 0
        for future in self._under_way:
            future.wait()
        self._under_way.clear()
        device = next(self.module.parameters()).device
        for place in synchronised.unused_everywhere(self._used, len(self._trained), self._wire, device):
            self._trained[place].sharded_param.grad = None
        self._used = set()
        for rest in self._replicated:
            rest.finish_gradient_synchronization()

    @property
    def shards(self) -> list[Tensor]:
        """Of the gradients of what is sharded, what this rank has."""
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
        return _by_elements(
            lay_out(
                (f"{self._names[id(each.sharded_param)]}/{rank}", each.padded_sharded_param_size)
                for rank in range(self._wire.world_size)
                for each in _trained(group)
            )
            for group in _groups_of(module)
        )

    def _shards(self, module: FSDPModule) -> Mapping[int, Sequence[Segment]]:
        """By its elements, what a rank's shard of a module is made of, filled up."""
        return _by_elements(
            lay_out((self._names[id(each.sharded_param)], each.padded_sharded_param_size) for each in group.fsdp_params)
            for group in _groups_of(module)
        )

    def _sending(self) -> None:
        """A block's gradients are about to be sent; when the last are, all are complete."""
        self._sent += 1
        if self._sent == self._messages and not self._replicated:
            self._on_ready()

    def _note_used(self, place: int, _: Tensor) -> None:
        self._used.add(place)


def _outermost(module: nn.Module, types: type[nn.Module] | tuple[type[nn.Module], ...]) -> list[nn.Module]:
    """The modules of these types within one that is of none, but those within another."""
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if isinstance(child, types) else _outermost(child, types)
    return list(dict.fromkeys(found))


def _apart(blocks: Sequence[nn.Module], module: nn.Module) -> list[nn.Module]:
    """The blocks of a module but those of whose parameters something else holds one, too."""

    def holds_alone(block: nn.Module) -> bool:
        inside = set(block.modules())
        outside = {id(p) for each in module.modules() if each not in inside for p in each.parameters(recurse=False)}
        return outside.isdisjoint(map(id, block.parameters()))

    return [block for block in blocks if holds_alone(block)]


def _keep_types(module: nn.Module, apart: Sequence[nn.Module], compute_dtype: torch.dtype) -> None:
    """Give what computes beside these parts of a module inputs of its parameters' type, as not every kernel mixes."""
    inside = {each for part in apart for each in part.modules()}
    for each in module.modules():
        own = next(each.parameters(recurse=False), None)
        if own is not None and inside.isdisjoint(each.modules()):
            each.register_forward_pre_hook(partial(_cast_inputs, own.dtype), with_kwargs=True)
            each.register_forward_hook(lambda _, __, output: _cast(compute_dtype, output))


def _cast_inputs(dtype: torch.dtype, _: nn.Module, inputs: Any, named: Any) -> Any:
    return _cast(dtype, (inputs, named))


def _cast(dtype: torch.dtype, values: Any) -> Any:
    return tree_map_only(Tensor, lambda each: each.to(dtype) if each.is_floating_point() else each, values)


def _without_views(_: nn.Module, __: Any, output: Any) -> Any:
    """A module's output, with copies of views: what changes a view in place drops torch's hook, which gathers."""
    return tree_map_only(Tensor, lambda each: each.clone() if each.requires_grad and each._is_view() else each, output)


def _batch_norms(part: nn.Module) -> list[nn.Module]:
    """Those within a part that are not sharded yet, and have parameters."""
    found = [each for each in part.modules() if isinstance(each, _BatchNorm) and not isinstance(each, FSDPModule)]
    return [each for each in found if each is not part and each.affine]


def _refuse_undividable(module: nn.Module, wanted: Collection[int]) -> None:
    """Refuse what torch cannot cut along a first dimension, by name.

    Args:
        module: the whole.
        wanted: ids of the parameters that are to be sharded.

    Raises:
        UsageError: a parameter of those is a scalar, or not contiguous; or there are none.
    """
    if not wanted:
        raise UsageError("nothing to shard: no module of the types that are sharded", "Name those of its layers.")
    for name, parameter in module.named_parameters():
        if id(parameter) in wanted and (not parameter.dim() or not parameter.is_contiguous()):
            what = "not contiguous" if parameter.dim() else "a scalar"
            raise UsageError(
                f"parameter {name} is {what}, which fully_shard cannot divide",
                "Give it one dimension, or contiguous memory (.contiguous()); zero1 takes it as it is.",
            )


def _by_elements(layouts: Iterable[Sequence[Segment]]) -> Mapping[int, Sequence[Segment]]:
    return {sum(segment.numel for segment in segments): segments for segments in layouts}


def _groups_of(part: FSDPModule) -> Sequence[Any]:
    """What torch shards with a part, in groups of parameters."""
    return part._get_fsdp_state()._fsdp_param_groups


def _trained(group: Any) -> list[Any]:
    """What torch has of each parameter of a group that gets gradients."""
    return [each for each in group.fsdp_params if each.sharded_param.requires_grad]
