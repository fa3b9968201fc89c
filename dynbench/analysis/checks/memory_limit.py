"""A peak above the memory that the run's capacities were probed under: they promise more than they keep."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.kept import probes_of
from dynbench.analysis.merge import MergedRun
from dynbench.errors import RecordError
from dynbench.runs.probe_record import read_probe

TOLERANCE = 1.01
"""Pages of libraries that a rank touches and a trial does not."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run whose highest peak is above the limit of the probe that its capacities come from."""
    for run in evidence.runs:
        limit = _limit_mb(run)
        peaks = run.steps.select("step", pl.col("peak_mem_mb_max").alias("peak")).sort("peak", descending=True)
        if limit is None or not peaks.height or peaks["peak"][0] <= TOLERANCE * limit:
            continue
        yield Finding(
            "warn",
            f"{run.label}: a rank's memory peaked at {peaks['peak'][0]:,.0f} MB in step {peaks['step'][0]}",
            f"{limit:,.0f} MB, which its capacities were probed under",
            "Probe again with a higher probe.margin or more probe.soak_steps, or with a lower --memory-limit.",
            values={
                "run": run.label,
                "peak_mb": float(peaks["peak"][0]),
                "step": int(peaks["step"][0]),
                "limit_mb": limit,
            },
        )


def _limit_mb(run: MergedRun) -> float | None:
    """Memory of a process in the trials, MB; None on GPUs, without probed capacities, or where the probe is gone."""
    named = run.facts.config.get("schedule.capacity")
    probe = next((probe for probe in probes_of(run) if probe.id == named), None)
    if probe is None:
        return None
    try:
        return read_probe(probe.path).memory_limit_mb
    except RecordError:
        return None
