"""The lines of `solve`: what is in them, which there are, where they end, and what each is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names
from dynbench.schedule import solve as solving
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.measure import Series
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import Policy, Problem, make_policy
from dynbench.schedule.solve import Line, Skipped, SolveRequest, cost_is_estimated, solve, speedup_is_estimated
from dynbench.schedule.traces import Trace

RNG = np.random.default_rng(5)
HEAVY = Trace("heavy", np.clip(RNG.lognormal(4, 1, 2_000).astype(np.int64), 4, 512), "made up")


def request(
    policies: Sequence[str] | None = None,
    traces: Sequence[Trace] = (HEAVY,),
    world_sizes: Sequence[int] = (4,),
    batch: int = 32,
    steps: int | None = 20,
    windows: Sequence[int] = (8,),
    **changes: Any,
) -> SolveRequest:
    def make_problem(lengths: IntArray, workers: int) -> Problem:
        return Problem(lengths, workers, batch, **changes)

    return SolveRequest(traces, world_sizes, make_problem, policies, windows, steps)


def lines(asked: SolveRequest) -> dict[str, dict[str, Any]]:
    return {o.result["policy"]: o.result for o in solve(asked) if isinstance(o, Line)}


def reasons(asked: SolveRequest) -> dict[str | None, str]:
    """Of what was skipped."""
    where = asked.traces[0].name, asked.world_sizes[0]
    return {o.policy: o.reason for o in solve(asked) if isinstance(o, Skipped) and (o.trace, o.world_size) == where}


def test_violations_are_counted_for_those_that_know_no_capacity():
    for name, result in lines(request(capacity=Capacity.table([[(64, 24), (512, 10)]]))).items():
        knows = name in ("partition", "window", "prefix", "token_budget", "packed")
        assert result["capacity_violations"] == 0 or not knows, name
    assert lines(request(["static"], capacity=Capacity.uniform(7)))["static"]["capacity_violations"] == 4 * 20


def test_packed_lines_know_capacities_in_tokens_only():
    """Those in samples are left out, and under packed rows nothing else is planned; static stays the baseline."""
    of_samples = lines(request(["packed"], capacity=Capacity.uniform(12)))
    capacity = PackedCapacity.table([[(128, 1500), (512, 1200)]])
    of_tokens = lines(request(["static", "partition"], capacity=capacity, layout="packed"))
    assert set(of_tokens) == {"static packed", "packed"}
    assert of_tokens["packed"]["capacity_violations"] == 0 < of_tokens["static packed"]["capacity_violations"]
    assert of_tokens["packed"]["speedup_vs_static"] == of_samples["packed"]["speedup_vs_static"]


LONGEST = int(HEAVY.lengths.argmax())
LONGER = f"sample {LONGEST} of {HEAVY.lengths[LONGEST]} padded tokens is longer than .*at most 100 tokens"
SHORT = Trace("short", HEAVY.lengths[:20], "here")


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        (request(capacity=Capacity.table([[(100, 8)]])), NothingFits, LONGER),
        (request(["statik"]), UsageError, "Did you mean 'static'"),
        (request(["window"], layout="packed"), UsageError, "makes no sense under policy 'window'"),
        (request(world_sizes=(64,)), UsageError, "less than the 64 ranks"),
        (request(["static"], batch=34), UsageError, "not a multiple"),
    ],
    ids=["a long sample", "an unknown name", "a window of rows", "too many ranks", "unequal shares"],
)
def test_what_cannot_be_solved_is_refused_before_anything_runs(asked, kind, message):
    with pytest.raises(kind, match=message):
        solve(asked)


def test_what_cannot_run_of_all_does_not_lose_the_others():
    outcomes = list(solve(request(["static"], [SHORT, HEAVY])))
    assert [type(outcome) for outcome in outcomes] == [Skipped, Line]
    assert "more than the 20 samples" in reasons(request(["static"], [SHORT, HEAVY]))[None]
    skipped = reasons(request(batch=34))
    assert all("not a multiple of the 4 ranks" in skipped[name] for name in ("static", "group_by_length"))
    assert lines(request(batch=34))["partition"]["speedup_vs_static"] is None


def test_costs_fitted_on_another_layout_are_estimates():
    found = [{"layout": "packed", "fitted_on": layout} for layout in (None, "padded", "packed")]
    assert [cost_is_estimated(each) for each in found] == [False, True, False]
    assert [speedup_is_estimated(each) for each in found] == [False, True, True]


def test_slow_peers_are_left_out_of_all_at_large_sizes(monkeypatch):
    assert POLICIES["karmarkar_karp"].slow_above < 1024 * 8192
    monkeypatch.setitem(POLICIES.entries, "lpt", replace(POLICIES["lpt"], slow_above=4 * 32 - 1))
    assert reasons(request())["lpt"] == "one plan takes seconds at G*B = 128; ask for it by name"
    assert lines(request(["lpt"]))["lpt"]["steps"] == 20


@pytest.mark.parametrize(("steps", "windows", "whole"), [(32, (16,), 44), (28, (16,), 28), (45, (3, 8), 52)])
def test_a_line_ends_with_a_window_of_every_policy(steps, windows, whole):
    """28 steps an epoch: windows of 16 end at 16, 28, 44, 56 and so on."""
    trace = replace(HEAVY, lengths=HEAVY.lengths[: 28 * 32])
    asked = request(["static", "partition", "window"], [trace], steps=steps, windows=windows)
    for line in solve(asked):
        assert line.whole_steps == line.result["steps"] == whole
    alone = request(["static", "partition"], [trace], steps=steps, windows=windows)
    assert {result["steps"] for result in lines(alone).values()} == {steps}


def test_a_trace_of_a_model_is_padded_no_further_than_the_model_takes():
    trace = Trace("short", np.array([5, 6, 7, 8]), "here", positions=9)
    for longest, cost in ((8, 16), (9, 18)):
        given = replace(trace, lengths=np.array([5, 6, 7, longest]))
        asked = request(["static"], [given], (2,), 4, 1, order="file", cost=CostModel(pad_to_multiple_of=8))
        assert lines(asked)["static"]["mean_max_cost"] == cost


HAND = Trace("hand", np.array([5, 1, 1, 1, 9, 9, 9, 9]), "here", second=np.zeros(8))


def hand(*policies: str, **changes: Any) -> SolveRequest:
    """All policies where none is named."""
    given = {"traces": (HAND,), "world_sizes": (2,), "batch": 4, "steps": 1, "windows": (2,), "order": "file"}
    return request(policies or None, **given | changes)


def test_every_window_is_tried_before_the_first_line_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses_four(name: str, problem: Problem) -> Policy:
        if problem.window == 4:
            raise UsageError("four")
        return make_policy(name, problem)

    monkeypatch.setattr(solving, "make_policy", refuses_four)
    with pytest.raises(UsageError, match="four"):
        solve(hand("window", windows=(2, 4)))


def test_under_rows_only_those_are_planned_named_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines(hand("partition", "static", layout="flattened"))
    assert set(found) == {"flattened", "static flattened"}
    assert {result["layout"] for result in found.values()} == {"flattened"}
    for name in POLICIES:  # all are named and none is planned
        monkeypatch.setitem(POLICIES.entries, name, replace(POLICIES[name], slow_above=0))
    assert tuple(reasons(hand(layout="flattened"))) == plan_names("flattened")


def test_static_splits_for_the_capacities_where_micro_batches_are_auto() -> None:
    result = lines(hand("static", capacity=Capacity.uniform(1), micro_batches="auto"))["static"]
    assert (result["mean_max_cost"], result["capacity_violations"]) == (6, 0)


@pytest.mark.parametrize("name", ["static", "lpt", "prefix"])
def test_without_a_number_of_steps_every_line_ends_by_the_clock_and_its_gaps_always(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "LINE_LIMIT_S", 0.0)
    assert lines(hand(name, steps=None))[name]["steps"] == 1
    asked = lines(hand(name, steps=3))[name]
    assert asked["steps"] == 3
    assert (asked["greedy_gap"] or {}).get("steps") == (1 if name == "prefix" else None)


@pytest.mark.parametrize("static_steps", [1, 2])
def test_lines_cut_short_are_compared_over_the_steps_that_both_have(
    monkeypatch: pytest.MonkeyPatch, static_steps: int
) -> None:
    """Of 10 and 18 against 5 and 18 only the first step counts."""
    run = solving.run_policy

    def cut(policy: Policy, *given: Any) -> Series:
        steps, series = static_steps if policy.name == "static" else 3 - static_steps, run(policy, *given)
        first, tokens = series.max_cost[:steps], series.real_tokens[:steps]
        return replace(series, max_cost=first, real_tokens=tokens, plan_ms=np.arange(101.0))

    monkeypatch.setattr(solving, "run_policy", cut)
    monkeypatch.setattr(solving, "length_spread", lambda series, problem: None)
    monkeypatch.setattr(solving, "adjacent_correlation", lambda series: None)
    found = lines(hand("partition", steps=2))["partition"]
    assert found["speedup_vs_static"] == pytest.approx(2)
    assert (found["plan_ms"], found["second_weight"]) == ({"p50": 50, "p95": 95}, 1)
