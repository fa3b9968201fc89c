"""The recorded runs, unpacked, and the command line in this process over them, at one width and in one language."""

from __future__ import annotations

import json
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pixel
import pytest
import yaml
from bad_input import run

from dynbench.runs.run import Run

from .neutral import Names
from .record import RUNS

ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HF_HUB_OFFLINE": "1"}
UNSET = ("DYNBENCH_RESULTS", "DYNBENCH_CACHE", "DYNBENCH_PLUGINS", "PYTHONWARNINGS")


@dataclass
class Desk:
    """A folder with recorded runs in it, and commands run there.

    Attributes:
        here: the working folder; the runs are in its `results`.
        names: what machines and days make of texts, replaced.
    """

    here: Path
    names: Names = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(self.here)

    @property
    def results(self) -> Path:
        """The registry."""
        return self.here / "results"

    def unpack(self, name: str) -> None:
        """Put a recording's runs into the registry."""
        unpack(name, self.results)
        self.names.meet(self.results)

    def transcript(self, *commands: str) -> str:
        """What commands print, one after the other, with their exit codes."""
        return "\n".join(self._said(command) for command in commands)

    def _said(self, command: str) -> str:
        said = run(*shlex.split(command))
        parts = [f"$ dynbench {command}\nexit {said.code}\n"]
        parts += [f"--- {name}\n{text}" for name, text in (("stdout", said.out), ("stderr", said.err)) if text]
        return self.names.neutral("".join(part if part.endswith("\n") else f"{part}\n" for part in parts))


@contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """A desk in an empty folder, which is the working folder meanwhile; no figure is made into pixels."""
    with pytest.MonkeyPatch.context() as patch:
        pixel.unrendered(patch)
        for key, value in ENVIRONMENT.items():
            patch.setenv(key, value)
        for key in UNSET:
            patch.delenv(key, raising=False)
        patch.setenv("DYNBENCH_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        patch.setattr("sys.argv", ["dynbench"])
        patch.setattr("dynbench.cli.console.time", SimpleNamespace(monotonic=lambda: 0.0))  # tells no progress
        patch.setattr(Run, "config", cache(Run.config))  # an analysis of many runs reads each many times
        patch.setattr("torch.cuda.device_count", lambda: 0)
        with mock.patch("os.cpu_count", return_value=2), mock.patch("os.sched_getaffinity", return_value={0, 1}):
            yield Desk(folder)


def unpack(name: str, results: Path) -> None:
    """Put a recording's runs into a results folder; its comparisons can be analyzed again."""
    with tarfile.open(RUNS / f"{name}.tar.xz") as packed:
        packed.extractall(results, filter="data")
    for state in results.glob("*/compare.json"):
        if not (state.parent / "comparison.json").is_file():
            (state.parent / "comparison.json").write_text(json.dumps(_arms_of(state)))


def _arms_of(state: Path) -> Mapping[str, object]:
    """What `analyze` needs to know of a comparison: its question and its arms, the baseline first."""
    planned, recipe = json.loads(state.read_text()), yaml.safe_load((state.parent / "recipe.yaml").read_text())
    launches: dict[str, list[str]] = {planned["baseline"]: []}
    for launch in sorted(planned["launches"], key=lambda launch: launch["block"]):
        launches.setdefault(launch["arm"], []).append(launch["run"])
    arms = [{"name": name, "runs": runs} for name, runs in launches.items()]
    return {"question": recipe.get("question"), "runs": [], "arms": arms, "comparisons": []}
