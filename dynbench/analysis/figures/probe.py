"""What a probe found: what fits in memory, what a step costs, and how well the fitted cost predicts it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from dynbench.analysis.figures import style
from dynbench.runs.probe_record import CostFit, read_probe
from dynbench.runs.run import Run


def probe_capacity(source: Run) -> style.Drawing | None:
    """One panel per rank on a common scale: what may be used as a line over the length, trials as marks."""
    record = read_probe(source.path)
    if not record.trials:
        return None
    ranks = sorted({row.rank for row in record.capacity})
    limit = "" if record.memory_limit_mb is None else f", {record.memory_limit_mb:,.0f} MB resident per process"
    soaked = "."
    if record.soak is not None and record.soak.shrunk:
        soaked = ". The soak lowered the line: steps of many shapes leave freed memory in pieces."
    figure, panels = style.new_figure(
        "How many samples fit",
        f"{source.label}: {record.device}, {record.precision}{limit}; n = {len(record.trials)} trials of two training "
        "steps each. The line leaves a safety margin below what passed, and follows the memory model between probed "
        f"lengths. Nothing above the largest share of a step is tried: where all of it fits, no limit is known{soaked}",
        columns=len(ranks),
        width_in=4.2 * len(ranks) + 1.2,
        height_in=4.4,
        share_y=True,
    )
    for index, (rank, axes) in enumerate(zip(ranks, panels, strict=True)):
        table = record.tables[min(rank, len(record.tables) - 1)]
        limited = [(length, n) for length, n in table if n is not None]
        axes.plot(*_columns(limited), color=style.color(0), label="usable micro-batch", drawstyle="default")
        for fits, mark, shade, label in ((True, "o", style.color(2), "fits"), (False, "X", style.color(1), "fails")):
            tried = [(trial.length, trial.n) for trial in record.trials if trial.rank == rank and trial.fits is fits]
            axes.plot(*_columns(tried), mark, color=shade, label=label, markersize=6, alpha=0.8)
        free = [(row.length, row.tested_ok) for row in record.capacity if row.rank == rank and row.tested_fail is None]
        axes.plot(*_columns(free), "^", color=style.color(0), label="no limit found", markersize=11, fillstyle="none")
        y_label = "samples per micro-batch" if index == 0 else ""
        style.label_axes(axes, "padded length (tokens)", y_label, title=f"rank {rank}")
        axes.set_xlim(left=0)
    style.legend_of_figure(figure, panels[0])
    rows: list[dict[str, int | str | None]] = [
        {"rank": t.rank, "length": t.length, "n": t.n, "kind": "fits" if t.fits else "fails"} for t in record.trials
    ]
    rows += [
        {"rank": rank, "length": length, "n": n, "kind": "no limit found" if n is None else "usable"}
        for rank, table in enumerate(record.tables)
        for length, n in table
    ]
    return style.Drawing(figure, pl.DataFrame(rows))


def _columns(points: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [length for length, _ in points], [n for _, n in points]


def _measured_points(source: Run) -> tuple[pl.DataFrame, CostFit] | None:
    """One row per timed shape: measured (median over ranks) and predicted ms, relative residual, whether held out."""
    record = read_probe(source.path)
    cost = record.cost_model
    if cost is None or not record.timings:
        return None
    frame = pl.DataFrame([row.model_dump() for row in record.timings])
    tokens, length = pl.col("n") * pl.col("length"), pl.col("length")
    predicted = cost.alpha_ms + (cost.beta_ms_per_token + cost.gamma_ms_per_token2 * length) * tokens
    table = (
        frame.group_by("length", "n")
        .agg(measured_ms=pl.col("ms").median(), held_out=pl.col("held_out").first())
        .sort("length", "n")
        .with_columns(padded_tokens=tokens, predicted_ms=predicted)
        .with_columns(residual=pl.col("measured_ms") / pl.col("predicted_ms") - 1)
    )
    return table, cost


def probe_cost(source: Run) -> style.Drawing | None:
    """Step time over padded tokens and the fitted lines per length on the left, relative residuals on the right."""
    points = _measured_points(source)
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
        times.plot(line, fitted, color=color, linewidth=1.2, alpha=0.8)
        residuals.plot(tokens, 100 * group["residual"], mark, markersize=5, color=color, label=label)
    residuals.axhline(0, color=style.FAINT_INK, linewidth=0.8)
    residuals.set_xscale("log")
    style.label_axes(times, "padded tokens of the micro-batch", "step time (ms)", title="measured and fitted")
    style.label_axes(
        residuals, "padded tokens (log scale)", "measured over fitted, less 1 (%)", title="residuals", from_zero=False
    )
    style.legend_of_figure(figure, times)
    return style.Drawing(figure, table)


def probe_predicted(source: Run) -> style.Drawing | None:
    """Predicted over measured step time: points on the diagonal are predicted right; held-out points stand out."""
    points = _measured_points(source)
    if points is None:
        return None
    table, cost = points
    judged, accuracy = cost.heldout.get("measured"), ""
    if judged is not None:
        accuracy = f" On held-out points: mean error {judged.mape:.1%}, rank correlation {judged.rank_correlation:.3f}."
    figure, (axes,) = style.new_figure(
        "Predicted against measured step time",
        f"{source.label}: n = {len(table)} shapes, median over ranks and repeats. The line shown is fitted to all "
        f"points; accuracy is judged on a second fit that leaves the held-out ones out.{accuracy}",
        width_in=6.4,
        height_in=5.6,
    )
    for index, (held_out, label) in enumerate(((False, "fitted"), (True, "held out"))):
        part, mark, color = table.filter(held_out=held_out), style.marker(index), style.color(index)
        axes.plot(part["measured_ms"], part["predicted_ms"], mark, color=color, label=label, markersize=6, alpha=0.85)
    low, high = 0.8 * float(str(table["measured_ms"].min())), 1.25 * float(str(table["measured_ms"].max()))
    axes.plot([low, high], [low, high], color=style.FAINT_INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.label_axes(axes, "measured (ms, log scale)", "predicted (ms, log scale)", from_zero=False)
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)
