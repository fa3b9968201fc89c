"""The repeated blocks of a model, as of a transformer's layers."""

from __future__ import annotations

from torch import nn


def blocks_of(module: nn.Module, *, listed: bool = False) -> list[nn.Module]:
    """The members of the outermost `nn.ModuleList`s that are made of further modules, in the module's order.

    Of a member that is never called, as of a list in a list, its own members. A list of single layers is no list of
    blocks: code may use their weights without calling them.

    Args:
        module: a model.
        listed: it is such a list itself.
    """
    found: list[nn.Module] = []
    for child in module.children():
        if not listed or not _is_called(child):
            found += blocks_of(child, listed=listed or isinstance(child, nn.ModuleList))
        elif next(child.children(), None) is not None:
            found.append(child)
    return found


def _is_called(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)
