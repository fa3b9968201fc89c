"""Loss and accuracy after each epoch, an arm a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import polars as pl
from matplotlib.ticker import MaxNLocator

from dynbench.analysis.epochs import epochs_of
from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable

PANELS: Mapping[str, tuple[str, float]] = {
    "train_loss": ("training loss", 1.0),
    "eval_loss": ("evaluation loss", 1.0),
    "eval_accuracy": ("evaluation accuracy (%)", 100.0),
}
"""What of an epoch, with the label of its axis, and what it is multiplied by."""

FULL = 105
"""The axis of an accuracy ends above all that it can be, so that no marker is cut."""


def epochs(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Means over launches; what no arm was evaluated for has no panel.

    Returns:
        None where no arm was trained for epochs.
    """
    arms = drawable(arms)
    rows = [row for arm in arms for row in _of_arm(arm)]
    shown = [name for name in PANELS if any(row[name] is not None for row in rows)]
    if not rows or not shown:
        return None
    note = "Means over launches."
    figure, axes = style.new_figure(
        "Loss and accuracy over epochs",
        caption(arms, note),
        columns=len(shown),
        width_in=3.6 * len(shown),
        height_in=4.2,
    )
    for panel, name in zip(axes, shown, strict=True):
        label, factor = PANELS[name]
        for index, arm in enumerate(arms):
            points = [
                (row["epoch"], factor * row[name]) for row in rows if row["arm"] == arm.label and row[name] is not None
            ]
            look: dict[str, Any] = {"color": style.color(index), "marker": style.marker(index), "label": arm.label}
            panel.plot([each for each, _ in points], [value for _, value in points], **look)
        style.label_axes(panel, "epoch", label)
        if name == "eval_accuracy":
            panel.set_ylim(top=FULL)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend_of_figure(figure, axes[0])
    return style.Drawing(figure, pl.DataFrame(rows))


def _of_arm(arm: ArmView) -> list[dict[str, Any]]:
    """The epochs that all its launches have."""
    launches = [found["each"] for run in arm.runs if (found := epochs_of(run)) is not None]
    return [
        {"arm": arm.label, "epoch": together[0]["epoch"], **{name: _mean(together, name) for name in PANELS}}
        for together in zip(*(each for each in launches if isinstance(each, list)), strict=False)
    ]


def _mean(together: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [one[name] for one in together if one[name] is not None]
    return fmean(values) if values else None
