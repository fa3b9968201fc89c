"""What is wrong with the layout of a figure: no text covers another, no panel is empty, and axes have ticks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from unittest import mock

import pixel
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

WATCHED = (
    *("quickstart", "levers", "sync_xl", "compression", "ps_allreduce_ddp", "fsdp_bottleneck", "buckets", "regimes"),
    "bench",
)
"""Recordings that together have every figure but those of `solve`."""


def labels_of(axis: Axis) -> list[Text]:
    """The labels of the ticks that are on an axis; matplotlib keeps some beyond its ends."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    labels = [label for tick in ticks for label in (tick.label1, tick.label2)]  # those of a colour bar are the second
    return [label for label in labels if label.get_visible() and label.get_text()]


def faults(figure: Figure) -> list[str]:
    """Texts that lie on another or leave the figure, panels without anything in them, labels of axes without ticks."""
    figure.draw_without_rendering()
    axes = [(each.xaxis, each.yaxis) for each in figure.axes]
    ticks = {id(label) for pair in axes for axis in pair for label in axis.get_majorticklabels()}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    texts = [text for text in texts if id(text) not in ticks]
    texts += [label for pair in axes for axis in pair for label in labels_of(axis)]
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    found = [f"{one!r} on {other!r}" for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]
    found += [f"{text!r} leaves" for text, box in boxes if box.x0 < 0 or box.x1 > figure.bbox.x1 + 1]
    found += [f"{each.get_title()!r} is empty" for each in figure.axes if not each.has_data()]
    named = [axis for pair in axes for axis in pair if axis.label.get_text() and len(axis.get_majorticklocs())]
    return [*found, *(f"{axis.label.get_text()!r} has no ticks" for axis in named if not labels_of(axis))]


@contextmanager
def looked_at() -> Iterator[dict[str, list[str]]]:
    """What is wrong with the figures that are drawn meanwhile, by their names."""
    found: dict[str, list[str]] = {}

    def savefig(figure: Figure, path: str | Path, **_: object) -> None:
        found.setdefault(Path(path).stem, []).extend(faults(figure))
        pixel.savefig(figure, path)

    with mock.patch.object(Figure, "savefig", savefig):
        yield found
