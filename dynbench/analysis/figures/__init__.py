"""Figures, drawn from what a run folder holds.

Adding one: a function with the figure's name below `@figure(kind)` in the module of its subject, which makes a
`Drawing` of its source: a sequence of `views.ArmView` for `train`, and the `Run` itself for the others. The first line
of its docstring is its caption, which in other languages stands under `figures` in `report/labels.LANGUAGE.yaml`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib

from dynbench.analysis.figures.charts import FIGURES, RC, Drawing, Kind, caption_of

__all__ = ["FIGURES", "caption_of", "draw_figure", "draw_figures"]

log = logging.getLogger(__name__)

OF_EVERY_RUN = ("timeline", "step_time", "rank_spread", "step_time_distribution", "time_breakdown", "scaling")
"""Figures of which it is told where a question asks for them and the runs have no data; others are of some runs only.
"""

for _module in ("timeline", "steps", "strategies", "link_map", "compression", "plans", "bench"):
    import_module(f"{__name__}.{_module}")


def draw_figure(kind: Kind, name: str, source: Any) -> Drawing | None:
    """One figure; None where the source has no data for it, as of arms none of which has a measured step."""
    if kind == "train":
        source = [arm for arm in source if arm.steps.height]
    return FIGURES[kind][name](source) if source else None


def draw_figures(kind: Kind, source: Any, folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a command into a folder.

    Args:
        kind: the command whose runs are drawn.
        source: what those figures read: arm views for `train`, the `Run` for the others.
        folder: receives `<figure>.png` and `<figure>.csv`.
        names: which; all of the command by default.

    Returns:
        The files written, in the registry's order; figures without data are left out.
    """
    files: list[Path] = []
    with matplotlib.rc_context(RC):
        for name in FIGURES[kind] if names is None else names:
            drawing = draw_figure(kind, name, source)
            if drawing is None:
                level = logging.DEBUG if names is None or name not in OF_EVERY_RUN else logging.INFO
                log.log(level, "figure %s left out: the run has no data for it", name)
                continue
            folder.mkdir(parents=True, exist_ok=True)
            png, csv = (folder / f"{name}.{suffix}" for suffix in ("png", "csv"))
            drawing.figure.savefig(png)
            drawing.table.write_csv(csv)
            files += [png, csv]
    return files
