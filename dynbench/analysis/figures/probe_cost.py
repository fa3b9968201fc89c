"""Step time against padded tokens with the fitted cost model, and what it leaves over."""

from __future__ import annotations

import numpy as np

from dynbench.analysis.figures import style
from dynbench.analysis.figures.probe_points import measured_points
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """Measured points and fitted lines per length on the left, relative residuals on the right."""
    points = measured_points(source)
    if points is None:
        return None
    table, cost = points
    figure, (times, residuals) = style.new_figure(
        "What a training step costs",
        f"{source.label}: median over ranks and repeats, n = {len(table)} shapes, without synchronisation. Fit: "
        f"{cost.alpha_ms:.3g} ms + {1e3 * cost.beta_ms_per_token:.3g} us per padded token + "
        f"{1e6 * cost.gamma_ms_per_token2:.3g} ns per padded token and token of length, coefficients not below zero.",
        columns=2,
        width_in=10,
        height_in=4.6,
    )
    for index, ((length,), group) in enumerate(table.group_by("length", maintain_order=True)):
        tokens = group["padded_tokens"].to_numpy()
        color, label, mark = style.color(index), f"{length} tokens", style.marker(index)
        times.plot(tokens, group["measured_ms"], mark, markersize=5, color=color, label=label)
        line = np.linspace(0, tokens.max(), 50)
        assert isinstance(length, int)
        fitted = cost.alpha_ms + (cost.beta_ms_per_token + cost.gamma_ms_per_token2 * length) * line
        times.plot(line, fitted, color=style.color(index), linewidth=1.2, alpha=0.8)
        residuals.plot(tokens, 100 * group["residual"], mark, markersize=5, color=color, label=label)
    residuals.axhline(0, color=style.FAINT_INK, linewidth=0.8)
    residuals.set_xscale("log")
    style.label_axes(times, "padded tokens of the micro-batch", "step time (ms)", title="measured and fitted")
    style.label_axes(
        residuals, "padded tokens (log scale)", "measured over fitted, less 1 (%)", title="residuals", from_zero=False
    )
    style.legend_of_figure(figure, times)
    return style.Drawing(figure, table)
