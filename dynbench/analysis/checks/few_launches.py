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
        values: dict[str, object] = {
            "baseline": comparison.baseline.label,
            "candidate": comparison.candidate.label,
            "pairs": pairs,
            "fewest": FEWEST,
        }
        wanted = max(FEWEST, pairs + pairs % 2)
        if evidence.recipe is None:
            case = "recipe"
            hint = "dynbench compare RECIPE launches the arms in ABBA order, as often as the recipe says."
        else:
            case, values = "more", {**values, "recipe": evidence.recipe, "launches": wanted}
            hint = f"Compare anew with more launches per arm: dynbench compare {evidence.recipe} --launches {wanted}."
        if pairs < FEWEST:
            seen = f"{arms}: {pairs} paired launch{'es' if pairs > 1 else ''}"
            yield Finding("warn", seen, f"at least {FEWEST}", hint, values=values, cases={"limit": "few", "hint": case})
        elif pairs % 2:
            seen, limit = f"{arms}: {pairs} paired launches", "an even number, so that drift cancels"
            yield Finding("info", seen, limit, hint, values=values, cases={"limit": "odd", "hint": case})
