"""The registry of figures, drawn from what a run folder holds.

Adding one: a function with the figure's name, `(source) -> Drawing | None` (None where the source lacks what it needs),
in the module of its kind, and one line in `FIGURES` under the command whose runs it draws. The source is a sequence of
`views.ArmView` for `train`, and the `Run` itself for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import matplotlib

from dynbench.analysis.figures import style
from dynbench.analysis.figures.style import Drawing

log = logging.getLogger(__name__)

Kind = Literal["train", "solve", "probe", "bench", "cells"]

FIGURES: Mapping[Kind, Mapping[str, str]] = {
    "train": {
        "timeline": "timeline",
        "step_time": "steps",
        "rank_spread": "steps",
        "step_time_distribution": "steps",
        "time_breakdown": "steps",
        "waterfall": "waterfall",
        "scaling": "strategies",
        "epochs": "steps",
        "strategies": "strategies",
        "loss_curves": "steps",
        "bucket_overhead": "strategies",
        "comm_timeline": "timeline",
        "compression_loss": "compression",
        "compression_step": "compression",
        "compression_methods": "compression",
        "compression_links": "compression",
        "compression_progress": "compression",
        "compression_curves": "compression",
        "compression_fsdp": "compression",
    },
    "solve": {"solve_speedup": "plans", "solve_greedy_gap": "plans"},
    "probe": {"probe_capacity": "plans", "probe_cost": "plans"},
    "bench": {
        "bench_collectives": "bench",
        "bench_bandwidth": "bench",
        "bench_attention": "bench",
        "bench_attention_memory": "bench",
        "bench_precision": "bench",
        "bench_kernels": "bench",
        "bench_transformer": "bench",
        "bench_memory": "bench",
        "bench_memory_timeline": "bench",
        "bench_optimizer": "bench",
    },
    "cells": {"regimes": "plans"},
}
"""Per command its figures, in the order in which a report shows them, and the module of each; also the file names."""


OF_SOME = (
    *("waterfall", "epochs", "strategies", "loss_curves", "bucket_overhead", "comm_timeline"),
    *(name for name in FIGURES["train"] if name.startswith("compression")),
)
"""Figures of some runs only: where they are not drawn, nothing is said of it."""


def draw_figure(kind: Kind, name: str, source: Any) -> Drawing | None:
    """One figure; None where the source has no data for it, as of arms none of which has a measured step."""
    if kind == "train":
        source = [arm for arm in source if arm.steps.height]
        if not source:
            return None
    draw: Callable[[Any], Drawing | None] = getattr(import_module(f"{__name__}.{FIGURES[kind][name]}"), name)
    return draw(source)


def draw_figures(kind: Kind, source: Any, folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a command into a folder.

    Args:
        kind: the command whose runs are drawn.
        source: what those figures read: arm views for `train`, the `Run` for the others.
        folder: receives `<figure>.png` and `<figure>.csv`.
        names: which; all of the command by default.

    Returns:
        The files written, in the registry's order; figures without data are left out, and told if asked for by name.
    """
    files: list[Path] = []
    with matplotlib.rc_context(style.RC):
        for name in FIGURES[kind] if names is None else names:
            drawing = draw_figure(kind, name, source)
            if drawing is None:
                level = logging.DEBUG if names is None or name in OF_SOME else logging.INFO  # nobody asked for this one
                log.log(level, "figure %s left out: the run has no data for it", name)
                continue
            files += style.save(drawing, folder / name)
    return files
