"""P95 of the step time, held between arms: told apart, the same, or not told, with the launches that it would take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from compared import terms
from scipy import stats
from unit.analysis.conftest import Make, launches

from dynbench.analysis.arms import named_arms
from dynbench.analysis.comparison import Comparison, Terms, compare_candidates
from dynbench.analysis.record import TailRecord
from dynbench.analysis.stats import paired_ratio, smallest_shown
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis

WOBBLE = (1.0, 1.02, 0.99, 1.01, 0.985, 1.0)
"""What launches multiply the P95 of all arms by."""


@pytest.fixture(scope="module")
def six(make_shared_run: Make) -> Terms:
    """Six launches of five arms, which differ in a setting each."""
    names = ("shorter", "longer", "same", "unclear")
    costs = {name: {"overrides": (f"schedule.attention_a={at}",)} for at, name in enumerate(names, 1)}
    others = {name: {"policy": "partition", **cost} for name, cost in costs.items()}
    return terms(named_arms(launches(make_shared_run, len(WOBBLE), static={}, **others)), Analysis())


def planted(shared: Terms, **arms: tuple[float, float]) -> Terms:
    """Arms whose P95 is that of `static` times a factor, which every other launch has more of by a relative spread."""
    wanted = {"static": (1.0, 0.0), **arms}
    chosen = [next(arm for arm in shared.arms if arm.label == name) for name in wanted]
    summaries = {
        run.run.id: {
            **shared.summaries[run.run.id],
            "step_time_ms": {"mean": 80.0, "p95": 100 * wobble * factor * (1 + spread * (-1) ** index)},
        }
        for arm, (factor, spread) in zip(chosen, wanted.values(), strict=True)
        for index, (run, wobble) in enumerate(zip(arm.runs, WOBBLE, strict=True))
    }
    return replace(shared, arms=chosen, summaries=summaries)


def tail_of(found: Comparison) -> TailRecord:
    assert found.tail is not None
    return found.tail


def test_the_tail_is_told_whatever_the_total_time_is(six: Terms) -> None:
    """All take less time in all; of P95 both ways, sameness and ambiguity were planted."""
    shared = planted(six, shorter=(0.9, 0.001), longer=(1.1, 0.001), same=(1.003, 0.001), unclear=(0.97, 0.04))
    found = {item.candidate.label: item for item in compare_candidates(shared)}
    assert {item.verdict for item in found.values()} == {Verdict.FASTER}
    tails = {name: tail_of(item) for name, item in found.items()}
    words = {"shorter": "FASTER", "longer": "SLOWER", "same": "SAME", "unclear": "AMBIGUOUS"}
    assert {name: tail.verdict.value for name, tail in tails.items()} == words
    assert tails["shorter"].speedup == pytest.approx(1 / 0.9, rel=1e-3)
    for tail in tails.values():
        low, high = tail.interval or (0, 0)
        assert low < tail.speedup < high
        assert (tail.launches_needed is None) == (tail.verdict is not Verdict.AMBIGUOUS)


def test_a_single_candidate_has_the_interval_of_its_pairs_and_the_number_that_would_show_its_difference(six) -> None:
    shared = planted(six, unclear=(0.97, 0.04))
    (found,) = compare_candidates(shared)
    tail = tail_of(found)
    before, after = ([shared.summaries[run.run.id]["step_time_ms"]["p95"] for run in arm.runs] for arm in shared.arms)
    ratio = paired_ratio(before, after)
    assert (tail.speedup, tail.interval) == (pytest.approx(ratio.estimate), pytest.approx(ratio.ends))
    spread = ratio.half_width * math.sqrt(ratio.pairs) / stats.t.ppf(0.975, ratio.pairs - 1)
    needed, aim = tail.launches_needed, abs(math.log(ratio.estimate))
    assert needed is not None and needed > ratio.pairs
    assert smallest_shown(spread, needed) <= aim < smallest_shown(spread, needed - 2)


def test_few_launches_give_no_number_and_one_no_interval(six: Terms) -> None:
    shared = planted(six, unclear=(0.97, 0.04))
    for number, word in ((1, Verdict.ESTIMATE), (2, Verdict.AMBIGUOUS)):
        arms = [replace(arm, runs=arm.runs[:number]) for arm in shared.arms]
        (found,) = compare_candidates(replace(shared, arms=arms))
        tail = tail_of(found)
        assert (tail.verdict, tail.interval is None, tail.launches_needed) == (word, number == 1, None)


def test_equal_arms_that_differ_in_the_tail_take_it_from_the_others(launch) -> None:
    shared = terms(named_arms(launch(6, static={}, twin={}, partition={})), Analysis())
    twin, partition = compare_candidates(planted(shared, twin=(1.2, 0.001), partition=(0.9, 0.001)))
    assert (twin.tail, tail_of(partition).verdict) == (None, Verdict.AMBIGUOUS)
