"""The registry of figures: one file each, drawn from what a run folder holds.

Adding one: a file in this package with `draw(source) -> Drawing | None` (None where the source lacks what it needs),
and one line in `FIGURES` under the command whose runs it draws. The source is a sequence of `views.ArmView` for
`train`, and the `Run` itself for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, TypeVar

import matplotlib

from dynbench.analysis.figures import style
from dynbench.analysis.figures.style import Drawing

log = logging.getLogger(__name__)

Kind = Literal["train", "solve", "probe", "bench", "cells"]
Source = TypeVar("Source")

_HERE = "dynbench.analysis.figures"

FIGURES: dict[Kind, tuple[str, ...]] = {
    "train": (
        "timeline",
        "step_time",
        "rank_spread",
        "step_time_distribution",
        "time_breakdown",
    ),
    "solve": (
        "solve_speedup",
        "solve_rank_costs",
        "solve_greedy_gap",
        "solve_padding",
        "solve_batch_size",
        "solve_correlation",
    ),
    "probe": ("probe_capacity", "probe_cost", "probe_predicted"),
    "bench": (),
    "cells": ("regimes",),
}
"""Per command the module names in this package, in the order in which a report shows them; also the file names."""


def draw_figures(kind: Kind, source: Source, folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a command into a folder.

    Args:
        kind: the command whose runs are drawn.
        source: what those figures read: arm views for `train`, the `Run` for the others.
        folder: receives `<figure>.png` and `<figure>.csv`.
        names: which; all of the command by default.

    Returns:
        The files written, in the registry's order; figures without data are left out and logged.
    """
    files: list[Path] = []
    with matplotlib.rc_context(style.RC):
        for name in FIGURES[kind] if names is None else names:
            draw: Callable[[Source], Drawing | None] = import_module(f"{_HERE}.{name}").draw
            drawing = draw(source)
            if drawing is None:
                log.info("figure %s left out: the run has no data for it", name)
                continue
            files += style.save(drawing, folder / name)
    return files
