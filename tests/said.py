"""Commands as people type them, and what they print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dynbench.cli.main import main


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
