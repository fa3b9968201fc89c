"""`dynbench compress`: the compressors, listed."""

from __future__ import annotations

import click

from dynbench.cli.options import Settings, common_options, table_option
from dynbench.cli.output import answered, print_result
from dynbench.cli.plugins import flat_options, listed

FACTS = ("paper", "variant", "bias", "collectives", "extra", "indices")


@click.group()
def command() -> None:
    """List the compressors of `train --compress`."""


@command.command("ls", epilog="Example: dynbench compress ls")
@table_option
@common_options
def list_compressors(settings: Settings) -> None:
    """All compressors: what they send by which collectives, and their options, which are set by --set."""
    from dynbench.plugins import COMPRESSORS

    found = [
        {
            **line,
            **{fact: getattr(COMPRESSORS[line["name"]], fact) for fact in FACTS},
            "error_feedback": COMPRESSORS[line["name"]].feedback,
        }
        for line in listed("compressors")
    ]
    if answered(settings, "compress ls", {"compressors": found}, [line["name"] for line in found]):
        return
    headers = ("name", "what it is", "biased", "collectives", "beside them", "indices", "paper", "options (--set)")
    cells = [
        (
            *(line[key] for key in ("name", "summary", "bias", "collectives", "extra", "indices", "paper")),
            ", ".join(option["key"] for option in line["options"]),
        )
        for line in found
    ]
    flat = [flat_options(line) for line in found]
    print_result(headers, cells, flat)
