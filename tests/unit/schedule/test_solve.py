import json
import subprocess
import sys
from dataclasses import replace
from itertools import count, islice
from typing import get_args

import numpy as np
import pytest

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names, plan_of
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.measure import run_policy
from dynbench.schedule.plan import Exactness
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.solve import Line, Skipped, SolveRequest, solve
from dynbench.schedule.traces import Trace, built_in_trace

RNG = np.random.default_rng(5)
HEAVY = Trace("heavy", np.clip(RNG.lognormal(4, 1, 2_000).astype(np.int64), 4, 512), "made up")


def request(policies=None, traces=(HEAVY,), world_sizes=(4,), batch=32, steps=20, windows=(8,), **changes):
    def make_problem(lengths, world_size, window):
        return Problem(lengths, world_size, batch, window=window, **changes)

    return SolveRequest(traces, world_sizes, make_problem, policies, windows, steps)


def lines(solve_request) -> dict[str, dict]:
    return {o.result["policy"]: o.result for o in solve(solve_request) if isinstance(o, Line)}


def test_every_policy_has_a_line_with_every_key():
    found = lines(request())
    padded = {name for name in plan_names("padded") if POLICIES[name].missing is None}
    assert set(found) == {*padded, *plan_names("packed")}
    assert {result["layout"] for name, result in found.items() if name in padded} == {"padded"}
    assert len({frozenset(result) for result in found.values()}) == 1, "the keys of the line by hand below"
    assert {result["exact"] for result in found.values()} <= set(get_args(Exactness)) == {"both", "maximum", "none"}
    json.dumps(list(found.values()), allow_nan=False)


def test_the_reported_cost_is_that_of_the_plans():
    problem = request().make_problem(HEAVY.lengths, 4, 8)
    for name, result in lines(request()).items():
        policy, layout = plan_of(name)
        made = make_policy(policy, replace(problem, layout=layout))
        judged = replace(made.problem, lengths=made.lengths)
        costs = np.array([step_costs(p, judged) for p in islice(made.plans(), result["steps"])])
        assert result["mean_max_cost"] == costs.max(axis=1).mean(), name
        assert result["p95_max_cost"] == np.percentile(costs.max(axis=1), 95), name
        assert result["mean_cost_variance"] == pytest.approx(costs.var(axis=1).mean()), name
        assert result["mean_bound"] <= result["mean_max_cost"], name
        assert result["gap_to_bound"] == pytest.approx(result["mean_max_cost"] / result["mean_bound"] - 1)


def test_speedup_is_the_ratio_of_costs_where_the_samples_are_the_same():
    found = lines(request())
    static = found["static"]["mean_max_cost"]
    assert found["static"]["speedup_vs_static"] == 1
    for name in ("partition", "lpt", "sorted_equal", "hf_batch_rebalance", "packed"):
        assert found[name]["speedup_vs_static"] == pytest.approx(static / found[name]["mean_max_cost"])
    assert found["partition"]["speedup_vs_static"] > 1.5


def test_speedup_is_per_token_where_they_are_not():
    problem = request().make_problem(HEAVY.lengths, 4, 1)
    plans = list(islice(make_policy("token_budget", problem).plans(), 20))
    cost = sum(step_costs(p, problem).max() for p in plans) / sum(HEAVY.lengths[p.sample_ids()].sum() for p in plans)
    static = list(islice(make_policy("static", problem).plans(), 20))
    base = sum(step_costs(p, problem).max() for p in static) / sum(HEAVY.lengths[p.sample_ids()].sum() for p in static)
    assert lines(request(["token_budget"]))["token_budget"]["speedup_vs_static"] == pytest.approx(base / cost)


def test_the_greedy_gap_is_zero_in_the_maximum_and_naive_counts_have_one():
    for cost in (CostModel(), CostModel("attention"), CostModel("measured", alpha=50.0, gamma=0.01)):
        gap = lines(request(["prefix"], cost=cost))["prefix"]["greedy_gap"]
        assert gap["max_cost"]["max"] == 0
        assert gap["variance"]["mean"] >= 0
        assert gap["naive_max_cost"]["equal_counts"]["mean"] > 0.05
        assert gap["naive_max_cost"]["longest_first"]["mean"] > 0.02


