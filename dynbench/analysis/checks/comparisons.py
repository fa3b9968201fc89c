"""Whether arms may be held against each other: their samples, losses, environments, and how they were launched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from dynbench.analysis.arms import Pair, describe, environment_differences, log_ratios, seconds_per_unit, unit_of
from dynbench.analysis.checks.evidence import Evidence, Seen, names_of
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.differences import within
from dynbench.analysis.questions import DEFAULT
from dynbench.analysis.stats import (
    CONTRADICTION,
    FEWEST_PAIRS,
    MOST_LAUNCHES,
    POWER,
    LaterSpread,
    coefficient_of_variation,
    later_spread,
    reach,
    smallest_shown,
)
from dynbench.analysis.verdict import Verdict, aim_of, launches_to_decide, loss_tolerance, windows_agree

SESSION_H = 1.0
"""Hours without a launch after which the machine is in another state: other clocks, other neighbours, other code."""
SPREAD_LIMIT = 0.10
"""Coefficient of variation over launches; `pyperf check` (github.com/psf/pyperf) has it for values of one benchmark."""


def forced_comparison(comparison: Comparison) -> Iterator[Seen]:
    """Comparisons of runs that cannot be compared, made because the user insisted."""
    if comparison.forbidden:
        yield Seen("fail", {"differences": describe(comparison.forbidden)})


def loss_parity(evidence: Evidence) -> Iterator[Seen]:
    """Comparisons at level `step` that promise the same training, and whose losses differ; with dropout, they may."""
    given = evidence.settings.loss_tolerance
    for comparison in evidence.comparisons:
        difference, promised = comparison.loss_max_rel_diff, comparison.question.loss_drift is None
        allowed, precision, steps = loss_tolerance(comparison.pairing.pairs)
        limit = allowed if given == "auto" else given
        if not promised or difference is None or difference <= limit:
            continue
        values = {"candidate": comparison.candidate.label, "difference": difference, "tolerance": limit}
        follows = {"precision": precision, "steps": steps}
        launches = (*comparison.baseline.runs, *comparison.candidate.runs)
        drops = any(run.facts.config.workload.dropout != 0 for run in launches)
        cases = {"limit": "auto" if given == "auto" else "given", "hint": "dropout" if drops else "gradients"}
        yield Seen("info" if drops else "fail", values | follows, cases)


def loss_drift(comparison: Comparison) -> Iterator[Seen]:
    """Comparisons of arms that promise no such thing, and whose mean losses differ by more than the question allows."""
    question, drift = comparison.question, comparison.loss_drift
    if question.loss_drift is not None and drift is not None and abs(drift) > question.loss_drift:
        allowed = {"allowed": question.loss_drift, "question": question.name}
        yield Seen("warn", {"drift": drift, **allowed})


def environment(evidence: Evidence) -> Iterator[Seen]:
    """Each set of facts that differ, for the first launches that do, and every launch without facts."""
    reported: set[str] = set()
    question = evidence.comparisons[0].question if evidence.comparisons else DEFAULT
    for one, other in _couples(evidence):
        found = environment_differences(one, other, question)
        differing = describe(found)
        if differing and differing not in reported:
            reported.add(differing)
            data = "env.data.fingerprint" in found and all(within(key, ("env.data",)) for key in found)
            case = "data" if data else "differs"
            code = all(within(key, ("env.git",)) for key in found)
            values = {"first": one.label, "second": other.label, "differences": differing}
            yield Seen("warn", values, {"seen": "differs", "limit": case, "hint": "code" if code else case})
    for run in evidence.runs:
        if not run.facts.env:
            yield Seen("warn", {"run": run.label}, "unknown")


def _couples(evidence: Evidence) -> Iterator[Pair]:
    """Every launch that counts beside the first of all, and beside its partner; a partial one may lack facts."""
    known = [run for arm in evidence.arms for run in arm.whole if run.facts.env]
    yield from ((known[0], other) for other in known[1:])
    for comparison in evidence.comparisons:
        yield from (pair for pair in comparison.pairing.pairs if all(run.facts.env for run in pair))


def few_launches(evidence: Evidence) -> Iterator[Seen]:
    """Comparisons with fewer than `FEWEST_PAIRS`, or with an odd number of launches apart, as ABBA cannot balance.

    What so few can say follows from t alone, whatever their spread came out as. Where `resolution` or `first_stage`
    says how many launches are needed, no other number is advised.
    """
    for comparison in evidence.comparisons:
        if not comparison.question.verdicts:
            continue
        pairs = comparison.speedup.pairs
        values = {**names_of(comparison), "pairs": pairs, "fewest": FEWEST_PAIRS}
        if evidence.recipe is not None:
            values |= {"recipe": evidence.recipe, "launches": max(FEWEST_PAIRS, pairs + pairs % 2)}
        hint = "recipe" if evidence.recipe is None else "more"
        spread, level = comparison.spread, comparison.level_alone
        if pairs < FEWEST_PAIRS and spread is not None:
            per_launch = spread.df / (pairs - 1)
            reaches = {
                "reach": reach(pairs, level, spread.df),
                "wanted": reach(FEWEST_PAIRS, level, per_launch * (FEWEST_PAIRS - 1)),
            }
            yield Seen("warn", values | reaches, {"seen": "wide", "limit": "few", "hint": hint})
        elif pairs < FEWEST_PAIRS:
            yield Seen("warn", values, {"seen": "few", "limit": "few", "hint": hint})
        elif not _unresolved(comparison) and _contradiction(comparison) is None and _apart(comparison) % 2:
            yield Seen("info", values, {"seen": "few", "limit": "odd", "hint": hint})


def launch_order(comparison: Comparison) -> Iterator[Seen]:
    """Comparisons whose arms did not take turns: whatever drifts meanwhile becomes their difference."""
    starts = [sorted(run.facts.started for run in arm) for arm in zip(*comparison.pairing.pairs, strict=True)]
    one, other = sorted(starts)
    if len(one) > 1 and one[-1] < other[0]:
        between = datetime.fromisoformat(other[0]) - datetime.fromisoformat(one[-1])
        hours = between.total_seconds() / 3600
        yield Seen("warn", {"hours": hours}, "sessions" if hours >= SESSION_H else "turns")


def launch_spread(evidence: Evidence) -> Iterator[Seen]:
    """Arms whose seconds per unit of work vary by `SPREAD_LIMIT` or more; launches of one seed are compared."""
    for arm in evidence.arms:
        times = [seconds_per_unit(run) for run in arm.runs if run.measured.height and not run.partial]
        spread = coefficient_of_variation(times) if len(times) > 1 else 0.0
        if spread >= SPREAD_LIMIT:
            values = {"arm": arm.label, "spread": spread, "launches": len(times), "limit": SPREAD_LIMIT}
            yield Seen("warn", {**values, "unit": unit_of(arm.runs[0]).name})


def first_stage(comparison: Comparison) -> Iterator[Seen]:
    """Comparisons whose later launches spread more than the first stage, by which their number was chosen, let expect.

    The interval keeps the first stage's spread: then it is narrower than the launches bear out.
    """
    found, first = _contradiction(comparison), comparison.speedup.first
    if found is not None and first is not None:
        spreads = {"first_spread": _percent(found.first), "later_spread": _percent(found.later)}
        counts = {"first": first, "later": comparison.speedup.pairs - first, "p": found.p}
        yield Seen("warn", {**spreads, **counts, "limit": CONTRADICTION, "longer": 2 * first})


def resolution(evidence: Evidence) -> Iterator[Seen]:
    """AMBIGUOUS comparisons: what their launches could have shown, and how many would show what they estimate.

    The number of launches is as rough as the spread of so few pairs; that of fewer than `FEWEST_PAIRS` says nothing,
    nor does that of a first stage which later launches contradict.
    """
    for comparison in evidence.comparisons:
        spread = comparison.spread
        if spread is None or not _unresolved(comparison):
            continue
        pairs, level = comparison.speedup.pairs, comparison.level_alone
        # Two arms of one configuration differ by nothing, whatever the estimate.
        aim = aim_of(comparison.speedup, comparison.noise, alike=comparison.aa)
        launches = launches_to_decide(comparison.speedup, spread, level, aim)
        yield Seen(
            "info",
            {
                **names_of(comparison),
                "pairs": pairs,
                "spread": _percent(spread.sd),
                "shown": _percent(smallest_shown(spread.sd, pairs, level, spread.df)),
                "power": POWER,
                "aim": _percent(aim),
                "launches": MOST_LAUNCHES if launches is None else launches,
                "recipe": evidence.recipe or "RECIPE",
            },
            {
                "limit": "estimate" if aim > math.log1p(comparison.noise) else "noise",
                "hint": "too_many" if launches is None else "again",
            },
        )


def different_samples(comparison: Comparison) -> Iterator[Seen]:
    """Comparisons at level `stream`: arms that draw their samples differently from the same data."""
    if comparison.level != "stream" or comparison.forbidden:
        return
    pairs = comparison.pairing.pairs
    if not all(windows_agree(*pair) for pair in pairs):
        yield Seen("info", {"unit": comparison.question.unit.name}, "samples")
        return
    facts = max((run.facts for pair in pairs for run in pair), key=lambda facts: facts.window)
    given = {name: getattr(facts.config.train, name) for name in ("warmup_steps", "steps")}
    whole = {name: -(-steps // facts.window) * facts.window for name, steps in given.items()}
    yield Seen("info", {"window": facts.window, **whole}, "split")


def _unresolved(comparison: Comparison) -> bool:
    """Whether there is a number of launches to be told that may decide it."""
    spread, enough = comparison.spread, comparison.speedup.pairs >= FEWEST_PAIRS
    ambiguous = enough and comparison.verdict is Verdict.AMBIGUOUS and _contradiction(comparison) is None
    return ambiguous and spread is not None and spread.sd > 0


def _contradiction(comparison: Comparison) -> LaterSpread | None:
    """The spread after the first stage, where it contradicts that of the first stage."""
    first = comparison.speedup.first
    if first is None or comparison.forbidden:
        return None
    found = later_spread(log_ratios(comparison.pairing.pairs, comparison.question.unit), first)
    return found if found is not None and found.contradicts else None


def _apart(comparison: Comparison) -> int:
    """Pairs whose launches were made apart."""
    return sum(base.facts.launch_id is None for base, _ in comparison.pairing.pairs)


def _percent(log_difference: float) -> str:
    if log_difference > math.log(2):
        return "> 100 %"
    return f"{100 * math.expm1(log_difference):.{1 if log_difference < 0.1 else 0}f} %"
