"""What a comparison is warned about before it begins, looking at all its arms together."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.analysis.comparability import NOT_IDENTITY_OF_ARM
from dynbench.config.digest import config_digest
from dynbench.config.recipes import Recipe
from dynbench.config.rules import rule_warnings
from dynbench.config.unread import unread
from dynbench.engine.launching.asked import situation
from dynbench.engine.launching.probe_use import probe_warnings
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.runs.store import RunStore


def recipe_warnings(recipes: Sequence[Recipe], store: RunStore) -> list[str]:
    """What its launches would say again and again, and settings that no arm with that value reads; a line each.

    Args:
        recipes: the comparisons, several where the recipe has cells.
        store: registry in which probe runs are looked up.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    arms = [config for recipe in recipes for config in recipe.arms.values()]
    pairs = [(config, resolve(config, this_machine(), store)) for config in arms]
    situations = [situation("compare", config, resolved) for config, resolved in pairs]
    lines: list[str] = []
    for asked, (_, resolved) in zip(situations, pairs, strict=True):
        lines += rule_warnings(resolved.config, resolved.world_size, ())
        if not asked.probes:
            lines += probe_warnings(resolved.config, resolved.workers, store.root)
    return [*dict.fromkeys(lines), *unread(situations)]


def arms_alike(recipe: Recipe, store: RunStore) -> list[list[str]]:
    """Names of arms that are configured alike once `auto` is decided (A/A), those that are so together.

    Args:
        recipe: a comparison.
        store: registry in which probe runs are looked up.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    groups: dict[str, list[str]] = {}
    for name, config in recipe.arms.items():
        resolved = resolve(config, this_machine(), store).config
        groups.setdefault(config_digest(resolved, NOT_IDENTITY_OF_ARM), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
