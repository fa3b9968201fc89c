"""What READMEs and guides say about the commands is what the commands take, and their links lead somewhere."""

from __future__ import annotations

import re

import click
import pytest
from pages import GUIDES, PAGES, READMES, ROOT, commands, read

from dynbench.cli.main import COMMANDS, group, load_command

LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([\w-]*))?\)")


def parsed(words: list[str]) -> click.Context:
    """A command with its words taken apart, not run.

    Raises:
        click.UsageError: no such command, option or choice.
    """
    context = click.Context(group, info_name="dynbench")
    command: click.Command = group
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None and name is not None
        command, context = found, click.Context(found, context, name)
    return command.make_context(str(context.info_name), words, context.parent)


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def leaves(command: click.Command) -> list[click.Command]:
    return list(command.commands.values()) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_takes_what_it_is_given(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = [*commands(page)]
    assert found
    for words in found:
        with parsed(words):
            pass


@pytest.mark.parametrize("words", [["trian"], ["train", "--polcy", "window"], ["guide", "a", "b"]])
def test_a_command_that_does_not_exist_is_found(words):
    with pytest.raises(click.UsageError):
        parsed(words)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_what_is_there(page):
    folder = (ROOT / page).parent
    broken = [link for link, _ in LINK.findall(read(page)) if link and not (folder / link).resolve().exists()]
    assert broken == []


@pytest.mark.parametrize("readme", READMES)
def test_a_readme_fits_and_maps_every_guide(readme):
    lines = read(readme).splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    assert {link for link, _ in LINK.findall(read(readme))} >= set(GUIDES)


def test_shared_options_are_those_of_the_commands_named():
    text = read("dynbench/guides/files.md").partition("## What commands print")[2]
    everyone, _, some = text.partition("`-c`")[0].rpartition("`--json`")[2].partition(";")
    takes = {name: [options(each) for each in leaves(load_command(name))] for name in COMMANDS}

    assert set(re.findall(r"`(\w+)`", some)) == {name for name, each in takes.items() if {"-c", "--set"} <= each[0]}
    for option in ("--json", *re.findall(r"`(-[\w-]+)`", everyone)):
        assert [name for name, each in takes.items() if not all(option in found for found in each)] == []
