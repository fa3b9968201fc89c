"""P95 of the step time, held between arms: told apart, the same, or not told, with the launches that it would take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from compared import terms
from scipy import stats

from dynbench.analysis.arms import named_arms
from dynbench.analysis.comparison import TAIL, Comparison, Terms, compare_candidates, compare_pairs
from dynbench.analysis.merge import merge_run
from dynbench.analysis.record import TailRecord
from dynbench.analysis.stats import paired_ratio, smallest_shown
from dynbench.analysis.summary import summary_of
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis

WOBBLE = (1.0, 1.02, 0.99, 1.01, 0.985, 1.0)
"""What launches multiply the P95 of all arms by."""


def planted(launch, *, question: str | None = None, **arms: tuple[float, float]) -> Terms:
    """Arms whose P95 is that of `static` times a factor, which every other launch has more of by a relative spread."""
    runs = launch(len(WOBBLE), static={}, **{name: {"policy": "partition", **_cost(name)} for name in arms})
    shared = terms(named_arms(runs), Analysis(), question=question)
    summaries = dict(shared.summaries)
    for name, (factor, spread) in {"static": (1.0, 0.0), **arms}.items():
        for index, run in enumerate(runs[name]):
            value = 100 * WOBBLE[index] * factor * (1 + spread * (-1) ** index)
            summary = summaries[run.run.id]
            summaries[run.run.id] = {**summary, "step_time_ms": {**summary["step_time_ms"], "p95": value}}
    return replace(shared, summaries=summaries)


def _cost(name: str) -> dict[str, tuple[str, ...]]:
    """Arms of names of their own differ in something."""
    return {"overrides": (f"schedule.attention_a={sum(map(ord, name)) / 1e4}",)}


def tail_of(found: Comparison) -> TailRecord:
    assert found.tail is not None
    return found.tail


def test_the_tail_is_told_whatever_the_total_time_is(launch) -> None:
    """`partition` takes less time in all; of P95 both ways, sameness and ambiguity were planted."""
    shared = planted(launch, shorter=(0.9, 0.001), longer=(1.1, 0.001), same=(1.003, 0.001), unclear=(0.97, 0.04))
    found = {item.candidate.label: item for item in compare_candidates(shared)}
    assert {item.verdict for item in found.values()} == {Verdict.FASTER}
    tails = {name: tail_of(item) for name, item in found.items()}
    assert {name: tail.verdict.value for name, tail in tails.items()} == {
        "shorter": "FASTER", "longer": "SLOWER", "same": "SAME", "unclear": "AMBIGUOUS",
    }  # fmt: skip
    assert tails["shorter"].speedup == pytest.approx(1 / 0.9, rel=1e-3)
    for tail in tails.values():
        low, high = tail.interval or (0, 0)
        assert low < tail.speedup < high
        assert (tail.launches_needed is None) == (tail.verdict is not Verdict.AMBIGUOUS)


def test_a_single_candidate_has_the_interval_of_its_pairs_and_the_number_that_would_show_its_difference(launch) -> None:
    shared = planted(launch, unclear=(0.97, 0.04))
    (found,) = compare_candidates(shared)
    tail = tail_of(found)
    before, after = ([shared.summaries[run.run.id][TAIL.partition(".")[0]]["p95"] for run in arm.runs]
                     for arm in shared.arms)  # fmt: skip
    ratio = paired_ratio(before, after)
    assert (tail.speedup, tail.interval) == (pytest.approx(ratio.estimate), pytest.approx(ratio.ends))
    spread = ratio.half_width * math.sqrt(ratio.pairs) / stats.t.ppf(0.975, ratio.pairs - 1)
    needed, aim = tail.launches_needed, abs(math.log(ratio.estimate))
    assert needed is not None and needed > ratio.pairs
    assert smallest_shown(spread, needed) <= aim < smallest_shown(spread, needed - 2)


def test_every_pair_has_it_and_says_the_opposite_the_other_way_round(launch) -> None:
    shared = planted(launch, shorter=(0.9, 0.001), longer=(1.1, 0.001))
    last = compare_pairs(shared, compare_candidates(shared))[-1]
    tail = tail_of(last)
    assert (last.baseline.label, last.candidate.label, tail.verdict) == ("shorter", "longer", Verdict.SLOWER)
    turned = tail.turned
    assert (turned.verdict, turned.turned) == (Verdict.FASTER, tail.turned.turned)
    assert turned.speedup == pytest.approx(1.1 / 0.9, rel=1e-3)
    change, low, high = turned.change or (0, 0, 0)
    assert low < change < high < 0
    assert change == pytest.approx(0.9 / 1.1 - 1, rel=1e-2)
    record = last.record()
    assert record.tail == tail


def test_few_launches_give_no_number_and_one_no_interval(launch) -> None:
    shared = planted(launch, unclear=(0.97, 0.04))
    for launches, word in ((1, Verdict.ESTIMATE), (2, Verdict.AMBIGUOUS)):
        arms = [replace(arm, runs=arm.runs[:launches]) for arm in shared.arms]
        (found,) = compare_candidates(replace(shared, arms=arms))
        tail = tail_of(found)
        assert (tail.verdict, tail.interval is None, tail.launches_needed) == (word, launches == 1, None)


def test_equal_arms_that_differ_in_the_tail_take_it_from_the_others(launch) -> None:
    runs = launch(6, static={}, twin={"policy": "static"}, partition={})
    shared = terms(named_arms(runs), Analysis())
    summaries = dict(shared.summaries)
    for name, factor in (("static", 1.0), ("twin", 1.2), ("partition", 0.9)):
        for index, run in enumerate(runs[name]):
            times = {**summaries[run.run.id]["step_time_ms"], "p95": factor * (100 + 0.1 * (-1) ** index * factor)}
            summaries[run.run.id] = {**summaries[run.run.id], "step_time_ms": times}
    twin, partition = compare_candidates(replace(shared, summaries=summaries))
    assert (twin.tail, tail_of(partition).verdict) == (None, Verdict.AMBIGUOUS)


def test_nothing_is_said_of_it_where_plans_are_not_what_is_asked(launch) -> None:
    (found,) = compare_candidates(planted(launch, question="levers", shorter=(0.9, 0.001)))
    assert found.tail is None and found.record().tail is None


@pytest.mark.parametrize(("virtual", "known"), [(False, True), (True, False)])
def test_memory_spreads_over_real_ranks_alone(make_run, virtual: bool, known: bool) -> None:
    """Planted: ranks whose peaks differ; one process that plays them all has but one memory."""
    overrides = ("launch.launcher=virtual", "launch.world_size=2") if virtual else ()
    run = merge_run(make_run("static", overrides=overrides))
    memory = summary_of(run)["std_over_ranks"]["peak_mem_mb"]
    assert {name: value is not None for name, value in memory.items()} == {"mean": known, "p95": known}
    assert summary_of(run)["peak_mem_mb"]["max"] > 400
