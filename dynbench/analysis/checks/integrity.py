"""Whether the rows are all there, and are of training: what is missing, broken, skipped, or accounted to no phase."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dynbench.analysis.checks.finding import Evidence, Seen, share_of_time
from dynbench.analysis.run_facts import status_phrase

SKIPPED_LIMIT = 0.05
"""Optimizer steps that the loss scaler may skip, as a part of the measured ones."""
UNACCOUNTED_LIMIT = 0.05
"""Time outside every recorded phase, as a part of the step time."""


def missing_ranks(evidence: Evidence) -> Iterator[Seen]:
    """Per run, ranks that were launched and left no row: a maximum over the others is too small."""
    for run in evidence.runs:
        if run.missing_ranks:
            found = {"ranks": run.missing_ranks[:8], "present": len(run.ranks), "world_size": run.world_size}
            yield Seen("fail", {"run": run.label, **found, "folder": str(run.run.ranks_dir)})


def partial_run(evidence: Evidence) -> Iterator[Seen]:
    """Runs that ended early: their numbers are of the part that is there."""
    for run in evidence.runs:
        facts, measured = run.facts, run.measured.height
        steps = facts.config.train.steps - run.settling
        if measured < steps or facts.status != "completed":
            found = {"measured": measured, "status": status_phrase(facts.status), "steps": steps}
            values = {"run": run.label, **found, "folder": str(run.run.logs_dir)}
            yield Seen("warn", values, "unfinished" if facts.unfinished else "ended")


def rank_files(evidence: Evidence) -> Iterator[Seen]:
    """Rank files that could not be used, or only in part."""
    for run in evidence.runs:
        for note in run.notes:
            yield Seen("warn", {"run": run.label, "note": note})


def torn_lines(evidence: Evidence) -> Iterator[Seen]:
    """Per run, lines of rank files that were cut short or cannot be read."""
    for run in evidence.runs:
        if run.torn_lines:
            yield Seen("warn", {"run": run.label, "lines": run.torn_lines})


def nan_loss(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose loss is not finite: the model has diverged; information where the scaler skipped those steps."""
    for run in evidence.runs:
        broken = run.steps.filter(~pl.col("loss_global").is_finite())
        if broken.height:
            counts = {"broken": broken.height, "steps": run.steps.height, "first": int(broken["step"][0])}
            yield Seen("info" if broken["skipped"].all() else "fail", {"run": run.label, **counts}, "training")
            continue
        evaluations = run.evaluations
        if "loss" in evaluations.columns and not evaluations["loss"].cast(pl.Float64, strict=False).is_finite().all():
            yield Seen("fail", {"run": run.label}, "evaluation")


def skipped_steps(evidence: Evidence) -> Iterator[Seen]:
    """Runs in which the fp16 loss scaler skipped more than `SKIPPED_LIMIT` of the measured steps."""
    for run in evidence.measured_runs:
        share = float(run.measured.select(pl.col("skipped").mean()).item() or 0.0)
        if share > SKIPPED_LIMIT:
            yield Seen("warn", {"run": run.label, "share": share, "limit": SKIPPED_LIMIT})


def unaccounted_time(evidence: Evidence) -> Iterator[Seen]:
    """Runs with more than `UNACCOUNTED_LIMIT` of their step time outside every phase."""
    for run in evidence.runs:
        share = share_of_time(run, "other_ms_mean")
        if share > UNACCOUNTED_LIMIT:
            yield Seen("info", {"run": run.label, "share": share, "limit": UNACCOUNTED_LIMIT})