def test_each_window_has_its_line():
    found = [o.result for o in solve(request(["partition", "window"], windows=(2, 4), steps=16)) if isinstance(o, Line)]
    assert [(r["policy"], r["window"]) for r in found] == [("partition", 1), ("window", 2), ("window", 4)]
    costs = [r["mean_max_cost"] for r in found]
    assert costs[0] >= costs[1]


def test_violations_are_counted_for_those_that_know_no_capacity():
    found = lines(request(capacity=Capacity.table([[(64, 24), (512, 10)]])))
    for name, result in found.items():
        knows = name in ("partition", "window", "prefix", "token_budget", "packed")
        assert result["capacity_violations"] == 0 or not knows, name
    assert lines(request(["static"], capacity=Capacity.uniform(7)))["static"]["capacity_violations"] == 4 * 20


def test_packed_lines_know_capacities_in_tokens_only():
    """Those in samples are left out, and under packed rows nothing else is planned; static stays the baseline."""
    found = lines(request(["static packed", "packed"], capacity=Capacity.uniform(12)))
    assert {result["capacity_violations"] for result in found.values()} == {0}
    capacity = PackedCapacity.table([[(128, 1500), (512, 1200)]])
    found = lines(request(capacity=capacity, layout="packed"))
    assert set(found) == set(plan_names("packed"))
    assert found["packed"]["capacity_violations"] == 0 < found["static packed"]["capacity_violations"]
    assert found["packed"]["speedup_vs_static"] == lines(request(["packed"]))["packed"]["speedup_vs_static"]
    assert set(lines(request(["static", "partition"], layout="packed"))) == {"static packed", "packed"}
    with pytest.raises(NothingFits, match=r"packed tokens is longer than any rank.s capacity allows .at most 300"):
        solve(request(capacity=PackedCapacity.uniform(300), layout="packed"))
    with pytest.raises(UsageError, match=r"makes no sense under policy .window."):
        solve(request(["window"], layout="packed"))


def test_a_sample_beyond_any_capacity_is_refused_before_anything_runs():
    with pytest.raises(NothingFits, match="longer than any rank's capacity") as caught:
        solve(request(capacity=Capacity.table([[(100, 8)]])))
    longest = int(HEAVY.lengths.argmax())
    assert f"sample {longest} of {HEAVY.lengths[longest]} padded tokens" in caught.value.message
    assert "at most 100 tokens" in caught.value.message
    assert caught.value.exit_code == 4


def test_fewer_samples_than_ranks_are_refused():
    with pytest.raises(UsageError, match="less than the 64 ranks"):
        solve(request(world_sizes=(64,)))


def test_a_trace_too_short_for_one_size_does_not_lose_the_others():
    short = Trace("short", HEAVY.lengths[:20], "here")
    found = list(solve(request(["static"], [HEAVY, short])))
    assert [type(o) for o in found] == [Line, Skipped]
    assert "more than the 20 samples" in found[1].reason
    with pytest.raises(UsageError, match="more than the 20 samples"):
        solve(request(["static"], [short]))


def test_all_skips_what_cannot_run_and_says_why():
    found = {o.policy: o.reason for o in solve(request(batch=34)) if isinstance(o, Skipped)}
    assert {"static", "group_by_length"} <= set(found)
    assert "not a multiple of the 4 ranks" in found["static"]
    left = lines(request(batch=34))
    assert left["partition"]["speedup_vs_static"] is None
    with pytest.raises(UsageError, match="not a multiple"):
        list(solve(request(["static"], batch=34)))


def test_all_reports_the_transformers_samplers_as_skipped_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    skipped = {o.policy: o.reason for o in solve(request()) if isinstance(o, Skipped)}
    assert (
        skipped["group_by_length"] == skipped["hf_batch_rebalance"] == "needs the package torch, which is not installed"
    )


