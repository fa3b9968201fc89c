"""An optimizer whose state is divided over the ranks: each updates some parameters and sends them to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.errors import UsageError
from dynbench.sync.synchronised import flat_like, view_like, wire_for
from dynbench.wire.base import Wire

Params = Iterable[Any]
State = dict[str, Any]


class ShardedOptimizer(Optimizer):
    """Every rank keeps the optimizer state of its own parameters only, and steps them; then all get all of them.

    Parameters are dealt whole, the largest first, each to the rank that has least, for optimizers that step each
    parameter by itself; their owners send them in one message for each type. What an optimizer keeps in its groups, as
    a count of its steps, is this rank's own; one that estimates something over a whole group there sees this rank's
    parameters of it alone, and takes other steps than in one process. Gradients are taken as they are: whoever wants
    their means over ranks averages them before. Learning-rate schedulers work on it. `state` holds this rank's part.

    Args:
        params: parameters or groups of them, the same on every rank in the same order; one that comes twice counts
            once.
        optimizer_cls: a subclass of `torch.optim.Optimizer`.
        wire: how it talks to the other ranks; None for the default process group.
        kwargs: of the optimizer.

    Raises:
        UsageError: a class that is no optimizer, or LBFGS, which steps all parameters jointly.
    """

    def __init__(
        self, params: Params, optimizer_cls: type[Optimizer], *, wire: Wire | None = None, **kwargs: Any
    ) -> None:
        if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, Optimizer)):
            raise UsageError(
                f"optimizer_cls: {optimizer_cls!r} is no subclass of torch.optim.Optimizer",
                "Give the class, like torch.optim.AdamW, and its settings by name.",
            )
        if issubclass(optimizer_cls, torch.optim.LBFGS):
            raise UsageError(
                "optimizer_cls: LBFGS steps all parameters together, as often as each rank's part asks for",
                "Take one that steps each parameter by itself, like torch.optim.AdamW.",
            )
        given = list(params)
        self._wire = wire_for(_first(given)) if wire is None else wire
        self._owner: dict[nn.Parameter, int] = {}
        self._elements = [0] * self._wire.world_size
        self._local: Optimizer | None = None
        defaults = optimizer_cls([nn.Parameter(torch.empty(0))], **kwargs).defaults
        super().__init__(given, defaults)
        self._local = optimizer_cls([self._mine(group) for group in self.param_groups], **kwargs)
        self.state = self._local.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more group, dealt to those that hold least; what state there is stays where it is."""
        params = param_group["params"]
        listed = [params] if isinstance(params, Tensor) else list(params)
        super().add_param_group({**param_group, "params": list(dict.fromkeys(listed))})
        group = self.param_groups[-1]
        for parameter in sorted(group["params"], key=lambda each: -each.numel()):
            owner = self._elements.index(min(self._elements))
            self._owner[parameter] = owner
            self._elements[owner] += parameter.numel()
        if self._local is not None:
            self._local.add_param_group(self._mine(group))

    def owned(self, rank: int) -> list[nn.Parameter]:
        """The parameters whose state a rank keeps."""
        return [parameter for parameter, owner in self._owner.items() if owner == rank]

    def step(self, closure: Callable[[], float] | None = None, **kwargs: Any) -> float | None:  # type: ignore[override]  # of optimizers with more arguments
        """Update this rank's parameters and receive the others'; a collective.

        Args:
            closure: evaluates the loss anew, as the optimizer takes it.
            kwargs: further arguments of the optimizer's step.
        """
        assert self._local is not None, "built"
        for group, mine in zip(self.param_groups, self._local.param_groups, strict=True):
            mine.update(_settings(group))
        loss: float | None = self._local.step(**({} if closure is None else {"closure": closure}), **kwargs)
        for group, mine in zip(self.param_groups, self._local.param_groups, strict=True):
            group.update(_settings(mine))
        self._exchange()
        return loss

    @torch.no_grad()
    def _exchange(self) -> None:
        """Every owner's trained parameters to the others."""
        sent = []
        for rank in range(self._wire.world_size):
            trained = [parameter for parameter in self.owned(rank) if parameter.requires_grad]
            for kind in dict.fromkeys((parameter.dtype, parameter.device) for parameter in trained):
                of_kind = [each for each in trained if (each.dtype, each.device) == kind]
                if rank == self._wire.rank:
                    flat = torch.cat([flat_like(parameter, parameter) for parameter in of_kind])
                else:
                    flat = torch.empty(sum(map(Tensor.numel, of_kind)), dtype=kind[0], device=kind[1])
                sent.append((rank, of_kind, flat, self._wire.broadcast(flat, rank)))
        for rank, of_kind, flat, future in sent:
            future.wait()
            if rank != self._wire.rank:
                for parameter, part in zip(of_kind, torch.split(flat, [each.numel() for each in of_kind]), strict=True):
                    parameter.copy_(view_like(part, parameter))

    def state_dict(self) -> State:
        """The whole state, on every rank, as the optimizer would have it on one; a collective."""
        assert self._local is not None, "built"
        numbers: dict[Tensor, int] = {each: number for number, each in enumerate(self._listed())}
        mine = {numbers[each]: _to_cpu(state) for each, state in self._local.state.items()}
        everyone: list[dict[int, Any]] = [mine] * self._wire.world_size
        dist.all_gather_object(everyone, mine, group=self._wire.group)
        whole = {number: state for each in everyone for number, state in each.items()}
        groups = [
            {**{key: value for key, value in group.items() if key != "params"},
             "params": [numbers[parameter] for parameter in group["params"]]}
            for group in self.param_groups
        ]  # fmt: skip
        return {"state": dict(sorted(whole.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: State) -> None:
        """Go on from the whole state that rank 0 is given, made at any number of ranks; a collective.

        Raises:
            ValueError: it has other groups, as the optimizer says; UsageError: other numbers of parameters.
        """
        assert self._local is not None, "built"
        shared: list[State] = [state_dict]
        dist.broadcast_object_list(shared, group_src=0, group=self._wire.group)
        given = shared[0]
        sizes = [[len(group["params"]) for group in groups] for groups in (given["param_groups"], self.param_groups)]
        if sizes[0] != sizes[1]:
            raise UsageError(
                f"the state is of groups of {sizes[0]} parameters, the optimizer has {sizes[1]}",
                "Build the optimizer over the same parameters.",
            )
        numbers = {parameter: number for number, parameter in enumerate(self._listed())}
        mine = [parameter for group in self._local.param_groups for parameter in group["params"]]
        part = {place: given["state"][numbers[p]] for place, p in enumerate(mine) if numbers[p] in given["state"]}
        for group, saved in zip(self.param_groups, given["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})
        local = self._local.state_dict()["param_groups"]
        merged = [{**saved, "params": own["params"]} for saved, own in zip(given["param_groups"], local, strict=True)]
        self._local.load_state_dict({"state": part, "param_groups": merged})
        self.state = self._local.state

    def _mine(self, group: Mapping[str, Any]) -> dict[str, Any]:
        own = [parameter for parameter in group["params"] if self._owner[parameter] == self._wire.rank]
        return {**{key: value for key, value in group.items() if key != "param_names"}, "params": own}

    def _listed(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _first(given: list[Any]) -> Tensor:
    """One of the parameters, to know the device; none gives a tensor on the CPU."""
    for each in given:
        inner = each["params"] if isinstance(each, Mapping) else each
        for found in [inner] if isinstance(inner, Tensor) else inner:
            tensor = found[1] if isinstance(found, tuple) else found
            assert isinstance(tensor, Tensor)
            return tensor
    return torch.empty(0)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """All that a group holds but its parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _to_cpu(state: Any) -> Any:
    """A copy of one parameter's state."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    return {key: _to_cpu(value) for key, value in state.items()} if isinstance(state, Mapping) else state
