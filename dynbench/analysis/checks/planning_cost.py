"""Planning that costs a notable part of the step; its time is inside the step time in any case."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding

LIMIT = 0.01

HINTS = {
    "prefix": "Use a cheaper solver (--solver greedy) or a smaller buffer (--buffer N).",
    "window": "Use a smaller window (--window N).",
}
OTHER_HINT = "This policy has nothing cheaper to set; dynbench solve shows how long the others take to plan."


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per arm whose first launch spends more than `LIMIT` on planning."""
    for arm in evidence.arms:
        run = arm.runs[0]
        share = float(run.measured["plan_ms_mean"].sum()) / run.time_ms if run.measured.height else 0.0
        if share > LIMIT:
            policy = arm.runs[0].facts.policy
            yield Finding(
                "warn",
                f"{arm.label}: planning takes {100 * share:.1f} % of the step time",
                f"{100 * LIMIT:.0f} %",
                HINTS.get(policy, OTHER_HINT),
                values={"arm": arm.label, "share": share, "limit": LIMIT},
                cases={"hint": policy if policy in HINTS else "other"},
            )
