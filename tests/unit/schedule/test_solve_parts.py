"""Which lines `solve` has, which it leaves out and why, and what each is told: on eight samples, by hand.

In file order, four a step on two ranks: static costs 10 (samples 5 and 1) and then 18 (9 and 9), for 8 and 36 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names
from dynbench.schedule import solve as solving
from dynbench.schedule.capacity import Capacity
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


def test_every_window_is_tried_before_the_first_line_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses_four(name: str, problem: Problem) -> Policy:
        if problem.window == 4:
            raise UsageError("four")
        return make_policy(name, problem)

    monkeypatch.setattr(solving, "make_policy", refuses_four)
    with pytest.raises(UsageError, match="four"):
        solve(request(["window"], windows=(2, 4)))


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


def test_static_splits_for_the_capacities_where_micro_batches_are_auto() -> None:
    result = results(request(["static"], capacity=Capacity.uniform(1), micro_batches="auto"))["static"]
    assert (result["mean_max_cost"], result["capacity_violations"]) == (6, 0)


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


def test_the_gaps_end_by_the_clock_even_where_the_line_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "LINE_LIMIT_S", 0.0)
    result = results(request(["prefix"], steps=3))["prefix"]
    assert (result["steps"], result["greedy_gap"]["steps"]) == (3, 1)
