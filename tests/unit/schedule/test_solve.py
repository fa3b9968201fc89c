"""The lines of `solve`: what is in them, which there are, and where they end."""

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
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import Exactness, IntArray
from dynbench.schedule.policy import Problem, make_policy
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
LONGER = f"sample {LONGEST} of {HEAVY.lengths[LONGEST]} {{}} tokens is longer than any rank's capacity allows"
SHORT = Trace("short", HEAVY.lengths[:20], "here")


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        (request(capacity=Capacity.table([[(100, 8)]])), NothingFits, LONGER.format("padded") + ".*at most 100 tokens"),
        (
            request(capacity=PackedCapacity.uniform(300), layout="packed"),
            NothingFits,
            LONGER.format("packed") + ".*at most 300 tokens",
        ),
        (request(["window"], layout="packed"), UsageError, "makes no sense under policy 'window'"),
        (request(world_sizes=(64,)), UsageError, "less than the 64 ranks"),
        (request(["static"], batch=34), UsageError, "not a multiple"),
        (request(["static"], [SHORT]), UsageError, "more than the 20 samples"),
    ],
    ids=["a long sample", "a long row", "a window of rows", "too many ranks", "unequal shares", "a short trace"],
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
