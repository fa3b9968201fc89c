"""Flags that several commands have: of the launch, of gates, of all.

Values are passed on as typed: the configuration reads them by its own types, so that all mistakes, of the file and of
the command line, are reported together.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import click

from dynbench.units import parse_duration_s


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Args:
        option: as typed, with dashes.
        key: dotted key that it sets.
        help: one line; `{names}` stands for the plug-ins that the key takes.
        metavar: what stands for the value in the help; empty for the choices.
        choices: all values, where they are few and fixed.
        aliases: other spellings.
    """

    option: str
    key: str
    help: str
    metavar: str
    choices: tuple[str, ...]
    aliases: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return f"flag_{self.key.replace('.', '__')}"

    @property
    def section(self) -> str:
        """The section of its key."""
        return self.key.partition(".")[0]


def _read() -> tuple[Flag, ...]:
    with Path(__file__).with_name("flags.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(
        Flag(option, key, text, metavar, tuple(filter(None, choices.split("|"))), tuple(filter(None, [alias])))
        for options, key, metavar, choices, text in rows
        for option, _, alias in [options.partition("|")]
    )


FLAGS = _read()


def gate_options(function: Callable[..., object]) -> Callable[..., object]:
    """`--strict --fail-on`; the callback receives `strict` and `fail_on`."""
    function = click.option(
        "--fail-on",
        multiple=True,
        metavar="CONDITION,...",
        help="Exit 6 on a verdict (slower, faster, same, ambiguous, estimate), different-loss, or findings.",
    )(function)
    return click.option("--strict", is_flag=True, help="Exit 6 when a check finds more than information.")(function)


def question_option(function: Callable[..., object]) -> Callable[..., object]:
    """`--question`; the callback receives `question`."""
    return click.option(
        "--question",
        metavar="NAME",
        help="What is compared: schedule, sync, compress, precision, scaling, levers (several at once), steps (packing "
        "or fewer), topology (all-reduce or server).  "
        "[default: found from what the arms differ in]",
    )(function)


class Duration(click.ParamType[float]):
    """A time like `20m`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of `20m`."""
        try:
            return parse_duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_OPTIONS: dict[str, Callable[[Callable[..., object]], Callable[..., object]]] = {
    "count": click.option("--launches", "count", type=int, metavar="N", help="Launches per arm; else the recipe's."),
    "mode": click.option(
        "--launch-mode",
        "mode",
        type=click.Choice(["auto", "interleaved", "apart"]),
        help="Arms taking turns in shared launches, or each in its own; auto: shared where they can be.",
    ),
    "block": click.option("--block", type=int, metavar="STEPS", help="Steps of a turn, interleaved.  [default: 1]"),
    "half_width": click.option(
        "--half-width", metavar="PERCENT", help="As many launches as an interval of +-PERCENT needs, like 3%."
    ),
    "first": click.option(
        "--first-launches", "first", type=int, metavar="N", help="With --half-width: the first stage.  [default: 8]"
    ),
    "max_launches": click.option(
        "--max-launches", type=int, metavar="N", help="With --half-width: most launches per arm."
    ),
    "max_time_s": click.option(
        "--max-time", "max_time_s", type=Duration(), metavar="TIME", help="With --half-width: like 20m or 1.5h."
    ),
}
"""By key of `launches`."""


def launch_options(function: Callable[..., object]) -> Callable[..., object]:
    """All of them; the callback receives `launches`, key to value or None."""

    @wraps(function)
    def with_launches(*args: object, **values: object) -> object:
        launches = {key: values.pop(key) for key in _OPTIONS}
        return function(*args, launches=launches, **values)

    command: Callable[..., object] = with_launches
    for option in reversed(_OPTIONS.values()):
        command = option(command)
    return command
