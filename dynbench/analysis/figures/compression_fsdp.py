"""Where compression sits in a step of FSDP: what is gathered, computed and sent of every block of layers."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from dynbench.analysis.figures import style
from dynbench.analysis.figures.compression import compared
from dynbench.analysis.figures.views import ArmView, caption

GATHER, COMPUTE, CODE, SEND, STEP = "#56B4E9", "#0072B2", "#E69F00", "#CC79A7", "#009E73"
KINDS = {
    GATHER: "all-gather of parameters",
    COMPUTE: "compute",
    CODE: "compress, decompress",
    SEND: "what was compressed, on its way",
    STEP: "optimizer on the rank's shard",
}
LANES = ("parameters", "forward and backward", "gradients")
"""Streams of one rank, from top to bottom: what is in different ones runs at the same time."""
BOXES: tuple[tuple[float, float, int, str, str], ...] = (
    (0, 1, 0, "1", GATHER),
    (1, 1, 0, "2", GATHER),
    (1, 1, 1, "forward 1", COMPUTE),
    (2, 1, 1, "forward 2", COMPUTE),
    (3, 1, 0, "2", GATHER),
    (4, 1, 0, "1", GATHER),
    (4, 1.5, 1, "backward 2", COMPUTE),
    (5.5, 1.5, 1, "backward 1", COMPUTE),
    (5.5, 0.5, 2, "c 2", CODE),
    (6, 0.7, 2, "send 2", SEND),
    (6.7, 0.3, 2, "d", CODE),
    (7, 0.5, 2, "c 1", CODE),
    (7.5, 0.7, 2, "send 1", SEND),
    (8.2, 0.3, 2, "d", CODE),
    (8.5, 1, 1, "step", STEP),
)
"""Start, length, lane, text and kind; two blocks, no unit of time."""


def compression_fsdp(arms: Sequence[ArmView]) -> style.Drawing | None:
    """A step of two blocks; drawn where an arm compresses, whatever its strategy."""
    arms = compared(arms)
    if not arms:
        return None
    note = (
        "A drawing, not a measurement. Every rank holds a shard of each block's parameters, gathers the block before "
        "it computes, and frees it after. The gradient of a block is compressed on every rank (c), piece by piece for "
        "the rank that keeps it; what arrives is decompressed and averaged there (d), in place of a reduce-scatter. "
        "Gathered parameters are not compressed; residuals are of the whole gradient."
    )
    title = "Where compression sits in a step of FSDP"
    figure, (axes,) = style.new_figure(title, caption(arms, note), width_in=9, height_in=3.6)
    for start, length, lane, text, kind in BOXES:
        _box(axes, start, length, lane, text, kind)
    for kind, name in KINDS.items():
        axes.plot([], [], "s", color=kind, label=name)
    axes.set_xlim(-0.1, 9.7)
    axes.set_ylim(len(LANES) - 0.4, -0.6)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_xticks([])
    axes.set_xlabel("time of one rank, from left to right")
    axes.grid(visible=False)
    style.legend_of_figure(figure, axes)
    rows = [{"lane": LANES[lane], "start": s, "length": length, "text": text} for s, length, lane, text, _ in BOXES]
    return style.Drawing(figure, pl.DataFrame(rows, strict=False))


def _box(axes: Axes, start: float, length: float, lane: int, text: str, kind: str) -> None:
    box = FancyBboxPatch(
        (start + 0.03, lane - 0.3), length - 0.06, 0.6, boxstyle="round,pad=0,rounding_size=0.06", fc=kind, ec="none"
    )
    axes.add_patch(box)
    axes.text(
        start + length / 2,
        lane,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color="white" if kind == COMPUTE else style.INK,
    )
