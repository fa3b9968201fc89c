"""`dynbench sync`: the strategies, listed, and checked against one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dynbench.cli.options import Settings, common_options, table_option
from dynbench.cli.output import answered, print_line, print_result
from dynbench.cli.plugins import flat_options, listed

if TYPE_CHECKING:
    from dynbench.engine.launching.toy_ranks import Checked

LINE_EVERY_S = 2.0


@click.group()
def command() -> None:
    """List the strategies of `train --sync`, and check that they train what one process does."""


@command.command(
    "ls", epilog="\b\nExamples:\n  dynbench sync ls\n  dynbench train --sync bucketed --set sync.bucket_mb=10"
)
@table_option
@common_options
def list_strategies(settings: Settings) -> None:
    """All strategies, what they train, and their options."""
    found = [{**line, **_facts(line["name"])} for line in listed("strategies")]
    if answered(settings, "sync ls", {"plugins": found}, [line["name"] for line in found]):
        return
    cells = [(line["name"], line["summary"], _trains(line), ", ".join(_options(line))) for line in found]
    print_result(("strategy", "what it is", "trains", "options (--set)"), cells, [flat_options(line) for line in found])


def _facts(name: str) -> dict[str, object]:
    from dynbench.plugins import STRATEGIES

    entry = STRATEGIES[name]
    return {"trains": entry.trains, "exact": entry.exact, "servers": entry.servers, "virtual": entry.virtual}


def _trains(line: Mapping[str, Any]) -> str:
    """What becomes of the model, beside one process on the whole batch."""
    if not line["trains"]:
        return "nothing"
    return "as one process" if line["exact"] else "something else"


def _options(line: Mapping[str, Any]) -> list[str]:
    return [option["key"] for option in line["options"]]


@command.command("check", epilog="\b\nExamples:\n  dynbench sync check\n  dynbench sync check bucketed --ranks 4")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks that train.")
@table_option
@common_options
def check(settings: Settings, names: tuple[str, ...], ranks: int) -> None:
    """Train a toy on random data with the strategies NAME, or all, and compare its weights with one process's.

    The ranks are processes on this machine's CPU. Exact strategies differ by rounding in double precision alone; one
    that differs by more makes the command end with exit code 6.
    """
    from dynbench.cli.console import working
    from dynbench.engine.launching.toy_ranks import OPTIMIZERS, check_strategies
    from dynbench.errors import ChecksFailed
    from dynbench.plugins import STRATEGIES

    found: list[Checked] = []
    asked = list(dict.fromkeys(names)) or list(STRATEGIES)
    total = len(asked) * len(OPTIMIZERS)
    with (
        working(settings.shows_progress, "starting ranks", line_every_s=LINE_EVERY_S) as report,
        closing(check_strategies(asked, ranks)) as checking,
    ):
        for checked in checking:
            found.append(checked)
            report(f"{len(found)} of {total}: {checked.strategy}, {checked.optimizer}")
    rows = [asdict(each) for each in found]
    if failed := list(dict.fromkeys(each.strategy for each in found if not each.passed)):
        if not settings.as_json:
            _show(found)
        raise ChecksFailed(
            f"sync check: {', '.join(failed)} trained other weights than one process",
            "This is a bug of the strategy.",
            result={"schema_version": 1, "command": "sync check", "checked": rows},
        )
    short = [f"{each.strategy} {each.optimizer} {each.difference:.3g}" for each in found]
    if not answered(settings, "sync check", {"checked": rows}, short):
        _show(found)


def _show(found: Sequence[Checked]) -> None:
    cells = [(c.strategy, c.optimizer, c.ranks, f"{c.difference:.3g}", c.tensor, _outcome(c)) for c in found]
    headers = ("strategy", "optimizer", "ranks", "largest difference", "of", "as one process")
    print_result(headers, cells, [asdict(each) for each in found])
    promised, exact = [c for c in found if c.exact], [c for c in found if c.exact and c.passed]
    strategies = len({c.strategy for c in promised})
    print_line(
        f"\n{len(exact)} of {len(promised)} runs of {strategies} exact strategies train what one process does, but for "
        "rounding"
    )


def _outcome(checked: Checked) -> str:
    if not checked.exact:
        return "not promised"
    return "yes" if checked.passed else "NO"
