"""What a comparison is warned about before it begins, looking at all its arms together."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.config.effects import unread
from dynbench.config.recipes import Recipe
from dynbench.engine.asked import situation
from dynbench.engine.resolve import resolve, this_machine
from dynbench.runs.store import RunStore


def recipe_warnings(recipes: Sequence[Recipe], store: RunStore) -> list[str]:
    """Settings that were changed and that no arm with that value reads, a line each.

    Args:
        recipes: the comparisons, several where the recipe has cells.
        store: registry in which probe runs are looked up.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    arms = [config for recipe in recipes for config in recipe.arms.values()]
    return unread([situation("compare", config, resolve(config, this_machine(), store)) for config in arms])
