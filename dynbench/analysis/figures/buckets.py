"""What communication adds to a step over the number of buckets, beside the model that was fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.buckets import EXPLAINS, bears_out, bucket_point, fit_buckets, size_of, sizes_differ
from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.analysis.measures import communication_of
from dynbench.config.digest import flatten
from dynbench.units import mib


def bucket_overhead(arms: Sequence[ArmView]) -> style.Drawing | None:
    """One marker per arm; where the arms bear the model out, its curve and the number of buckets at which it is least.

    Returns:
        None where arms do not have several numbers of buckets.
    """
    found = [(arm, bucket_point(arm.label, flatten(arm.runs[0].facts.config), _facts(arm))) for arm in drawable(arms)]
    points = [point for _, point in found if point is not None]
    fit = fit_buckets(points) if sizes_differ(points) else None
    if fit is None:
        return None
    beyond = all(point.against_null for point in points)
    meaning = "beyond a step without communication" if beyond else "after the last gradient"
    drawn = bears_out(points, fit)
    best = fit.best_bytes if drawn else None
    model = "Line: n*o + s/(n*w), fitted; it assumes that computing a bucket takes as long as sending it."
    if not fit.explains:
        r_squared = "none" if fit.r_squared is None else f"{fit.r_squared:.2f}"
        model = f"No line: n*o + s/(n*w) fits too badly (R² {r_squared}; at least {EXPLAINS:g} is asked for)."
    elif not drawn:
        model = "No line: n*o + s/(n*w) assumes computing a bucket to take as long as sending it: not borne out here."
    least = "" if best is None else f" Dotted: its least, buckets of {mib(best):.3g} MiB."
    note = f"Overhead: {meaning}, mean over launches. {model}{least}"
    figure, (axes,) = style.new_figure("Overhead over the number of buckets", caption([arm for arm, _ in found], note))
    calls = np.array([point.calls for point in points])
    if drawn:
        curve = np.geomspace(calls.min(), calls.max(), 200)
        axes.plot(curve, [fit.overhead_ms(each) for each in curve], color=style.INK, linewidth=1, label="fitted")
    for index, point in enumerate(points):
        label = f"{point.arm}: {size_of(point)}"
        look: dict[str, Any] = {"color": style.color(index), "marker": style.marker(index), "linestyle": "none"}
        axes.plot([point.calls], [point.overhead_ms], markersize=8, label=label, **look)
    if best is not None:
        axes.axvline(fit.total / best, color=style.FAINT_INK, linestyle=":", linewidth=1.2)
    axes.set_xscale("log")
    low = min(0.0, min(point.overhead_ms for point in points))
    style.label_axes(axes, "buckets per step (log scale)", "overhead per step (ms)", from_zero=low == 0)
    style.legend_of_figure(figure, axes)
    return style.Drawing(
        figure,
        pl.DataFrame(
            {
                "arm": [point.arm for point in points],
                "buckets": calls,
                "overhead_ms": [point.overhead_ms for point in points],
                "fitted_ms": [fit.overhead_ms(point.calls) if drawn else None for point in points],
                "step_ms": [point.step_ms for point in points],
            },
            schema_overrides={"fitted_ms": pl.Float64},
        ),
    )


def _facts(arm: ArmView) -> list[dict[str, object]]:
    """Of each launch, what a point is made of, as a summary has it."""
    return [
        {
            "step_time_ms": {"mean": run.measured["step_time_max_ms"].mean()},
            "exposed_comm_ms": {"mean": run.measured["exposed_comm_ms"].mean()},
            "time_ms": {"compute": run.measured["compute_ms_mean"].mean()},
            "workers": run.workers,
            **communication_of(run),
        }
        for run in arm.runs
    ]
