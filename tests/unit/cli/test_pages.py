"""READMEs and guides: their commands take what they are given and can start with 0 to 8 GPUs; links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch
from gpu.first import PARTS, why_not
from pages import GUIDES, PAGES, READMES, ROOT, commands, read

from dynbench.bench.record import read_options
from dynbench.cli.main import COMMANDS, group, load_command, main
from dynbench.engine.launching import resolve

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


def trainings() -> list[str]:
    """Every command of READMEs and guides that trains, and every recipe."""
    quoted = [shlex.join(words) for page in PAGES for words in commands(page) if words[0] in ("train", "compare")]
    recipes = [f"compare {path}" for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    return list(dict.fromkeys([*quoted, *recipes]))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    yield monkeypatch
    resolve.this_machine.cache_clear()


def with_gpus(machine: pytest.MonkeyPatch, gpus: int) -> None:
    answer = SimpleNamespace(returncode=0, stdout=json.dumps([["NVIDIA H100 80GB HBM3", 9]] * gpus), stderr="")
    machine.setattr(torch.cuda, "device_count", lambda: gpus)
    machine.setattr(resolve, "subprocess", SimpleNamespace(run=lambda *_, **__: answer))
    machine.setattr(resolve, "usable_cores", lambda: 16)
    resolve.this_machine.cache_clear()


def dry(command: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    words = [word for word in shlex.split(command) if word != "--dry-run"]
    code = main([*words, "--dry-run", *more])
    return code, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, *(pytest.param(gpus, marks=pytest.mark.matrix) for gpus in (0, 2, 4)), 8])
def test_every_command_can_start_or_says_what_to_type(gpus, machine, capsys):
    """What GPUs refuse names --device cpu, with which it starts; files that are not here do not count."""
    refused, found = [], trainings()
    assert len(found) > 35
    for command in found:
        with_gpus(machine, gpus)
        code, said = dry(command, capsys)
        assert code in (0, 2) and (gpus or "GPU" not in said or "launch.device=cpu" in said), (command, said)
        if code:
            with_gpus(machine, 0)
            without = dry(command, capsys)
            if without != (code, said):
                with_gpus(machine, gpus)
                assert "--device cpu" in said, (command, said)
                again = dry(command, capsys, "--device", "cpu")
                assert again[0] == 0 or again == without, (command, again)
                refused.append(command)
    told = " ".join(refused)
    assert ("recipes/sync.yaml" in told) == (gpus == 1) and "quickstart" not in told
    assert gpus < 4 or all("--nproc 8" in command for command in refused)


@pytest.mark.slow
def test_the_first_run_on_gpus_can_start(machine, capsys):
    """Each part with as few GPUs as it says, and with more; and without any where it says so."""
    assert len({part.name for part in PARTS}) == len(PARTS)
    for part, gpus in product(PARTS, (1, 2, 4, 8, None)):
        program, command, *words = shlex.split(part.on(gpus))
        if program != "dynbench" or why_not(part, gpus) or not words:  # doctor and probe are asked for nothing
            continue
        if command == "bench":
            read_options(words[0], words[2::2])
        else:
            with_gpus(machine, gpus or 0)
            assert dry(shlex.join([command, *words]), capsys)[0] == 0, part
