"""Recipes: the arms of a comparison, what they share, and how often and in which order each is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from dynbench.config.layers import Setting, Settings, command_line, load_mapping
from dynbench.config.schema import Config, recorded, value_of
from dynbench.config.values import all_keys, overlap
from dynbench.config.yaml_strict import Document, Value, dump_yaml
from dynbench.errors import ConfigError, did_you_mean, unknown_name
from dynbench.plugins.outside import recipes_dir
from dynbench.plugins.registry import PositiveFloat, PositiveInt, Section

ArmName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}$")]
ITEMS = ("arms", "cells")
"""Keys of a recipe that hold a list, an item a line."""
RECIPE_FILE = "recipe.yaml"
"""Within a comparison's folder: what it was started with."""

# Launches -------------------------------------------------------------------------------------------------------------

LAUNCH_FLAGS = {
    "count": "--launches",
    "mode": "--launch-mode",
    "block": "--block",
    "half_width": "--half-width",
    "first": "--first-launches",
    "max_launches": "--max-launches",
    "max_time_s": "--max-time",
}
"""Key to the option of `compare` that sets it."""


def _fraction(value: object) -> object:
    """`3%` as the fraction that it is; anything else as it is."""
    if not isinstance(value, str):
        return value
    number = value.strip().removesuffix("%")
    try:
        return float(number) / (100 if value.strip().endswith("%") else 1)
    except ValueError:
        return value


MOST_LAUNCHES = 10_000
"""More than any comparison needs, and few enough that an order of them can be laid out."""

LaunchCount = Annotated[int, Field(gt=0, le=MOST_LAUNCHES)]
Percent = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_fraction)]


class Launches(Section):
    """How often arms are launched, and in which order."""

    count: LaunchCount = 2
    """Launches per arm; even where arms are launched apart, so that the order is fair. Not read with `half_width`."""
    mode: Literal["auto", "interleaved", "apart"] = "auto"
    """`interleaved`: one launch holds all arms, which take turns; `apart`: each arm has launches of its own, in ABBA
    order; auto interleaves arms that can share a process, all of them or in pairs with the baseline."""
    block: PositiveInt = 1
    """Steps of one turn, where arms are interleaved."""
    half_width: Percent | None = None
    """As many launches as the widest interval against the baseline needs to be this narrow: half its width as a part
    of the speed-up, like 0.03 or 3%; null launches `count` times."""
    first: Annotated[int, Field(ge=2, le=MOST_LAUNCHES)] = 8
    """With `half_width`, launches of the first stage, whose spread decides how many follow."""
    max_launches: LaunchCount | None = None
    """With `half_width`, most launches per arm, the first stage among them."""
    max_time_s: PositiveFloat | None = None
    """With `half_width`, no launch begins that would end later than this many seconds after the first began, by the
    time of those before; the first stage is always completed."""

    @property
    def planned(self) -> int:
        """Launches per arm that are certain."""
        return self.count if self.half_width is None else self.first


def counted(value: object) -> object:
    """A plain number as the section that it stands for.

    Raises:
        ValueError: neither a number nor a section.
    """
    if isinstance(value, Mapping | Launches):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    raise ValueError(f"give launches per arm, or {', '.join(LAUNCH_FLAGS)} under it")


