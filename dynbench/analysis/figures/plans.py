"""Plans and what they are made with: policies of a `solve`, what a probe found, and where scheduling pays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from dynbench.analysis.figures.charts import DASHES, Panel, draw_marks, facets, handles, line_figure, looks
from dynbench.analysis.figures.style import FAINT_INK, INK, Drawing, new_figure
from dynbench.analysis.metrics import workers_of
from dynbench.analysis.record import COMPARISON_FILE, read_analysis
from dynbench.errors import RecordError
from dynbench.runs.json_record import read_json
from dynbench.runs.probe_record import read_probe
from dynbench.runs.run import Run

BEST = 5
"""Policies that are coloured beside static, by their mean speed-up, where there are more than colours."""
GAPS = "greedy_gaps.csv"
GAP_COLUMNS = ("trace", "world_size", "step", "heuristic", "max_cost_gap", "variance_gap")
CELLS_FILE = "cells.json"
"""In the folder of several comparisons: `cells`, each with its settings and the id of its comparison."""
LAUNCHERS = {"real": "o", "virtual": "s"}
"""Kind of the ranks to the marker."""
COLUMNS = {
    "cell": pl.String,
    "candidate": pl.String,
    "launcher": pl.String,
    "world_size": pl.Int64,
    "global_batch": pl.Int64,
    "overhead_share": pl.Float64,
    "speedup": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "predicted_speedup": pl.Float64,
    "bound_speedup": pl.Float64,
}


@dataclass
class _Results:
    results: list[dict[str, Any]]


def solve_lines(source: Run) -> pl.DataFrame:
    """One row per line of results, with the policy's label.

    Raises:
        RecordError: results.json cannot be read.
    """
    columns = ("trace", "world_size", "steps", "mean_max_cost", "mean_bound", "speedup_vs_static")
    rows = [
        {
            **{key: result[key] for key in columns},
            "label": f"{result['policy']} W={result['window']}" if result["window"] > 1 else result["policy"],
            "plan_ms": float(result["plan_ms"]["p50"]),
        }
        for result in read_json(source.path / "results.json", _Results, "Solve again.").results
    ]
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"speedup_vs_static": pl.Float64})


def solve_speedup(source: Run) -> Drawing | None:
    """Above: speedup over static per policy with the proven bound; below, on the same axis: planning time per step."""
    table = solve_lines(source)
    if table.is_empty() or table["speedup_vs_static"].is_null().all():
        return None
    table = table.drop_nulls("speedup_vs_static").with_columns(
        bound_speedup=pl.col("speedup_vs_static") * pl.col("mean_max_cost") / pl.col("mean_bound")
    )
    sizes = {size: f"{size}" for size in sorted(set(table["world_size"]))}
    drawn = table.sort("world_size", maintain_order=True)
    above, below = (
        facets(drawn, "trace", x="world_size", y=y, x_label="ranks (log scale)", y_label=label, log=log, ticks=sizes)
        for y, label, log in (
            ("speedup_vs_static", "speedup over static", "x"),
            ("plan_ms", "planning per step (ms)", "xy"),
        )
    )
    best = table.group_by("label").agg(pl.mean("speedup_vs_static")).top_k(BEST, by="speedup_vs_static")["label"]
    shown = looks(table["label"].unique(maintain_order=True).to_list(), ["static", *best])
    note = (
        f"{' to '.join(f'{n}' for n in sorted({min(table['steps']), max(table['steps'])}))} planned steps per line. "
        "Ratio of summed maximum cost per real token. Grey: the bound of static's own batches, no way of dealing each "
        "of them anew is faster; policies that move samples between steps, or choose others, may pass it. Planning "
        "time is the median over steps, in one process."
    )
    drawing = line_figure(
        "Predicted speedup over static, and planning time", note,
        table.select("trace", "world_size", "label", "speedup_vs_static", "bound_speedup", "plan_ms"),
        [*above, *below], shown, series="label", columns=len(above), panel_in=2.9, legend=handles(shown),
    )  # fmt: skip
    highest = max(*table["speedup_vs_static"], *table["bound_speedup"])
    for axes, panel in zip(drawing.figure.axes, above, strict=False):
        bound = panel.rows.filter(label="static")
        axes.plot(bound["world_size"], bound["bound_speedup"], color=INK, linewidth=3, alpha=0.25, zorder=1)
        axes.set_ylim(0, 1.08 * highest)
    return drawing


def solve_greedy_gap(source: Run) -> Drawing | None:
    """Above: excess of the maximum, per heuristic; below: greedy's excess of the variance."""
    path = source.path / GAPS
    if not path.is_file():
        return None
    try:
        table = pl.read_csv(path, columns=list(GAP_COLUMNS), schema_overrides={"variance_gap": pl.Float64})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RecordError(f"{path}: cannot be read ({str(error).splitlines()[0]})", "Solve again.") from error
    names = table["trace"].unique(maintain_order=True).to_list()
    known = table["world_size"].unique().sort().to_list()
    dashes = dict(zip(dict.fromkeys((known[0], known[-1])), DASHES, strict=False))
    table = table.filter(pl.col("world_size").is_in(list(dashes)))
    shown = {
        (heuristic, size): replace(look, marker="None", dashes=dash)
        for heuristic, look in looks(table["heuristic"].unique(maintain_order=True).to_list()).items()
        for size, dash in dashes.items()
    }
    figure, panels = new_figure(
        "prefix: gap of heuristic counts to the exact ones",
        f"Share of steps whose gap is at most x, from {table['step'].n_unique()} steps each. Maximum: relative to the "
        "exact one; greedy's gap is provably zero. Variance: in units of the squared maximum, where the exact variance "
        "is known. Smallest and largest world size.",
        panels=2 * len(names), columns=len(names), width_in=max(8.0, 2 + 2.9 * len(names)), panel_in=2.5,
        legend=handles({f"{heuristic}, {size} ranks": look for (heuristic, size), look in shown.items()}),
    )  # fmt: skip
    for place, axes in enumerate(panels):
        upper, name = place < len(names), names[place % len(names)]
        for (heuristic, size), look in shown.items():
            rows = table.filter(trace=name, heuristic=heuristic, world_size=size)
            gaps = rows["max_cost_gap" if upper else "variance_gap"].drop_nulls()
            if len(gaps) and (upper or heuristic == "greedy"):
                axes.ecdf(gaps, color=look.color, linestyle=look.dashes)
        axes.set(xlabel="gap of the maximum" if upper else "greedy's gap of the variance", ylim=(0, 1.05))
        axes.set(title=name if upper else "", ylabel="" if place % len(names) else "share of steps")
    return Drawing(figure, table)


