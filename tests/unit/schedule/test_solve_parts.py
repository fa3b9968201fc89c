"""Which lines `solve` has, which it leaves out and why, and what each is told: on eight samples, by hand.

In file order, four a step on two ranks: static costs 10 (samples 5 and 1) and then 18 (9 and 9), for 8 and 36 tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit.schedule.test_solve import lines, reasons, request

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names
from dynbench.schedule import solve as solving
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.measure import Series
from dynbench.schedule.policy import Policy, Problem, make_policy
from dynbench.schedule.solve import SolveRequest, solve
from dynbench.schedule.traces import Trace

HAND = Trace("hand", np.array([5, 1, 1, 1, 9, 9, 9, 9]), "here", train_max_length=8, cut_samples=3)


def hand(*policies: str, **changes: Any) -> SolveRequest:
    """All policies where none is named."""
    given = {"traces": (HAND,), "world_sizes": (2,), "batch": 4, "steps": 1, "windows": (2,), "order": "file"}
    return request(policies or None, **given | changes)


def test_a_line_says_all_of_two_steps_by_hand() -> None:
    (line,) = solve(replace(hand("static", steps=2, seed=7), max_length=9))
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
    assert {name: result["layout"] for name, result in found.items()} == {
        "flattened": "flattened",
        "static flattened": "flattened",
    }


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
