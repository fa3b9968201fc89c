"""The fields of the configuration that have a flag of their own, in `flags.csv`; every other one is set with `--set`.

Values are passed on as typed: the configuration reads them by its own types, so that all mistakes, of the file and of
the command line, are reported together.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path


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
