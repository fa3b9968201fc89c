"""An undecided comparison: what its launches could have shown, and how many would show the difference it estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.power import MOST_LAUNCHES, POWER, launches_needed, pair_spread, smallest_shown
from dynbench.analysis.verdict import Verdict

GOALS = {"estimate": "estimated difference", "noise": "noise threshold"}


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per AMBIGUOUS comparison; the number of launches is as rough as the spread of so few pairs."""
    recipe = evidence.recipe or "RECIPE"
    for comparison in evidence.comparisons:
        spread = pair_spread(comparison.speedup, comparison.confidence)
        if comparison.verdict is not Verdict.AMBIGUOUS or not spread:
            continue
        pairs, confidence = comparison.speedup.pairs, comparison.confidence
        threshold = math.log1p(comparison.noise)
        # Two arms of one configuration differ by nothing, whatever the estimate.
        estimate = abs(math.log(comparison.speedup.estimate)) if not comparison.aa else 0.0
        aim = max(estimate, threshold)
        goal = "estimate" if estimate > threshold else "noise"
        shown = _percent(smallest_shown(spread, pairs, confidence))
        launches = _launches(launches_needed(aim, spread, confidence), pairs)
        yield Finding(
            "info",
            f"{comparison.baseline.label} and {comparison.candidate.label}: the ratios of {pairs} paired launches "
            f"spread by {_percent(spread)}; so many show a difference of {shown} in {100 * POWER:g} % of comparisons",
            f"the {GOALS[goal]} of {_percent(aim)}",
            _hint(launches, recipe),
            values={
                "baseline": comparison.baseline.label,
                "candidate": comparison.candidate.label,
                "pairs": pairs,
                "spread": _percent(spread),
                "shown": shown,
                "power": POWER,
                "aim": _percent(aim),
                "launches": launches or MOST_LAUNCHES,
                "recipe": recipe,
            },
            cases={"limit": goal, "hint": "again" if launches else "too_many"},
        )


def _launches(needed: int | None, pairs: int) -> int | None:
    """Launches to ask for; None where they would be too many."""
    if needed is None:
        return None
    # Enough by that count and still undecided: a close call, or chance.
    return needed if needed > pairs else 2 * pairs


def _hint(launches: int | None, recipe: str) -> str:
    if launches is None:
        return f"Over {MOST_LAUNCHES:,} launches per arm would be needed: stop other work on the machine instead."
    return (
        f"Compare anew with about {launches} launches per arm (dynbench compare {recipe} --launches {launches}), "
        "or on a quieter machine; adding launches until a verdict comes would favour chance."
    )


def _percent(log_difference: float) -> str:
    return f"{100 * math.expm1(log_difference):.{1 if log_difference < 0.1 else 0}f} %"
