"""The lines of `solve`: what is in them, which there are, where they end, and what each is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from plan_rules import plans_of, total_cost

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names, plan_of
from dynbench.schedule import solve as solving
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.measure import Series, random_mean_lengths
from dynbench.schedule.plan import Exactness, IntArray
from dynbench.schedule.policy import Policy, Problem, make_policy
from dynbench.schedule.solve import Line, Skipped, SolveRequest, solve
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
    def make_problem(lengths: IntArray, workers: int, window: int) -> Problem:
        return Problem(lengths, workers, batch, window=window, **changes)

    return SolveRequest(traces, world_sizes, make_problem, policies, windows, steps)


def lines(asked: SolveRequest) -> dict[str, dict[str, Any]]:
    return {o.result["policy"]: o.result for o in solve(asked) if isinstance(o, Line)}


def reasons(asked: SolveRequest) -> dict[str | None, str]:
    """Of what was skipped."""
    return {o.policy: o.reason for o in solve(asked) if isinstance(o, Skipped)}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """All lines of the heavy trace."""
    return lines(request())


def test_every_policy_has_a_line_with_every_key(found):
    padded = {name for name in plan_names("padded") if POLICIES[name].missing is None}
    assert set(found) == {*padded, *plan_names("packed")}
    assert {result["layout"] for name, result in found.items() if name in padded} == {"padded"}
    assert len({frozenset(result) for result in found.values()}) == 1, "the keys of the line by hand below"
    assert {result["exact"] for result in found.values()} <= set(get_args(Exactness)) == {"both", "maximum", "none"}
    json.dumps(list(found.values()), allow_nan=False)


def test_the_reported_cost_is_that_of_the_plans(found):
    problem = request().make_problem(HEAVY.lengths, 4, 8)
    for name, result in found.items():
        policy, layout = plan_of(name)
        made = make_policy(policy, replace(problem, layout=layout))
        judged = replace(made.problem, lengths=made.lengths)
        costs = np.array([step_costs(p, judged) for p in plans_of(policy, made.problem, result["steps"])])
        assert result["mean_max_cost"] == costs.max(axis=1).mean(), name
        assert result["p95_max_cost"] == np.percentile(costs.max(axis=1), 95), name
        assert result["mean_cost_variance"] == pytest.approx(costs.var(axis=1).mean()), name
        assert result["mean_bound"] <= result["mean_max_cost"], name
        assert result["gap_to_bound"] == pytest.approx(result["mean_max_cost"] / result["mean_bound"] - 1)


def test_speedup_is_the_ratio_of_costs_where_the_samples_are_the_same_and_of_costs_per_token_where_they_are_not(found):
    static = found["static"]["mean_max_cost"]
    for name in ("static", "partition", "lpt", "sorted_equal", "hf_batch_rebalance", "packed"):
        assert found[name]["speedup_vs_static"] == pytest.approx(static / found[name]["mean_max_cost"])
    assert found["partition"]["speedup_vs_static"] > 1.5
    problem = request().make_problem(HEAVY.lengths, 4, 1)
    static_plans, plans = (plans_of(name, problem, 20) for name in ("static", "token_budget"))
    base, cost = (
        total_cost(made, problem) / sum(HEAVY.lengths[plan.sample_ids()].sum() for plan in made)
        for made in (static_plans, plans)
    )
    alone = lines(request(["token_budget"]))["token_budget"]
    assert alone["speedup_vs_static"] == pytest.approx(base / cost)


@pytest.mark.parametrize(
    "cost",
    [CostModel(), CostModel("attention"), CostModel("measured", alpha=50.0, gamma=0.01)],
    ids=lambda cost: cost.cost_type,
)
def test_the_greedy_gap_is_zero_in_the_maximum_and_naive_counts_have_one(cost):
    gap = lines(request(["prefix"], cost=cost))["prefix"]["greedy_gap"]
    assert gap["max_cost"]["max"] == 0
    assert gap["variance"]["mean"] >= 0
    assert gap["naive_max_cost"]["equal_counts"]["mean"] > 0.05
    assert gap["naive_max_cost"]["longest_first"]["mean"] > 0.02


def test_each_window_has_its_line():
    of_windows = [o.result for o in solve(request(["partition", "window"], windows=(2, 4), steps=16))]
    assert [(r["policy"], r["window"]) for r in of_windows] == [("partition", 1), ("window", 2), ("window", 4)]
    assert of_windows[0]["mean_max_cost"] >= of_windows[1]["mean_max_cost"]


def test_violations_are_counted_for_those_that_know_no_capacity():
    for name, result in lines(request(capacity=Capacity.table([[(64, 24), (512, 10)]]))).items():
        knows = name in ("partition", "window", "prefix", "token_budget", "packed")
        assert result["capacity_violations"] == 0 or not knows, name
    assert lines(request(["static"], capacity=Capacity.uniform(7)))["static"]["capacity_violations"] == 4 * 20


def test_packed_lines_know_capacities_in_tokens_only():
    """Those in samples are left out, and under packed rows nothing else is planned; static stays the baseline."""
    of_samples = lines(request(["static packed", "packed"], capacity=Capacity.uniform(12)))
    assert {result["capacity_violations"] for result in of_samples.values()} == {0}
    capacity = PackedCapacity.table([[(128, 1500), (512, 1200)]])
    of_tokens = lines(request(capacity=capacity, layout="packed"))
    assert set(of_tokens) == set(plan_names("packed"))
    assert of_tokens["packed"]["capacity_violations"] == 0 < of_tokens["static packed"]["capacity_violations"]
    assert of_tokens["packed"]["speedup_vs_static"] == lines(request(["packed"]))["packed"]["speedup_vs_static"]
    assert set(lines(request(["static", "partition"], layout="packed"))) == {"static packed", "packed"}


LONGEST = int(HEAVY.lengths.argmax())
LONGER = f"sample {LONGEST} of {HEAVY.lengths[LONGEST]} padded tokens is longer than .*at most 100 tokens"
SHORT = Trace("short", HEAVY.lengths[:20], "here")


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        (request(capacity=Capacity.table([[(100, 8)]])), NothingFits, LONGER),
        (request(["window"], layout="packed"), UsageError, "makes no sense under policy 'window'"),
        (request(world_sizes=(64,)), UsageError, "less than the 64 ranks"),
        (request(["static"], batch=34), UsageError, "not a multiple"),
    ],
    ids=["a long sample", "a window of rows", "too many ranks", "unequal shares"],
)
def test_what_cannot_be_solved_is_refused_before_anything_runs(asked, kind, message):
    with pytest.raises(kind, match=message):
        solve(asked)


def test_what_cannot_run_of_all_does_not_lose_the_others():
    outcomes = list(solve(request(["static"], [HEAVY, SHORT])))
    assert [type(outcome) for outcome in outcomes] == [Line, Skipped]
    assert "more than the 20 samples" in outcomes[1].reason
    skipped = reasons(request(batch=34))
    assert {"static", "group_by_length"} <= set(skipped)
    assert "not a multiple of the 4 ranks" in skipped["static"]
    assert lines(request(batch=34))["partition"]["speedup_vs_static"] is None


def test_all_reports_the_transformers_samplers_as_skipped_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    skipped = reasons(request())
    for name in ("group_by_length", "hf_batch_rebalance"):
        assert skipped[name] == "needs the package torch, which is not installed"


def test_slow_peers_are_left_out_of_all_at_large_sizes(monkeypatch):
    assert POLICIES["karmarkar_karp"].slow_above < 1024 * 8192
    monkeypatch.setitem(POLICIES.entries, "lpt", replace(POLICIES["lpt"], slow_above=4 * 32 - 1))
    assert reasons(request())["lpt"] == "one plan takes seconds at G*B = 128; ask for it by name"
    assert lines(request(["lpt"]))["lpt"]["steps"] == 20


@pytest.mark.parametrize(
    ("steps", "windows", "whole"),
    [(32, (16,), 44), (28, (16,), 28), (16, (16,), 16), (45, (3, 8), 52), (None, (8,), 100)],
)
def test_a_line_ends_with_a_window_of_every_policy(steps, windows, whole):
    """28 steps an epoch: windows of 16 end at 16, 28, 44, 56 and so on."""
    trace = replace(HEAVY, lengths=HEAVY.lengths[: 28 * 32])
    asked = request(["static", "partition", "window"], [trace], steps=steps, windows=windows)
    for line in solve(asked):
        assert line.whole_steps == line.result["steps"] == whole
    alone = request(["static", "partition"], [trace], steps=steps or 100, windows=windows)
    assert {result["steps"] for result in lines(alone).values()} == {steps or 100}


def test_a_trace_of_a_model_is_padded_no_further_than_the_model_takes():
    trace = Trace("short", np.array([5, 6, 7, 8]), "here", positions=9)
    for longest, cost in ((8, 16), (9, 18)):
        given = replace(trace, lengths=np.array([5, 6, 7, longest]))
        asked = request(["static"], [given], (2,), 4, 1, order="file", cost=CostModel(pad_to_multiple_of=8))
        assert lines(asked)["static"]["mean_max_cost"] == cost


HAND = Trace("hand", np.array([5, 1, 1, 1, 9, 9, 9, 9]), "here", train_max_length=8, cut_samples=3)


def hand(*policies: str, **changes: Any) -> SolveRequest:
    """All policies where none is named."""
    given = {"traces": (HAND,), "world_sizes": (2,), "batch": 4, "steps": 1, "windows": (2,), "order": "file"}
    return request(policies or None, **given | changes)


def test_a_line_says_all_of_two_steps_by_hand() -> None:
    asked = replace(hand("static", steps=2, seed=7), max_length=9)
    (line,) = solve(asked)
    found, random = dict(line.result), random_mean_lengths(asked.make_problem(HAND.lengths, 2, 1), 2)
    assert set(found.pop("plan_ms")) == {"p50", "p95"}
    assert found.pop("step_length_spread") == pytest.approx(np.std([2, 9]) / random.std())
    assert found == {
        "trace": "hand",
        "samples": 8,
        "world_size": 2,
        "global_batch": 4,
        "max_length": 9,
        "cut_samples": 3,
        "train_max_length": 8,
        "longer_than_train": 4,
        "steps": 2,
        "seed": 7,
        "cost_type": "tokens",
        "fitted_on": None,
        "second_weight": None,
        "window": 1,
        "micro_batches": 1,
        "objective": "sum",
        "policy": "static",
        "layout": "padded",
        "solver": None,
        "exact": "none",
        "mean_max_cost": 14,
        "cost_per_token": 28 / 44,
        "p95_max_cost": pytest.approx(17.6),
        "mean_cost_variance": 8,
        "padding_ratio": 48 / 44,
        "speedup_vs_static": 1,
        "mean_bound": 11.5,
        "gap_to_bound": 14 / 11.5 - 1,
        "capacity_violations": 0,
        "epoch_samples": {"lost": 0, "repeated": 0, "cut": 0},
        "adjacent_length_correlation": None,
        "local_batch": {"min": 2, "p50": 2.0, "max": 2},
        "greedy_gap": None,
    }
    assert (line.rank_costs.tolist(), line.rank_counts.tolist(), line.gap) == ([10, 2], [2, 2], None)


def test_every_window_is_tried_before_the_first_line_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses_four(name: str, problem: Problem) -> Policy:
        if problem.window == 4:
            raise UsageError("four")
        return make_policy(name, problem)

    monkeypatch.setattr(solving, "make_policy", refuses_four)
    with pytest.raises(UsageError, match="four"):
        solve(hand("window", windows=(2, 4)))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("padded", plan_names("padded", "packed")),
        ("packed", plan_names("packed")),
        ("flattened", ("static flattened", "flattened", "token_budget flattened")),
    ],
)
def test_without_names_padded_batches_are_planned_packed_too_and_rows_as_rows_only(
    monkeypatch: pytest.MonkeyPatch, layout: str, expected: tuple[str, ...]
) -> None:
    for name in POLICIES:  # all are named and none is planned
        monkeypatch.setitem(POLICIES.entries, name, replace(POLICIES[name], slow_above=0))
    assert tuple(reasons(hand(layout=layout))) == expected


def test_a_name_means_its_layout_and_under_rows_those_rows() -> None:
    assert lines(hand("packed"))["packed"]["layout"] == "packed"
    assert lines(hand("partition"))["partition"]["layout"] == "padded"
    found = lines(hand("partition", "static", layout="flattened"))
    assert {name: result["layout"] for name, result in found.items()} == dict.fromkeys(
        ("flattened", "static flattened"), "flattened"
    )


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
        return replace(series, max_cost=series.max_cost[:steps], real_tokens=series.real_tokens[:steps])

    monkeypatch.setattr(solving, "run_policy", cut)
    monkeypatch.setattr(solving, "length_spread", lambda series, problem: None)
    monkeypatch.setattr(solving, "adjacent_correlation", lambda series: None)
    assert lines(hand("partition", steps=2))["partition"]["speedup_vs_static"] == pytest.approx(2)
