"""Models without values, on the meta device, as ranks have them that are given those of the first."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynbench.wire.base import Wire


def fillable(module: nn.Module) -> bool:
    """Whether all that has no values is a parameter or a buffer, which can be given some."""
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    loose = (value for each in module.modules() for value in vars(each).values() if isinstance(value, Tensor))
    return all(id(tensor) in known for tensor in loose if tensor.is_meta)


def share_what_is_trained(module: nn.Module, wire: Wire) -> None:
    """Let a module without values train what the first rank's trains, which may have tried it; a collective."""
    parameters = list(module.parameters())
    mine = [parameter.requires_grad for parameter in parameters]
    everyone = [mine] * dist.get_world_size(wire.group)
    dist.all_gather_object(everyone, mine, group=wire.group)
    if len(everyone[0]) == len(parameters):
        for parameter, wanted in zip(parameters, everyone[0], strict=True):
            if parameter.is_meta:
                parameter.requires_grad_(wanted)


def give_memory(part: nn.Module, whole: nn.Module, device: torch.device) -> None:
    """Give what a part of a model lacks memory for its values, whatever they are; what is one tensor stays one.

    Args:
        part: of `whole`.
        whole: holds it, and perhaps some of its tensors elsewhere too.
        device: where.
    """
    given: dict[int, tuple[Tensor, Tensor]] = {}
    for tensor in (*part.parameters(), *part.buffers()):
        if tensor.is_meta:
            empty = torch.empty_like(tensor, device=device)
            kept = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
            given[id(tensor)] = tensor, kept
    for module in whole.modules():
        places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for held in places:
            for name, value in held.items():
                if id(value) in given:
                    held[name] = given[id(value)][1]
