"""An undecided comparison: what its launches could have shown, and how many would show the difference it estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.power import MOST_LAUNCHES, POWER, launches_needed, pair_spread, smallest_shown
from dynbench.analysis.verdict import Verdict


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per AMBIGUOUS comparison; the number of launches is as rough as the spread of so few pairs."""
    for comparison in evidence.comparisons:
        spread = pair_spread(comparison.speedup, comparison.confidence)
        if comparison.verdict is not Verdict.AMBIGUOUS or not spread:
            continue
        pairs, confidence = comparison.speedup.pairs, comparison.confidence
        threshold = math.log1p(comparison.noise)
        # Two arms of one configuration differ by nothing, whatever the estimate.
        estimate = abs(math.log(comparison.speedup.estimate)) if not comparison.aa else 0.0
        aim = max(estimate, threshold)
        name = "estimated difference" if estimate > threshold else "noise threshold"
        shown = _percent(smallest_shown(spread, pairs, confidence))
        yield Finding(
            "info",
            f"{comparison.baseline.label} and {comparison.candidate.label}: the ratios of {pairs} paired launches "
            f"spread by {_percent(spread)}; so many show a difference of {shown} in {100 * POWER:g} % of comparisons",
            f"the {name} of {_percent(aim)}",
            _hint(launches_needed(aim, spread, confidence), pairs),
        )


def _hint(launches: int | None, pairs: int) -> str:
    if launches is None:
        return f"Over {MOST_LAUNCHES:,} launches per arm would be needed: stop other work on the machine instead."
    # Enough by that count and still undecided: a close call, or chance.
    wanted = launches if launches > pairs else 2 * pairs
    return (
        f"Compare anew with about {wanted} launches per arm (dynbench compare RECIPE --launches {wanted}), "
        "or on a quieter machine; adding launches until a verdict comes would favour chance."
    )


def _percent(log_difference: float) -> str:
    return f"{100 * math.expm1(log_difference):.{1 if log_difference < 0.1 else 0}f} %"