def probe_capacity(source: Run) -> Drawing | None:
    """One panel per rank on a common scale: what may be used as a line over the length, trials as marks.

    The table has every trial (`kind` fits or fails) and every length that may be used, with how many samples (usable),
    or none where no limit was found.
    """
    record = read_probe(source.path)
    if not record.trials:
        return None
    kinds = {True: "fits", False: "fails"}
    rows: list[tuple[int, int, int | None, str]] = [(t.rank, t.length, t.n, kinds[t.fits]) for t in record.trials]
    rows += [
        (rank, length, n, "no limit found" if n is None else "usable")
        for rank, usable_n in enumerate(record.tables)
        for length, n in usable_n
    ]
    table = pl.DataFrame(rows, ["rank", "length", "n", "kind"], orient="row")
    usable, fails, fits = looks(["usable micro-batch", "fails", "fits"]).values()
    shown = {
        "usable micro-batch": usable,
        "fails": replace(fails, marker="X", dashes=""),
        "fits": replace(fits, dashes=""),
        "no limit found": replace(usable, marker="^", dashes=""),
    }
    free = [row for row in record.capacity if row.tested_fail is None]
    points: list[tuple[int, str, int, int | None]] = [
        (row.rank, "no limit found", row.length, row.tested_ok) for row in free
    ]
    for rank in sorted({row.rank for row in record.capacity}):
        points += [(rank, "usable micro-batch", *each) for each in record.tables[min(rank, len(record.tables) - 1)]]
    points += [(trial.rank, kinds[trial.fits], trial.length, trial.n) for trial in record.trials]
    drawn = pl.DataFrame(points, ["rank", "kind", "length", "n"], orient="row").sort("rank", maintain_order=True)
    panels = facets(
        drawn.with_columns(pl.format("rank {}", "rank")), "rank", x="length", y="n",
        x_label="padded length (tokens)", y_label="samples per micro-batch",
    )  # fmt: skip
    limit = "" if record.memory_limit_mb is None else f", {record.memory_limit_mb:,.0f} MB resident per process"
    soaked = record.soak is not None and record.soak.shrunk
    note = (
        f"{record.device}, {record.precision}{limit}; n = {len(record.trials)} trials of two training steps each. The "
        "line leaves a safety margin below what passed, and follows the memory model between probed lengths. Nothing "
        "above the largest share of a step is tried: where all of it fits, no limit is known."
        f"{' The soak lowered the line: steps of many shapes leave freed memory in pieces.' if soaked else ''}"
    )
    drawing = line_figure("How many samples fit", note, table, panels, shown, series="kind", columns=4, share_y=True)
    for axes in drawing.figure.axes:
        axes.set_xlim(left=0)
    return drawing


