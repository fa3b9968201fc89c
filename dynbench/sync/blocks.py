"""The repeated blocks of a model, as of a transformer's layers."""

from __future__ import annotations

from torch import nn


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The members of the outermost `nn.ModuleList`s that are made of further modules, in the module's order.

    A list of single layers is no list of blocks: code may use their weights without calling them.
    """
    found: list[nn.Module] = []
    for child in module.children():
        inner = list(child) if isinstance(child, nn.ModuleList) else blocks_of(child)
        found += [block for block in inner if next(block.children(), None) is not None]
    return found
