"""Launches that did not run under the same circumstances."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparability import describe, environment_differences
from dynbench.analysis.pairing import Pair


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per set of facts that differ, for the first launches that do, and one per launch without facts."""
    told: set[str] = set()
    for one, other in _couples(evidence):
        differing = describe(environment_differences(one, other))
        if differing and differing not in told:
            told.add(differing)
            yield Finding(
                "warn",
                f"{one.label} and {other.label}: {differing}",
                "the same machine, system and code",
                "Launch all arms together: dynbench compare.",
                values={"first": one.label, "second": other.label, "differences": differing},
                cases=dict.fromkeys(("seen", "limit", "hint"), "differs"),
            )
    for run in evidence.runs:
        if not run.facts.env:
            yield Finding(
                "warn",
                f"{run.label}: env.json is missing",
                "known provenance",
                "Train it again.",
                values={"run": run.label},
                cases=dict.fromkeys(("seen", "limit", "hint"), "unknown"),
            )


def _couples(evidence: Evidence) -> Iterator[Pair]:
    """Every launch that counts beside the first of all, and beside its partner; a partial one may lack facts."""
    known = [run for arm in evidence.arms for run in arm.whole if run.facts.env]
    yield from ((known[0], other) for other in known[1:])
    for comparison in evidence.comparisons:
        yield from (pair for pair in comparison.pairing.pairs if all(run.facts.env for run in pair))