def probe_cost(source: Run) -> Drawing | None:
    """Step time over padded tokens and the fitted lines per length on the left, relative residuals on the right.

    The table has a row per timed shape: measured (median over ranks) and predicted ms, relative residual, held out.
    """
    record = read_probe(source.path)
    cost = record.cost_model
    if cost is None or not record.timings:
        return None
    tokens, length = pl.col("n") * pl.col("length"), pl.col("length")
    predicted = cost.alpha_ms + (cost.beta_ms_per_token + cost.gamma_ms_per_token2 * length) * tokens
    table = (
        pl.DataFrame([row.model_dump() for row in record.timings])
        .group_by("length", "n")
        .agg(measured_ms=pl.col("ms").median(), held_out=pl.col("held_out").first())
        .sort("length", "n")
        .with_columns(padded_tokens=tokens, predicted_ms=predicted)
        .with_columns(residual=pl.col("measured_ms") / pl.col("predicted_ms") - 1)
    )
    judged, accuracy = cost.heldout.get("measured"), ""
    if judged is not None:
        accuracy = f" On held-out points: mean error {judged.mape:.1%}, rank correlation {judged.rank_correlation:.3f}."
    lengths = [f"{each} tokens" for each in sorted(set(table["length"]))]
    shown = {name: replace(look, dashes="") for name, look in looks(lengths).items()}
    drawn = table.with_columns(arm=pl.format("{} tokens", "length"), percent=100 * pl.col("residual"))
    panels = [
        Panel(
            rows=drawn, x="padded_tokens", y="measured_ms", raw="predicted_ms", title="measured and fitted",
            x_label="padded tokens of the micro-batch", y_label="step time (ms)",
        ),
        Panel(
            rows=drawn, x="padded_tokens", y="percent", title="residuals", log="x", from_zero=False,
            x_label="padded tokens (log scale)", y_label="measured over fitted, less 1 (%)",
        ),
    ]  # fmt: skip
    note = (
        f"Median over ranks and repeats, n = {len(table)} shapes, without synchronisation; hollow: held out of the fit "
        f"that judges it.{accuracy} Fit: {cost.alpha_ms:.3g} ms + {1e3 * cost.beta_ms_per_token:.3g} us per padded "
        f"token + {1e6 * cost.gamma_ms_per_token2:.3g} ns per padded token and token of length, coefficients not below "
        "zero."
    )
    drawing = line_figure("What a training step costs", note, table, panels, shown, legend=handles(shown))
    drawing.figure.axes[1].axhline(0, color=FAINT_INK, linewidth=0.8)
    held_out = drawn.filter("held_out")
    for axes, panel in zip(drawing.figure.axes, panels, strict=True):
        axes.plot(held_out[panel.x], held_out[panel.y], "o", color="white", markersize=2.5, zorder=4)
    return drawing


