"""A recipe as people write it: what all arms share, what sets each apart, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from dynbench.config.alternatives import replaced_by
from dynbench.config.dump import dump_yaml
from dynbench.config.launches import written
from dynbench.config.layers import Layers
from dynbench.config.recipes import ITEMS, Recipe
from dynbench.config.yaml_strict import Document, Value
from dynbench.config.yaml_strict import Mapping as YamlMapping


def written_recipe(
    document: Document, overrides: Sequence[str], flags: Mapping[str, object], recipes: Sequence[Recipe]
) -> dict[str, object]:
    """A recipe that loads to the same comparisons without the options that were given with it.

    What the command line sets for all arms joins the settings, and goes over the arms and cells that say otherwise.

    Args:
        document: the recipe that was resolved.
        overrides: texts of `--set`.
        flags: dotted key to value; None values count as not given.
        recipes: what it was resolved to.
    """
    text = document.mapping
    layers = Layers(Document("", cast(YamlMapping, text.get("settings") or {})))
    layers.lay(overrides, flags)
    outermost = [key for key in layers.given_by if not any(key.startswith(f"{other}.") for other in layers.given_by)]
    given = {key: _at(layers.values, key) for key in outermost}
    arms = [
        {**arm, "set": _under(cast(YamlMapping, arm.get("set") or {}), given)}
        for arm in cast("list[YamlMapping]", text["arms"])
    ]
    cells = [_under(cell, given) for cell in cast("list[YamlMapping]", text.get("cells") or [])]
    return {
        "description": text["description"],
        **({"settings": layers.values} if layers.values else {}),
        "arms": [arm if arm["set"] else {"name": arm["name"]} for arm in arms],
        **({"cells": cells} if cells else {}),
        "baseline": recipes[0].baseline,
        "launches": written(recipes[0].launches),
        **({"question": recipes[0].question} if recipes[0].question else {}),
    }


def recipe_yaml(recipe: Mapping[str, object]) -> str:
    """The text of a recipe's file."""
    return dump_yaml(recipe, items=ITEMS)


def _under(settings: YamlMapping, given: Mapping[str, Value]) -> YamlMapping:
    """Settings of an arm or cell with what is given for all laid over, as far as it concerns them."""
    settings = {key: value for key, value in settings.items() if key not in set(replaced_by(given))}
    kept = {key: value for key, value in settings.items() if not any(f"{key}.".startswith(f"{one}.") for one in given)}
    within = {one: value for one, value in given.items() if any(one.startswith(f"{key}.") for key in kept)}
    return kept | within


def _at(values: YamlMapping, dotted: str) -> Value:
    """The value that was laid at a dotted key; keys of a mapping field may be numbers."""
    node: Value = values
    for part in dotted.split("."):
        assert isinstance(node, dict), "it was laid there"
        node = node[part] if part in node else node[int(part)]
    return node
