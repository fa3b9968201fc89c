"""A workload of the user's own, as files that tests write."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dynbench.config.recipes import recipes_dir

EXAMPLE = recipes_dir() / "length_regression.py"
NAME = "length_regression.py:LengthRegression"
SUBCLASS = "from length_regression import LengthRegression\n\n\nclass Mine(LengthRegression):\n"


def write_own(folder: Path, body: str = "    pass\n", file: str = "mine.py") -> Path:
    """A class `Mine` that derives from the shipped example, which is copied beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SUBCLASS + body, encoding="utf-8")
    return path


@contextmanager
def imports_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of the user's own are imported anew, here and afterwards: tests have other files under the same names."""
    _forget(sys.modules)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    _forget(set(sys.modules) - before)


def _forget(names: Iterable[str]) -> None:
    for name in list(names):
        if name.partition(".")[0] in ("mine", "pkg", "length_regression") or name.startswith("dynbench_own"):
            del sys.modules[name]
