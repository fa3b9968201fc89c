"""Tests of commands; the figures' own tests render them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dynbench.cli.main import main
from dynbench.runs.store import RunStore


@dataclass(frozen=True)
class Said:
    """What a command printed."""

    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Of the result."""
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        """The result, which is one JSON object."""
        return json.loads(self.out)

    @property
    def mistake(self) -> str:
        """What is wrong and what to do, of an error under --json."""
        error = self.json["error"]
        return f"{error['message']} {error['hint']}"


Cli = Callable[..., Said]
LAUNCHERS = (
    "engine.launching.torchrun.run_torchrun",
    "engine.launching.run_launch.process_group",
    "probe.prober.probe",
)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli(line, *words, code=0)`: what a command says, typed as a line with further words; it ends with that code."""

    def run(line: str, *words: object, code: int = 0) -> Said:
        capsys.readouterr()
        ended = main([*shlex.split(line), *map(str, words)])
        said = Said(*capsys.readouterr())
        assert ended == code, said
        return said

    return run


@pytest.fixture(autouse=True)
def _figures(unrendered: None) -> None:
    """None is rendered."""


@pytest.fixture
def store(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """An empty registry, which commands take for theirs; the folder that it will be in is the working one."""
    monkeypatch.setenv("DYNBENCH_RESULTS", str(store.root))
    monkeypatch.chdir(store.root.parent)
    return store


@pytest.fixture
def results(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this registry, not made yet; whatever would be launched fails the test."""
    for place in LAUNCHERS:
        monkeypatch.setattr(f"dynbench.{place}", lambda *_: pytest.fail("it was launched"))
    return store.root