def regimes(source: Run) -> Drawing | None:
    """Speed-ups over the part of a step that is launch overhead, with their intervals and what the probe predicted."""
    table = pl.DataFrame(list(_rows(source)), schema=COLUMNS, orient="row").drop_nulls(("overhead_share", "speedup"))
    if not table.height:
        return None
    virtual = pl.col("launcher") == "virtual"
    table = table.with_columns(kind=pl.when(virtual).then(pl.lit("virtual")).otherwise(pl.lit("real")))
    by_candidate = looks(table["candidate"].unique(maintain_order=True).to_list())
    shown = {
        f"{candidate}, {kind} ranks": replace(look, marker=marker, dashes="")
        for candidate, look in by_candidate.items()
        for kind, marker in LAUNCHERS.items()
        if table.filter(candidate=candidate, kind=kind).height
    }
    drawn = table.with_columns(arm=pl.format("{}, {} ranks", "candidate", "kind"))
    panel = Panel(
        rows=drawn, x="overhead_share", y="speedup", bars=("low", "high"), y_label="speed-up over the baseline",
        x_label="launch overhead, part of the slowest rank's compute",
    )  # fmt: skip
    note = (
        f"n = {table['cell'].n_unique()} comparisons. Overhead is the part of the slowest rank's compute that does not "
        "grow with its tokens, fitted to the baseline's rows. Filled: measured, with the interval; hollow: predicted "
        "by the probe. G: ranks, B: global batch. Above the line at 1 scheduling pays."
    )
    drawing = line_figure(
        "Speed-up over the part of a step that is launch overhead", note, table.drop("kind"), [panel], shown,
        panel_in=4, legend=handles(shown),
    )  # fmt: skip
    (axes,) = drawing.figure.axes
    for row in drawn.drop_nulls("predicted_speedup").iter_rows(named=True):
        look = shown[row["arm"]]
        axes.plot(row["overhead_share"], row["predicted_speedup"], look.marker, fillstyle="none", color=look.color)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xlim(-0.03, min(1.03, 1.3 * max(0.3, *table["overhead_share"])))
    named = drawn.filter(candidate=next(iter(by_candidate))).with_columns(
        name=pl.format("G={}, B={}", "world_size", "global_batch")
    )
    draw_marks(axes, named.drop_nulls("name"), "overhead_share", "speedup", shown, "name")
    return drawing


def _rows(source: Run) -> Iterator[dict[str, object]]:
    """One per comparison and candidate; comparisons that have not ended are left out."""
    for cell in read_json(source.path / CELLS_FILE, dict[str, Any], "Compare again.")["cells"]:
        folder = source.path.parent / str(cell["comparison"])
        if not (folder / COMPARISON_FILE).is_file():
            continue
        record = read_analysis(folder)
        summary = record.runs[0].summary
        for found in record.comparisons:
            low, high = found.interval or (None, None)
            yield {
                "cell": ", ".join(f"{key}={value}" for key, value in cell["settings"].items()),
                **{key: summary.get(key) for key in ("launcher", "global_batch")},
                "world_size": workers_of(summary),
                "candidate": found.candidate,
                "low": low,
                "high": high,
                **{key: getattr(found, key) for key in COLUMNS if key.endswith(("speedup", "share"))},
            }
