"""How often the arms of a comparison are launched, and in which order: `launches` of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from dynbench.config.yaml_strict import Document
from dynbench.plugins.registry import PositiveFloat, PositiveInt, Section

FLAGS = {
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
    raise ValueError(f"give launches per arm, or {', '.join(FLAGS)} under it")


def with_flags(launches: Launches, flags: Mapping[str, object], document: Document) -> tuple[Launches, list[str]]:
    """What a recipe says with what the command line says over it, and what is wrong with that.

    Args:
        launches: of the recipe.
        flags: key to value; None values count as not given.
        document: the recipe, to name its lines.
    """
    given = {key: value for key, value in flags.items() if value is not None}

    def where(key: str) -> str:
        return FLAGS[key] if key in given else f"{document.where(f'launches.{key}')}: launches.{key}"

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


def written(launches: Launches) -> object:
    """As it is written in a recipe: a plain number where nothing else is said."""
    said = launches.model_dump(exclude_defaults=True)
    return launches.count if set(said) <= {"count"} else {"count": launches.count, **said}
