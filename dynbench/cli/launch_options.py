"""`compare`'s options of how often its arms are launched, and how they meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import click

from dynbench.units import parse_duration_s


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
