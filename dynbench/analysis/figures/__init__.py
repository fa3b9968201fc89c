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
from typing import Literal, TypeVar

import matplotlib

from dynbench.analysis.figures import style
from dynbench.analysis.figures.style import Drawing

log = logging.getLogger(__name__)

Kind = Literal["train", "solve", "probe", "bench", "cells"]
Source = TypeVar("Source")

FIGURES: Mapping[Kind, Mapping[str, str]] = {
    "train": {
        "timeline": "timeline",
        "step_time": "over_steps",
        "rank_spread": "over_steps",
        "step_time_distribution": "step_time_distribution",
        "time_breakdown": "time_breakdown",
        "waterfall": "waterfall",
        "scaling": "scaling",
        "epochs": "epochs",
        "strategies": "strategies",
        "loss_curves": "strategies",
        "bucket_overhead": "buckets",
        "comm_timeline": "comm_timeline",
        "compression_loss": "compression",
        "compression_step": "compression",
        "compression_methods": "compression",
        "compression_links": "compression_links",
        "compression_progress": "compression_progress",
        "compression_curves": "compression_progress",
        "compression_fsdp": "compression_fsdp",
    },
    "solve": {
        "solve_speedup": "solve_costs",
        "solve_rank_costs": "solve_costs",
        "solve_greedy_gap": "solve_costs",
        "solve_padding": "solve_policies",
        "solve_batch_size": "solve_policies",
        "solve_correlation": "solve_policies",
    },
    "probe": {"probe_capacity": "probe", "probe_cost": "probe", "probe_predicted": "probe"},
    "bench": {
        "bench_collectives": "bench_collectives",
        "bench_bandwidth": "bench_collectives",
        "bench_attention": "bench_attention",
        "bench_attention_memory": "bench_attention",
        "bench_packed_attention": "bench_packed_attention",
        "bench_precision": "bench_precision",
        "bench_kernels": "bench_kernels",
        "bench_transformer": "bench_models",
        "bench_memory": "bench_models",
        "bench_memory_timeline": "bench_models",
        "bench_optimizer": "bench_models",
    },
    "cells": {"regimes": "regimes"},
}
"""Per command its figures, in the order in which a report shows them, and the module of each; also the file names."""


OF_SOME = (
    *("waterfall", "epochs", "strategies", "loss_curves", "bucket_overhead", "comm_timeline"),
    *(name for name in FIGURES["train"] if name.startswith("compression")),
)
"""Figures of some runs only: where they are not drawn, nothing is said of it."""


def draw_figure(kind: Kind, name: str, source: Source) -> Drawing | None:
    """One figure; None where the source has no data for it."""
    draw: Callable[[Source], Drawing | None] = getattr(import_module(f"{__name__}.{FIGURES[kind][name]}"), name)
    return draw(source)


def draw_figures(kind: Kind, source: Source, folder: Path, names: Sequence[str] | None = None) -> list[Path]:
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
