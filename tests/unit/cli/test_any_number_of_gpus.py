"""Every command of READMEs and guides that trains, and every recipe, as --dry-run has it with 0 to 8 GPUs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pages
import pytest
import torch
from gpu.first import PARTS, why_not
from pages import PAGES, ROOT

from dynbench.bench.record import read_options
from dynbench.cli.main import main
from dynbench.engine.launching import resolve

pytestmark = pytest.mark.slow


def commands() -> list[str]:
    quoted = [shlex.join(words) for page in PAGES for words in pages.commands(page) if words[0] in ("train", "compare")]
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


def test_the_commands_are_found():
    found = commands()
    assert "train --sync bucketed --set sync.bucket_mb=10" in found and "compare sync" in found
    assert len(found) > 35


@pytest.mark.parametrize("gpus", [1, *(pytest.param(gpus, marks=pytest.mark.matrix) for gpus in (0, 2, 4)), 8])
def test_every_command_can_start_or_says_what_to_type(gpus, machine, capsys):
    """What GPUs refuse names --device cpu, with which it starts; files that are not here do not count."""
    refused = []
    for command in commands():
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
