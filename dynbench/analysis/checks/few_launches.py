"""Too few launches for an interval that means something: the launch is the unit of inference, not the step."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding

FEWEST = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per comparison with fewer pairs than `FEWEST`, or with an odd number that ABBA cannot balance."""
    for comparison in evidence.comparisons:
        pairs = comparison.speedup.pairs
        arms = f"{comparison.baseline.label} and {comparison.candidate.label}"
        hint = "dynbench compare RECIPE launches the arms in ABBA order, as often as the recipe says."
        if pairs < FEWEST:
            yield Finding(
                "warn", f"{arms}: {pairs} paired launch{'es' if pairs > 1 else ''}", f"at least {FEWEST}", hint
            )
        elif pairs % 2:
            yield Finding("info", f"{arms}: {pairs} paired launches", "an even number, so that drift cancels", hint)
