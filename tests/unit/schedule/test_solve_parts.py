"""Which lines `solve` has, which it leaves out and why, and what each is told: on eight samples, by hand.

In file order, four a step on two ranks: static costs 10 (samples 5 and 1) and then 18 (9 and 9), for 8 and 36 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names
from dynbench.schedule import solve as solving
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.measure import Series
from dynbench.schedule.policy import Policy, Problem, make_policy
from dynbench.schedule.solve import Line, Skipped, SolveRequest, solve
from dynbench.schedule.traces import Trace

HAND = Trace("hand", np.array([5, 1, 1, 1, 9, 9, 9, 9]), "here")


def request(
    policies: Sequence[str] | None = None,
    traces: Sequence[Trace] = (HAND,),
    world_sizes: Sequence[int] = (2,),
    steps: int | None = 1,
    windows: Sequence[int] = (2,),
    **changes: object,
) -> SolveRequest:
    def make_problem(lengths: np.ndarray, workers: int, window: int) -> Problem:
        return Problem(lengths, workers, **{"global_batch": 4, "order": "file", "window": window, **changes})

    return SolveRequest(traces, world_sizes, make_problem, policies, windows, steps)


def results(asked: SolveRequest) -> dict[str, dict]:
    found = list(solve(asked))
    assert all(isinstance(line, Line) for line in found), found
    return {line.result["policy"]: line.result for line in found}


def slow_above(monkeypatch: pytest.MonkeyPatch, size: int, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(POLICIES.entries, name, replace(POLICIES[name], slow_above=size))


def test_an_unknown_policy_like_no_other_ends_its_message_without_a_space() -> None:
    with pytest.raises(UsageError) as caught:
        solve(request(["qqqqqqqqqqqqq"]))
    assert caught.value.message == "--policy: 'qqqqqqqqqqqqq' is not a policy."


def test_a_place_that_cannot_be_solved_is_told_with_its_name_and_size_and_the_next_goes_on() -> None:
    short = replace(HAND, name="short", lengths=HAND.lengths[:3])
    skipped, line = solve(request(["static"], [short, HAND]))
    assert isinstance(skipped, Skipped) and isinstance(line, Line)
    assert (skipped.trace, skipped.world_size, skipped.policy) == ("short", 2, None)
    assert "more than the 3 samples" in skipped.reason
    assert line.result["trace"] == "hand"


def test_policies_are_not_held_against_a_place_that_is_left_out_anyway() -> None:
    """Nine samples a step are no multiple of the two ranks, but eight samples make no such step."""

    def make_problem(lengths: np.ndarray, workers: int, window: int) -> Problem:
        return Problem(lengths, workers, {1: 4, 2: 9}[workers], order="file", window=window)

    line, skipped = solve(replace(request(["static"], world_sizes=(1, 2)), make_problem=make_problem))
    assert isinstance(line, Line) and isinstance(skipped, Skipped)
    assert (skipped.world_size, skipped.policy) == (2, None)
    assert "more than the 8 samples" in skipped.reason


def test_every_window_is_tried_before_the_first_line_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses_four(name: str, problem: Problem) -> Policy:
        if problem.window == 4:
            raise UsageError("four")
        return make_policy(name, problem)

    monkeypatch.setattr(solving, "make_policy", refuses_four)
    with pytest.raises(UsageError, match="four"):
        solve(request(["window"], windows=(2, 4)))


def test_a_policy_above_its_size_is_left_out_word_for_word(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_above(monkeypatch, 7, "static")
    reason = "one plan takes seconds at G*B = 8; ask for it by name"
    assert next(solve(request())) == Skipped("hand", 2, "static", reason)
    assert set(results(request(["static"]))) == {"static"}
    slow_above(monkeypatch, 8, "static")
    assert isinstance(next(solve(request())), Line)


def test_a_policy_that_refuses_the_problem_is_left_out_word_for_word() -> None:
    reason = "train.global_batch: 5 is not a multiple of the 2 ranks, as static needs"
    assert next(solve(request(global_batch=5))) == Skipped("hand", 2, "static", reason)


def test_without_names_padded_batches_are_planned_packed_too_and_rows_as_rows_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_above(monkeypatch, 0, *POLICIES)  # all are named and none is planned
    for layout, expected in (
        ("padded", plan_names("padded", "packed")),
        ("packed", plan_names("packed")),
        ("flattened", ("static flattened", "flattened", "token_budget flattened")),
    ):
        skipped = [o for o in solve(request(layout=layout)) if isinstance(o, Skipped)]
        assert tuple(o.policy for o in skipped) == expected


def test_a_name_means_its_layout_and_under_rows_those_rows() -> None:
    assert results(request(["packed"]))["packed"]["layout"] == "packed"
    assert results(request(["partition"]))["partition"]["layout"] == "padded"
    found = results(request(["partition", "static"], layout="flattened"))
    assert set(found) == {"flattened", "static flattened"}
    assert {result["layout"] for result in found.values()} == {"flattened"}


def test_packed_static_is_priced_by_its_rows_and_held_against_padded_static() -> None:
    """Ranks of 5 + 1 and 1 + 1 tokens, the first of which costs 2 * 5 padded."""
    result = results(request(["static packed"]))["static packed"]
    assert (result["mean_max_cost"], result["speedup_vs_static"]) == (6, pytest.approx(10 / 6))


def test_capacities_in_samples_say_nothing_of_rows() -> None:
    result = results(request(["packed"], capacity=Capacity.uniform(2)))["packed"]
    assert (result["capacity_violations"], result["local_batch"]["max"]) == (0, 3)


def test_static_runs_over_capacities_that_others_keep_to_and_the_violations_are_counted() -> None:
    """The 5 alone and three 1 together are best; where two are the most, the 5 has company."""
    assert results(request(["partition"]))["partition"]["mean_max_cost"] == 5
    found = results(request(["static", "partition"], capacity=Capacity.uniform(2)))
    assert (found["partition"]["mean_max_cost"], found["partition"]["capacity_violations"]) == (10, 0)
    assert found["static"]["capacity_violations"] == 0
    found = results(request(["static", "lpt"], capacity=Capacity.uniform(1)))
    assert found["static"]["capacity_violations"] == 2
    assert found["lpt"]["capacity_violations"] == 1, "three samples on one rank"


def test_static_splits_for_the_capacities_where_micro_batches_are_auto() -> None:
    result = results(request(["static"], capacity=Capacity.uniform(1), micro_batches="auto"))["static"]
    assert (result["mean_max_cost"], result["capacity_violations"]) == (6, 0)


@pytest.mark.parametrize(
    ("layout", "capacity", "most"),
    [
        ("padded", Capacity.table([[(4, 9)], [(8, 9)]]), 8),
        ("packed", PackedCapacity.table([[(4, 20), (16, 6)], [(16, 7)]]), 7),
    ],
)
def test_a_sample_beyond_every_rank_is_refused_whatever_comes_after_it(
    layout: str, capacity: Capacity, most: int
) -> None:
    trace = replace(HAND, lengths=np.array([1, 9, 1, 1]))
    with pytest.raises(NothingFits) as caught:
        solve(request(["static"], [trace], layout=layout, capacity=capacity))
    assert caught.value.message == (
        f"here: sample 1 of 9 {layout} tokens is longer than any rank's capacity allows (at most {most} tokens)"
    )


@pytest.mark.parametrize("name", ["static", "lpt"])
def test_without_a_number_of_steps_every_line_ends_by_the_clock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "LINE_LIMIT_S", 0.0)
    assert results(request([name], steps=None))[name]["steps"] == 1
    assert results(request([name], steps=3))[name]["steps"] == 3


def changed_run(monkeypatch: pytest.MonkeyPatch, change: Callable[[Policy, Series], Series]) -> None:
    run = solving.run_policy
    monkeypatch.setattr(solving, "run_policy", lambda policy, *given: change(policy, run(policy, *given)))


@pytest.mark.parametrize("static_steps", [1, 2])
def test_lines_cut_short_are_compared_over_the_steps_that_both_have(
    monkeypatch: pytest.MonkeyPatch, static_steps: int
) -> None:
    """Of 10 and 18 against 5 and 18 only the first step counts."""

    def cut(policy: Policy, series: Series) -> Series:
        steps = static_steps if policy.name == "static" else 3 - static_steps
        return replace(series, max_cost=series.max_cost[:steps], real_tokens=series.real_tokens[:steps])

    changed_run(monkeypatch, cut)
    monkeypatch.setattr(solving, "length_spread", lambda series, problem: None)
    monkeypatch.setattr(solving, "adjacent_correlation", lambda series: None)
    found = results(request(["partition"], steps=2))["partition"]
    assert found["speedup_vs_static"] == pytest.approx(2)


def test_the_static_that_all_are_held_against_is_the_line_of_static(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned twice, and cut short by the clock, they could be of different steps."""
    planned: list[str] = []
    changed_run(monkeypatch, lambda policy, series: planned.append(policy.name) or series)
    assert set(results(request(["lpt", "static"]))) == {"lpt", "static"}
    assert planned == ["static", "lpt"]


def test_planning_times_are_told_as_median_and_95th_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    changed_run(monkeypatch, lambda policy, series: replace(series, plan_ms=np.arange(101.0)))
    assert results(request(["static"]))["static"]["plan_ms"] == {"p50": 50, "p95": 95}


def test_prefix_says_its_solver_and_its_gaps_over_the_lines_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "LINE_LIMIT_S", 5.0)
    (line,) = solve(request(["prefix"], solver="greedy", steps=3))
    assert isinstance(line, Line) and line.gap is not None
    assert line.result["solver"] == "greedy"
    assert line.result["greedy_gap"] == line.gap.summary()
    assert line.gap.summary()["steps"] == 3


def test_the_gaps_end_by_the_clock_even_where_the_line_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "LINE_LIMIT_S", 0.0)
    result = results(request(["prefix"], steps=3))["prefix"]
    assert (result["steps"], result["greedy_gap"]["steps"]) == (3, 1)
