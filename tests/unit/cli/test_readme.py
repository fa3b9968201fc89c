"""What the READMEs say about the commands is what the commands take."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from dynbench.cli.main import COMMANDS, load_command

ROOT = Path(__file__).resolve().parents[3]


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def leaves(command: click.Command) -> list[click.Command]:
    return list(command.commands.values()) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_shared_options_are_those_of_the_commands_named(readme: str) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    everyone, _, some = text.partition("`-c`")[0].rpartition("`--json`")[2].partition(";")
    takes = {name: [options(each) for each in leaves(load_command(name))] for name in COMMANDS}

    assert set(re.findall(r"`(\w+)`", some)) == {name for name, each in takes.items() if {"-c", "--set"} <= each[0]}
    for option in ("--json", *re.findall(r"`(-[\w-]+)`", everyone)):
        assert [name for name, each in takes.items() if not all(option in found for found in each)] == []
