"""Recipes loaded from a file with what a command line would give beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dynbench.config.layers import load_mapping
from dynbench.config.recipes import Recipe, resolve_cells


def load_cells(
    path: Path,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    launches: Mapping[str, object] | None = None,
    *,
    paths: bool = False,
) -> list[Recipe]:
    """The recipe's comparisons, as `resolve_cells` gives them."""
    return resolve_cells(path.stem, load_mapping(path), overrides, flags, launches, paths=paths)