@pytest.mark.slow
def test_solving_imports_neither_torch_nor_transformers():
    program = (
        "import sys, numpy as np\n"
        "from dynbench.schedule.solve import *\n"
        "make = lambda lengths, g, w: Problem(lengths, g, 16, window=w)\n"
        "names = ['static', 'partition', 'window', 'prefix', 'lpt', 'token_budget', 'packed']\n"
        "list(solve(SolveRequest([Trace('t', np.arange(1, 99), '')], [2], make, names, steps=4)))\n"
        "print(sorted({'torch', 'transformers', 'polars', 'datasets', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_slow_peers_are_left_out_of_all_at_large_sizes(monkeypatch):
    assert POLICIES["karmarkar_karp"].slow_above < 1024 * 8192
    monkeypatch.setitem(POLICIES.entries, "lpt", replace(POLICIES["lpt"], slow_above=4 * 32 - 1))
    skipped = {o.policy: o.reason for o in solve(request()) if isinstance(o, Skipped)}
    assert skipped["lpt"] == "one plan takes seconds at G*B = 128; ask for it by name"
    assert lines(request(["lpt"]))["lpt"]["steps"] == 20


def test_a_slow_line_ends_after_a_whole_window():
    problem = Problem(HEAVY.lengths, 4, 32, window=4)
    ticks = count()
    series = run_policy(make_policy("window", problem), problem, 40, limit_s=10, clock=lambda: float(next(ticks)))
    assert len(series) == 8
    assert run_policy(make_policy("window", problem), problem, 12).plan_ms.shape == (12,)


def test_the_planning_time_of_a_window_is_spread_over_its_steps():
    problem = Problem(HEAVY.lengths[:224], 4, 32, window=4)  # 7 steps an epoch: windows of 4 and 3
    times = iter([0.0, *(t for step in range(7) for t in (100.0 * step, 100.0 * step + (7 if step in (0, 4) else 0)))])
    series = run_policy(make_policy("window", problem), problem, 7, clock=lambda: next(times))
    assert series.plan_ms.tolist() == pytest.approx([1750.0] * 4 + [7000 / 3] * 3)


@pytest.mark.parametrize(
    ("steps", "windows", "whole"),
    [(32, (16,), 44), (28, (16,), 28), (16, (16,), 16), (45, (3, 8), 52), (None, (8,), 100)],
)
def test_a_line_ends_with_a_window_of_every_policy(steps, windows, whole):
    """28 steps an epoch: windows of 16 end at 16, 28, 44, 56 and so on."""
    trace = replace(HEAVY, lengths=HEAVY.lengths[: 28 * 32])
    asked = request(["static", "partition", "window"], [trace], steps=steps, windows=windows)
    found = [outcome for outcome in solve(asked) if isinstance(outcome, Line)]
    assert {line.whole_steps for line in found} == {line.result["steps"] for line in found} == {whole}
    alone = request(["static", "partition"], [trace], steps=steps or 100, windows=windows)
    assert {result["steps"] for result in lines(alone).values()} == {steps or 100}


SST2_TARGETS = {
    (4, 32, "partition", 1): 2.15,
    (4, 32, "window", 8): 2.55,
    (2, 64, "window", 8): 2.45,
    (8, 64, "window", 4): 2.90,
    (64, 1024, "partition", 1): 4.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("where", SST2_TARGETS, ids=str)
def test_what_comes_back_on_sst2(where):
    world_size, batch, policy, window = where
    trace = built_in_trace("sst2")
    steps = len(trace.lengths) // batch // window * window
    names = [policy, "hf_batch_rebalance"]
    found = lines(request(names, [trace], (world_size,), batch, min(steps, 1_000), (window,)))
    assert found[policy]["speedup_vs_static"] >= SST2_TARGETS[where]
    assert found[policy]["speedup_vs_static"] > found["hf_batch_rebalance"]["speedup_vs_static"]
    assert found[policy]["step_length_spread"] <= 1


def test_a_line_says_all_of_two_steps_by_hand():
    """Samples 5, 1, 1, 1 cost 10 and 2, then four 9 cost 18 each."""
    trace = Trace("hand", np.array([5, 1, 1, 1, 9, 9, 9, 9]), "here", train_max_length=8, cut_samples=3)
    (line,) = solve(replace(request(["static"], [trace], (2,), batch=4, steps=2, order="file", seed=7), max_length=9))
    found = dict(line.result)
    assert set(found.pop("plan_ms")) == {"p50", "p95"}
    assert found.pop("step_length_spread") > 0
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


def test_a_trace_of_a_model_is_padded_no_further_than_the_model_takes():
    trace = Trace("short", np.array([5, 6, 7, 8]), "here", positions=9)
    cost = CostModel(pad_to_multiple_of=8)
    (line,) = solve(request(["static"], [trace], (2,), batch=4, steps=1, order="file", cost=cost))
    assert line.result["mean_max_cost"] == 16
    longer = replace(trace, lengths=np.array([5, 6, 7, 9]))
    (line,) = solve(request(["static"], [longer], (2,), batch=4, steps=1, order="file", cost=cost))
    assert line.result["mean_max_cost"] == 18, "not 2 times 16"
