"""Arms that compute the same samples in every step must have the same loss, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per comparison at level `step` whose losses differ; with dropout on, they may."""
    limit = evidence.settings.loss_tolerance
    for comparison in evidence.comparisons:
        difference = comparison.loss_max_rel_diff
        if difference is None or difference <= limit:
            continue
        values = {"candidate": comparison.candidate.label, "difference": difference, "tolerance": limit}
        seen = f"{comparison.candidate.label}: global loss differs by up to {difference:.2g} (relative) in a step"
        if any(run.facts.dropout for arm in (comparison.baseline, comparison.candidate) for run in arm.runs):
            yield Finding(
                "info",
                seen,
                f"{limit:g} with dropout off",
                "Dropout draws other masks when samples change ranks; compare with --set workload.dropout=0.",
                values=values,
                cases=dict.fromkeys(("limit", "hint"), "dropout"),
            )
        elif "train.precision" in comparison.compared or "compress.name" in comparison.compared:
            yield Finding(
                "info",
                seen,
                f"{limit:g} for equal arithmetic",
                "Precision or compression differ: compare evaluation.",
                values=values,
                cases=dict.fromkeys(("limit", "hint"), "arithmetic"),
            )
        else:
            yield Finding(
                "fail",
                seen,
                f"{limit:g}",
                "The arms do not compute the same gradients; check the loss weights b_g * G / B_t before the times.",
                values=values,
                cases=dict.fromkeys(("limit", "hint"), "gradients"),
            )
