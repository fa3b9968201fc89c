"""A recipe's file as settings of arms and cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import cast

from dynbench.config.layers import Settings, load_mapping, replaced_by
from dynbench.config.recipes import ITEMS, Recipe, RecipeText, find_recipe, written_launches
from dynbench.config.values import overlap, read_settings, read_values
from dynbench.config.yaml_strict import Document, Positions, Value, YamlMapping, dump_yaml
from dynbench.errors import UsageError


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
    settings = Settings.of(document, "settings")
    layer = settings.merge_command_line(overrides, flags)
    outermost = [key for key in layer if not any(key.startswith(f"{other}.") for other in layer)]
    given = {key: settings.get(key, layer[key]).value for key in outermost}
    arms = [
        {**arm, "set": _under(cast(YamlMapping, arm.get("set") or {}), given)}
        for arm in cast("list[YamlMapping]", text["arms"])
    ]
    cells = [_under(cell, given) for cell in cast("list[YamlMapping]", text.get("cells") or [])]
    return {
        "description": text["description"],
        **({"settings": settings.sections()} if settings else {}),
        "arms": [arm if arm["set"] else {"name": arm["name"]} for arm in arms],
        **({"cells": cells} if cells else {}),
        "baseline": recipes[0].baseline,
        "launches": written_launches(recipes[0].launches),
        **({"question": recipes[0].question} if recipes[0].question else {}),
    }


def recipe_yaml(recipe: Mapping[str, object]) -> str:
    """The text of a recipe's file."""
    return dump_yaml(recipe, items=ITEMS)


def _under(settings: YamlMapping, given: Mapping[str, Value]) -> YamlMapping:
    """Settings of an arm or cell with what is given for all laid over, as far as it concerns them."""
    settings = {key: value for key, value in settings.items() if key not in set(replaced_by(given))}
    remaining = {
        key: value for key, value in settings.items() if not any(f"{key}.".startswith(f"{one}.") for one in given)
    }
    within = {one: value for one, value in given.items() if any(one.startswith(f"{key}.") for key in remaining)}
    return remaining | within


Values = dict[str, Value]


def sweep_document(
    reference: str | None,
    config: str | None,
    arms: Sequence[str],
    over: Sequence[str],
    *,
    short: Mapping[str, str],
    shared: Mapping[str, str],
) -> tuple[str, Document]:
    """The name and text of the recipe that a command line describes.

    Arms join those of a recipe, whose baseline stays; on a configuration file, or on nothing, they are all there is,
    and the first is the baseline. Every recipe is compared under each combination of the values of `over`.

    Args:
        reference: a recipe's file, or the name of a shipped one; None is none.
        config: the file of `-c`: a recipe too, or a configuration that all arms share.
        arms: texts like `name:key=value,key=value`.
        over: texts like `key=value,value`.
        short: short names of keys, as `short_keys` gives them.
        shared: dotted key to option, what the command line sets for all arms.

    Returns:
        The document holds what is mistaken in the texts as its problems; mistakes in the settings themselves are found,
        with those, when it is resolved.

    Raises:
        ConfigError: a file that is not strict YAML.
        UsageError: two recipes, a single arm with nothing to join, or a file that cannot be read.
    """
    name, base = _base(reference, config, arms)
    problems: list[str] = []
    named = [_read_arm(text, short, problems) for text in arms]
    swept = [read_values(text, "--over", short, problems) for text in over]
    base = _with_arms(base, named)
    problems += _contradictions(base, named, swept, shared)
    document = _with_cells(base, [(key, values) for key, values in swept if values])
    document.problems = list(dict.fromkeys(problems))
    if name is None:
        names = [str(arm["name"]) for arm in cast("list[YamlMapping]", document.mapping["arms"])]
        name = "-".join(names)
        varied = f", over {' and '.join(key for key, _ in swept)}" if swept else ""
        document.mapping = {"description": f"{names[0]} against {' and '.join(names[1:])}{varied}", **document.mapping}
    return name, document


