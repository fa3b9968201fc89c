"""`dynbench plugins`, `sync` and `compress`: what can be chosen, with which options; strategies checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dynbench.cli.common import Columns, Settings, print_lines, print_records
from dynbench.cli.options import command
from dynbench.errors import ChecksFailed, unknown_name

if TYPE_CHECKING:
    from dynbench.engine.rank.toy_check import Checked

LINE_EVERY_S = 2.0


@command(table=True, epilog="\b\nExamples:\n  dynbench plugins\n  dynbench plugins strategies\n")
@click.argument("kind", required=False)
def plugins(settings: Settings, kind: str | None) -> None:
    """What can be chosen, a line each, with its options, which are set by --set.

    KIND is one of policies, strategies, compressors, workloads, datasets and benchmarks; all are listed without. Those
    of the files and modules that $DYNBENCH_PLUGINS names, with commas between, are among them.
    """
    from dynbench.plugins import KINDS

    if kind is not None and kind not in KINDS:
        raise unknown_name(f"{kind!r} is no kind of plug-in", kind, KINDS)
    show_kinds(settings, [kind] if kind else list(KINDS))


def show_kinds(settings: Settings, kinds: Sequence[str], beside: Sequence[Mapping[str, Any]] = ()) -> None:
    """Show the plug-ins of some kinds, and lines like theirs beside them, as what a command found."""
    found = [*(line for kind in kinds for line in listed(kind)), *beside]
    _show(settings, "plugins", found, {"kind": "kind", "name": "name", "what it is": "summary"}, keys=2)


def _show(settings: Settings, key: str, found: Sequence[Mapping[str, Any]], columns: Columns, keys: int = 1) -> None:
    """Show lines of `listed` under columns and their options; for CSV the keys of the options are one cell."""
    if not settings.printed({key: found}, [line["name"] for line in found]):
        flat = [{**line, "options": " ".join(option["key"] for option in line["options"])} for line in found]
        options: Columns = {"options (--set)": lambda line: ", ".join(line["options"].split())}
        print_records({**columns, **options}, flat, keys=keys)


def listed(kind: str, *attributes: str) -> list[dict[str, Any]]:
    """The plug-ins of a kind, as `--json` prints them.

    Args:
        kind: of `KINDS`.
        attributes: of the entries, that are shown too.
    """
    from dynbench.config.values import describe
    from dynbench.plugins import KINDS
    from dynbench.runs.atomic import jsonable

    registry = KINDS[kind][1]
    return [
        {
            "kind": kind,
            "name": name,
            "summary": entry.summary,
            "key": registry.key or None,
            "missing": entry.missing,
            "options": [
                {
                    "key": f"{registry.section}.{option}" if registry.key else option,
                    "description": info.description,
                    "allowed": describe(info),
                    "default": jsonable(info.get_default(call_default_factory=True)),
                }
                for option, info in entry.options.model_fields.items()
            ],
            **{attribute: getattr(entry, attribute) for attribute in attributes},
        }
        for name, entry in registry.items()
    ]


@click.group()
def compress() -> None:
    """List the compressors of `train --compress`."""


@command("ls", group=compress, table=True, epilog="Example: dynbench compress ls")
def list_compressors(settings: Settings) -> None:
    """All compressors: what they send by which collectives, and their options, which are set by --set."""
    found = listed("compressors", "paper", "variant", "bias", "collectives", "extra", "indices", "feedback")
    columns = {
        "name": "name",
        "what it is": "summary",
        "biased": "bias",
        "collectives": "collectives",
        "beside them": "extra",
        "indices": "indices",
        "paper": "paper",
    }
    for line in found:
        line["error_feedback"] = line.pop("feedback")
    _show(settings, "compressors", found, columns)


@click.group()
def sync() -> None:
    """List the strategies of `train --sync`, and check that they train what one process does."""


@command(
    "ls",
    group=sync,
    table=True,
    epilog="\b\nExamples:\n  dynbench sync ls\n  dynbench train --sync bucketed --set sync.bucket_mb=10",
)
def list_strategies(settings: Settings) -> None:
    """All strategies, what they train, and their options."""
    columns: Columns = {
        "strategy": "name",
        "what it is": "summary",
        "trains": lambda it: "nothing" if not it["trains"] else "as one process" if it["exact"] else "something else",
    }
    _show(settings, "plugins", listed("strategies", "trains", "exact", "servers", "virtual"), columns)


@command(
    "check",
    group=sync,
    table=True,
    epilog="\b\nExamples:\n  dynbench sync check\n  dynbench sync check bucketed --ranks 4",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks that train.")
def check(settings: Settings, names: tuple[str, ...], ranks: int) -> None:
    """Train a toy on random data with the strategies NAME, or all, and compare its weights with one process's.

    The ranks are processes on this machine's CPU. Exact strategies differ by rounding in double precision alone; one
    that differs by more makes the command end with exit code 6.
    """
    from dynbench.engine.rank.toy_check import OPTIMIZERS, check_strategies
    from dynbench.plugins import STRATEGIES

    found: list[Checked] = []
    chosen = list(dict.fromkeys(names)) or list(STRATEGIES)
    total = len(chosen) * len(OPTIMIZERS)
    with (
        settings.working("starting ranks", line_every_s=LINE_EVERY_S) as report,
        closing(check_strategies(chosen, ranks)) as checking,
    ):
        for checked in checking:
            found.append(checked)
            report(f"{len(found)} of {total}: {checked.strategy}, {checked.optimizer}")
    rows = [asdict(each) for each in found]
    if failed := list(dict.fromkeys(each.strategy for each in found if not each.passed)):
        if not settings.as_json:
            _show_checked(rows)
        raise ChecksFailed(
            f"sync check: {', '.join(failed)} trained other weights than one process",
            "This is a bug of the strategy.",
            result={"checked": rows},
        )
    short = [f"{each.strategy} {each.optimizer} {each.difference:.3g}" for each in found]
    if not settings.printed({"checked": rows}, short):
        _show_checked(rows)


def _show_checked(rows: Sequence[Mapping[str, Any]]) -> None:
    columns: Columns = {
        "strategy": "strategy",
        "optimizer": "optimizer",
        "ranks": "ranks",
        "largest difference": lambda row: f"{row['difference']:.3g}",
        "of": "tensor",
        "as one process": lambda row: "not promised" if not row["exact"] else "yes" if row["passed"] else "NO",
    }
    print_records(columns, rows)
    exact = [row for row in rows if row["exact"]]
    print_lines(
        f"\n{sum(row['passed'] for row in exact)} of {len(exact)} runs of {len({row['strategy'] for row in exact})} "
        "exact strategies train what one process does, but for rounding"
    )


@command(
    "demo",
    group=sync,
    table=True,
    epilog="\b\nExamples:\n  dynbench sync demo\n  dynbench sync demo --op all --ranks 3",
)
@click.option("--op", "operation", default="all_reduce", show_default=True, help="The collective, or all of them.")
@click.option("--ranks", type=click.IntRange(2, 8), default=4, show_default=True, help="Processes on this CPU.")
def demo(settings: Settings, operation: str, ranks: int) -> None:
    """Show what a collective does: every rank's tensor before and after it."""
    from dynbench.engine.rank.demo import OPERATIONS, Seen, demonstrate

    if operation not in (*OPERATIONS, "all"):
        raise unknown_name(f"--op: {operation!r}", operation, (*OPERATIONS, "all"))
    chosen = list(OPERATIONS) if operation == "all" else [operation]
    found: list[Seen] = []
    with (
        settings.working("starting ranks", line_every_s=LINE_EVERY_S),
        closing(demonstrate(chosen, ranks)) as seen,
    ):
        found.extend(seen)
    rows = [asdict(each) for each in sorted(found, key=lambda each: (chosen.index(each.operation), each.rank))]
    if not settings.printed(
        {"seen": rows}, [f"{row['operation']} {row['rank']} {_tensor(row['after'])}" for row in rows]
    ):
        columns: Columns = {
            "operation": "operation",
            "rank": "rank",
            "before": lambda row: _tensor(row["before"]),
            "after": lambda row: _tensor(row["after"]),
        }
        print_records(columns, rows)
        print_lines("", *(f"{OPERATIONS[name].call}: {OPERATIONS[name].meaning}" for name in chosen))


def _tensor(elements: Sequence[int] | None) -> str:
    return "" if elements is None else f"[{', '.join(map(str, elements))}]"
