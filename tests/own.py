"""A workload of the user's own, as files that tests write."""

from __future__ import annotations

from pathlib import Path

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