def _base(reference: str | None, config: str | None, arms: Sequence[str]) -> tuple[str | None, Document]:
    """What the arms are laid on, with its name where it is a recipe."""
    if reference is not None and config is not None:
        raise UsageError(f"two recipes given: {reference} and -c {config}", "Name one.")
    if config is None and reference is None and arms:
        base = Document("--arm")
    else:
        path = find_recipe(reference or "quickstart") if config is None else Path(config)
        document = load_mapping(path)
        if config is None or not document.mapping.keys().isdisjoint(RecipeText.model_fields):
            return path.stem, document
        positions: Positions = {f"settings.{key}": line for key, line in document.positions.items()}
        base = Document(document.source, {"settings": document.mapping}, positions)
    if len(arms) < 2:
        given = f"-c {config}: a configuration, and {len(arms)} arms" if config else f"--arm {arms[0]}: a single arm"
        raise UsageError(
            f"{given} to compare", "Give --arm NAME:KEY=VALUE,… two or more times, or name a RECIPE that it joins."
        )
    return None, base


def _read_arm(text: str, short: Mapping[str, str], problems: list[str]) -> tuple[str, Values]:
    """The name before the first colon, and the settings behind it."""
    name, _, settings = text.partition(":")
    name = name.strip()
    if not name or "=" in name:
        problems.append(
            f"--arm {text}: no name; write it as name:key=value,key=value, like --arm part:policy=partition"
        )
        return f"unnamed-{len(problems)}", {}
    return name, read_settings(settings, f"--arm {name}", short, problems)


def _with_arms(base: Document, named: Sequence[tuple[str, Values]]) -> Document:
    found = base.mapping.get("arms", [])
    if not named or not isinstance(found, list):
        return base
    positions = {"arms": "--arm", **base.positions}
    for index, (name, settings) in enumerate(named, len(found)):
        source = f"--arm {name}"
        positions |= {f"arms.{index}": source, f"arms.{index}.name": source}
        positions |= {f"arms.{index}.set.{key}": source for key in settings}
    arms: list[Value] = [{"name": name, "set": cast(YamlMapping, settings)} for name, settings in named]
    return Document(base.source, {**base.mapping, "arms": [*found, *arms]}, positions)


def _with_cells(base: Document, swept: Sequence[tuple[str, Sequence[Value]]]) -> Document:
    """The document with every combination of the values in place of each of its cells; the last key varies fastest."""
    found = base.mapping.get("cells") or [{}]
    if not swept or not isinstance(found, list) or not all(isinstance(cell, dict) for cell in found):
        return base
    positions, cells = dict(base.positions), cast("list[Value]", [])
    for number, cell in enumerate(cast("list[YamlMapping]", found)):
        for values in product(*(values for _, values in swept)):
            where = f"cells.{len(cells)}"
            positions |= {f"{where}.{key}": base.where(f"cells.{number}.{key}") for key in cell}
            positions |= {f"{where}.{key}": "--over" for key, _ in swept}
            cells.append(cell | dict(zip((key for key, _ in swept), values, strict=True)))
    return Document(base.source, {**base.mapping, "cells": cells}, positions)


def _contradictions(
    base: Document,
    named: Sequence[tuple[str, Values]],
    swept: Sequence[tuple[str, Sequence[Value]]],
    shared: Mapping[str, str],
) -> Iterator[str]:
    """What is given in two places of one command line, or would not vary where it is to be varied."""
    for name, settings in named:
        for key in settings:
            for other in _overlapping(key, shared):
                yield (
                    f"--arm {name}: {key}: {shared[other]} sets {other} for all arms; "
                    "say it in every --arm, or leave it out of them"
                )
    for index, (key, _) in enumerate(swept):
        for other in _overlapping(key, [before for before, _ in swept[:index]]):
            yield f"--over {key}: {other} is varied already; give all its values in one --over"
        for other in _overlapping(key, shared):
            yield f"--over {key}: {shared[other]} sets {other} for all arms, so that nothing would vary; leave one out"
        for arm in _objects(base, "arms"):
            own = arm.get("set")
            for other in _overlapping(key, own if isinstance(own, dict) else ()):
                yield f"--over {key}: arm {arm.get('name')} sets {other} itself, so that it would not vary there"
        for other in dict.fromkeys(other for cell in _objects(base, "cells") for other in _overlapping(key, cell)):
            yield f"--over {key}: the recipe's cells set {other} already; dynbench recipes cp copies it, to change them"


def _overlapping(key: str, keys: Iterable[object]) -> list[str]:
    return [str(other) for other in keys if overlap(key, str(other))]


def _objects(document: Document, key: str) -> list[YamlMapping]:
    """The mappings of a list in the document; anything else is refused when it is resolved."""
    found = document.mapping.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
