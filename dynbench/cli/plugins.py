"""`dynbench plugins`: what can be chosen, and with which options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from dynbench.cli.options import Settings, common_options, table_option
from dynbench.cli.output import answered, print_result


@click.command(epilog="\b\nExamples:\n  dynbench plugins\n  dynbench plugins strategies\n")
@click.argument("kind", required=False)
@table_option
@common_options
def command(settings: Settings, kind: str | None) -> None:
    """What can be chosen, a line each, with its options, which are set by --set.

    KIND is one of policies, strategies, compressors, workloads, datasets and benchmarks; all are listed without. Those
    of the files and modules that $DYNBENCH_PLUGINS names, with commas between, are among them.
    """
    from dynbench.errors import UsageError, did_you_mean
    from dynbench.plugins import KINDS

    if kind is not None and kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of plug-in. {did_you_mean(kind, KINDS)}", f"Known: {', '.join(KINDS)}.")
    show_kinds(settings, "plugins", [kind] if kind else list(KINDS))


def show_kinds(
    settings: Settings, command: str, kinds: Sequence[str], beside: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Show the plug-ins of some kinds, and lines like theirs beside them, as what a command found."""
    found = [*(line for kind in kinds for line in listed(kind)), *beside]
    if not answered(settings, command, {"plugins": found}, [line["name"] for line in found]):
        cells = [
            (line["kind"], line["name"], line["summary"], ", ".join(option["key"] for option in line["options"]))
            for line in found
        ]
        flat = [flat_options(line) for line in found]
        print_result(("kind", "name", "what it is", "options (--set)"), cells, flat, keys=2)


def flat_options(line: Mapping[str, Any]) -> dict[str, object]:
    """A line of `listed` for CSV: the keys of its options in one cell."""
    return {**line, "options": " ".join(option["key"] for option in line["options"])}


def listed(kind: str) -> list[dict[str, Any]]:
    """The plug-ins of a kind, as `--json` prints them."""
    from dynbench.config.describe import describe
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
        }
        for name, entry in registry.items()
    ]