def with_flags(launches: Launches, flags: Mapping[str, object], document: Document) -> tuple[Launches, list[str]]:
    """What a recipe says with what the command line says over it, and what is wrong with that.

    Args:
        launches: of the recipe.
        flags: key to value; None values count as not given.
        document: the recipe, to name its lines.
    """
    given = {key: value for key, value in flags.items() if value is not None}

    def where(key: str) -> str:
        return LAUNCH_FLAGS[key] if key in given else f"{document.where(f'launches.{key}')}: launches.{key}"

    try:
        merged = Launches.model_validate({**launches.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        found = {str(item["loc"][0]): item for item in error.errors()}
        wrong = [(key, given.get(key, item["input"]), item["msg"]) for key, item in found.items()]
        return launches, [
            f"{where(key)}: {value!r} is not allowed: {why[:1].lower()}{why[1:]}" for key, value, why in wrong
        ]
    return merged, [f"{where(key)}: {problem}" for key, problem in launch_problems(merged)]


def launch_problems(launches: Launches) -> Iterator[tuple[str, str]]:
    """Rules over several of the keys that are broken: the key, and what is wrong."""
    if launches.mode == "apart" and (odd := odd_number(launches)) is not None:
        yield odd[0], f"{odd[1]}, unless they take turns (--launch-mode interleaved)"
    if launches.half_width is None:
        for name in ("first", "max_launches", "max_time_s"):
            if name in launches.model_fields_set and getattr(launches, name) is not None:
                yield name, f"{getattr(launches, name):g} is of no use without half_width, which is not given"
    elif launches.max_launches is not None and launches.max_launches < launches.first:
        yield "max_launches", f"{launches.max_launches} is less than the {launches.first} of the first stage"


def odd_number(launches: Launches) -> tuple[str, str] | None:
    """The key of an odd number of launches, and what is wrong with it for arms launched apart; None of an even one."""
    key, number = ("count", launches.count) if launches.half_width is None else ("first", launches.first)
    problem = f"{number} launches per arm; apart, in ABBA order, arms need an even number, like {number + 1}"
    return (key, problem) if number % 2 else None


def written_launches(launches: Launches) -> object:
    """As it is written in a recipe: a plain number where nothing else is said."""
    said = launches.model_dump(exclude_defaults=True)
    return launches.count if set(said) <= {"count"} else {"count": launches.count, **said}


# Arms and cells -------------------------------------------------------------------------------------------------------


class ArmText(Section):
    """One arm as it stands in the file."""

    name: ArmName
    """Lower-case letters, digits, `_`, `.` and `-`; at most 32."""
    set: dict[str, object] = Field(default_factory=dict)
    """Dotted configuration key to value: what makes this arm differ."""


class RecipeText(Section):
    """A recipe as it stands in the file."""

    description: str
    """One line for `dynbench recipes ls`."""
    settings: dict[str, object] = Field(default_factory=dict)
    """Configuration sections that all arms share."""
    arms: Annotated[tuple[ArmText, ...], Field(min_length=2)]
    """Two or more."""
    cells: tuple[dict[str, object], ...] = ()
    """Several comparisons of the same arms: what each adds to the settings, dotted configuration key to value."""
    baseline: str | None = None
    """The arm that the others are compared with; null is the first."""
    launches: Annotated[Launches, BeforeValidator(counted)] = Field(default_factory=Launches)
    """How often arms are launched, and in which order; a plain number is launches per arm."""
    question: str | None = None
    """What the comparison asks, by name; null finds it from what the arms differ in."""
    order: Literal["abba"] = "abba"
    """The arms in order, then reversed, repeated."""


_FIELDS = {"arms": ArmText.model_fields, "launches": Launches.model_fields}
"""What may stand under a key that holds more."""


@dataclass(frozen=True)
class Recipe:
    """A recipe with every arm's configuration resolved.

    Attributes:
        name: the file's stem.
        description: one line.
        arms: configuration by arm name, in order.
        baseline: name of the arm that the others are compared with.
        launches: how often arms are launched, and in which order.
        cell: what this comparison of several adds to the shared settings, unless the command line sets it for all of
            them; empty for a single one.
        question: name of what is asked; None finds it from what the arms differ in.
    """

    name: str
    description: str
    arms: Mapping[str, Config]
    baseline: str
    launches: Launches
    cell: Mapping[str, object] = field(default_factory=dict)
    question: str | None = None


def list_recipes() -> dict[str, Path]:
    """The shipped recipes by name (path below the folder without `.yaml`), sorted."""
    folder = recipes_dir()
    paths = sorted(folder.rglob("*.yaml"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def find_recipe(reference: str) -> Path:
    """The file of a recipe given by path, or by the name of a shipped one.

    Raises:
        UsageError: neither a file nor a shipped recipe; names the nearest.
    """
    path = Path(reference)
    if path.is_file():
        return path
    shipped = list_recipes()
    name = reference.removeprefix("recipes/").removesuffix(".yaml")
    if name in shipped:
        return shipped[name]
    raise unknown_name(f"{reference}: neither a file nor a shipped recipe", name, shipped, "Shipped")


def load_recipe(path: Path) -> Recipe:
    """The first comparison of a recipe's file, and the only one of most.

    Raises:
        ConfigError: every mistake in the file and in every arm, with `file:line`.
        UsageError: the file cannot be read.
    """
    return resolve_cells(path.stem, load_mapping(path))[0]


def resolve_cells(
    name: str,
    document: Document,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    launches: Mapping[str, object] | None = None,
    *,
    paths: bool = False,
) -> list[Recipe]:
    """A recipe's comparisons with their arms resolved.

    Flags go over `--set` over the arm over the cell over the shared settings over the defaults.

    Args:
        name: of the recipe.
        document: its text, read.
        overrides: texts like `train.steps=200`, for all arms.
        flags: dotted key to value, for all arms; None values count as not given.
        launches: key of `launches` to value, over the recipe's; None values count as not given.
        paths: also look up the files and folders that training reads.

    Returns:
        One recipe per cell; a single one where the recipe has no cells.

    Raises:
        ConfigError: every mistake, those that the document knows among them.
    """
    text = _read_text(document)
    counts, wrong = with_flags(text.launches, launches or {}, document)
    problems = dict.fromkeys([*document.problems, *_rules(text, document), *wrong])
    given, _ = command_line(overrides, flags or {})
    recipes = []
    for number, cell in enumerate(text.cells or ({},)):
        arms: dict[str, Config] = {}
        for index, arm in enumerate(text.arms):
            settings = Settings.of(document, "settings")
            for where, values in ((f"cells.{number}", cell), (f"arms.{index}.set", arm.set)):
                settings.merge(
                    {k: Setting(cast(Value, v), document.opening(f"{where}.{k}")) for k, v in values.items()}
                )
            settings.merge_command_line(overrides, flags or {})
            try:
                arms[arm.name] = settings.config(paths=paths)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
        added = {key: value for key, value in cell.items() if not any(overlap(key, other) for other in given)}
        baseline = text.baseline or text.arms[0].name
        recipes.append(Recipe(name, text.description, arms, baseline, counts, added, text.question))
    if problems:
        raise ConfigError(list(problems))
    return recipes


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML that loads back to it: the baseline's whole configuration, and each arm's differences."""
    baseline = recipe.arms[recipe.baseline]
    changes = {
        name: {key: value for key in all_keys() if (value := value_of(config, key)) != value_of(baseline, key)}
        for name, config in recipe.arms.items()
    }
    return dump_yaml(
        {
            "description": recipe.description,
            "settings": recorded(baseline),
            "arms": [{"name": name, "set": changed} for name, changed in changes.items()],
            "baseline": recipe.baseline,
            "launches": written_launches(recipe.launches),
            **({"question": recipe.question} if recipe.question else {}),
            "order": "abba",
        },
        items=ITEMS,
    )


def _read_text(document: Document) -> RecipeText:
    top = {key: tuple(value) if isinstance(value, list) else value for key, value in document.mapping.items()}
    try:
        return RecipeText.model_validate(top)
    except ValidationError as error:
        items = error.errors()
        broken_arms = any(item["loc"][0] == "arms" and len(item["loc"]) > 1 for item in items)
        problems = [_explain(item, document) for item in items if not (broken_arms and item["loc"] == ("arms",))]
        raise ConfigError([*document.problems, *problems]) from None


def _explain(item: ErrorDetails, document: Document) -> str:
    location = item["loc"]
    dotted = ".".join(str(part) for part in location)
    where = f"{document.where(dotted)}: {dotted}"
    match item["type"]:
        case "extra_forbidden":
            known = _FIELDS.get(str(location[0]) if len(location) > 1 else "", RecipeText.model_fields)
            near = f"{did_you_mean(str(location[-1]), known)} Allowed: {', '.join(known)}".lstrip()
            return f"{where}: unknown key. {near}"
        case "string_pattern_mismatch":
            return f"{where}: {item['input']!r} is not allowed; use lower-case letters, digits, _ . -, up to 32"
        case "missing":
            return f"{where}: must be given"
        case "too_short":
            return f"{where}: {len(item['input'])} given; a comparison needs two or more"
    return f"{where}: {item['input']!r} is not allowed: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _rules(text: RecipeText, document: Document) -> Iterator[str]:
    names = [arm.name for arm in text.arms]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{document.where(f'arms.{index}.name')}: arms.{index}.name: '{name}' is the name of an earlier arm"
    if text.baseline is not None and text.baseline not in names:
        known = f"{did_you_mean(text.baseline, names)} Arms: {', '.join(names)}".lstrip()
        yield f"{document.where('baseline')}: baseline: '{text.baseline}' is not an arm. {known}"
