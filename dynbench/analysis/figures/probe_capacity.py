"""Largest micro-batch against length, with every trial that fitted or failed."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from dynbench.analysis.figures import style
from dynbench.runs.probe_record import read_probe
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """One panel per rank on a common scale: what may be used as a line, trials as marks."""
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
            trials = [trial for trial in record.trials if trial.rank == rank and trial.fits is fits]
            axes.plot(
                [t.length for t in trials],
                [t.n for t in trials],
                mark,
                color=shade,
                label=label,
                markersize=6,
                alpha=0.8,
            )
        free = [(row.length, row.tested_ok) for row in record.capacity if row.rank == rank and row.tested_fail is None]
        axes.plot(*_columns(free), "^", color=style.color(0), label="no limit found", markersize=11, fillstyle="none")
        style.label_axes(
            axes, "padded length (tokens)", "samples per micro-batch" if index == 0 else "", title=f"rank {rank}"
        )
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
