"""The pace of steps and ranks, and how well costs and predictions stood for measured time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from probes import make_probe
from unit.analysis.conftest import Make, findings, launches

from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.pace import _effective, predicted_speedup, proxy_error, slowest_ranks
from dynbench.analysis.summary import summarise


def blamed(arms: Mapping[str, Sequence[MergedRun]]) -> list[Finding]:
    return [finding for finding in findings(arms) if finding.id == "slowest_rank"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "ranks", "servers"),
    [("static", 2, 0), ("static", 4, 4), ("prefix", 2, 0), ("prefix", 4, 0), ("partition", 4, 0)],
)
def test_a_rank_that_is_always_slow_is_caught_and_named(make_run: Make, policy: str, ranks: int, servers: int) -> None:
    fields = {"world_size": ranks, "servers": servers, "slow": {1: 1.3}}
    (found,) = blamed(launches(make_run, 3, arm={"policy": policy, **fields}))

    assert (found.severity, found.values["rank"]) == ("warn", 1 + servers)
    assert found.values["pace"] == pytest.approx(1.3, rel=0.03)
    assert found.values["share"] > found.values["equal"] == 1 / ranks


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "partition"])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_equal_ranks_are_not_blamed(make_run: Make, policy: str, noise: float) -> None:
    """None of 60 launches, 240 ranks: at most 1.2 % of ranks at a confidence of 95 %, and far fewer by the limit."""
    for seed in range(15):
        assert blamed({"arm": [merge_run(make_run(policy, world_size=4, noise=noise, seed=seed))]}) == []


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("attention_ms", [0.0, 0.002])
def test_a_rank_that_always_gets_the_longest_samples_is_not_blamed(
    make_run: Make, ranks: int, attention_ms: float
) -> None:
    fields = {"policy": "sorted_equal", "world_size": ranks, "attention_ms": attention_ms}
    runs = launches(make_run, 3, arm=fields)

    assert slowest_ranks(runs["arm"][0])["shares"][0] > 0.9
    assert blamed(runs) == []


@pytest.mark.slow
def test_where_no_rank_has_work_like_the_others_none_is_blamed_until_an_arm_tells(make_run: Make) -> None:
    """Of two ranks under `partition`, one always has few long samples, the other many short ones."""
    slow = {"slow": {1: 1.3}}
    runs = launches(make_run, 3, partition=slow, static=slow)

    assert blamed({"partition": runs["partition"]}) == []
    assert [item.values["arm"] for item in blamed(runs)] == ["static"]


def test_few_steps_and_missing_ranks_are_not_judged(make_run: Make) -> None:
    for fields in ({"steps": 10}, {"world_size": 4, "ranks_written": 3}):
        assert blamed({"arm": [merge_run(make_run("partition", slow={1: 2.0}, **fields))]}) == []


def test_shares_count_ties_in_part_and_know_no_rank_without_rows(make_run: Make) -> None:
    busy = {0: [5.0, 5.0, 5.0, 5.0], 1: [5.0, 9.0, 1.0, 1.0], 2: [0.0] * 4}
    fields = {"world_size": 3, "ranks_written": 2, "steps": 4, "warmup_steps": 0}
    run = make_run("partition", **fields, row=lambda row: {"compute_ms": busy[row.rank][row.step]})

    assert slowest_ranks(merge_run(run)) == {"distinct": 2, "shares": [0.625, 0.375, None], "equal": 0.5}


def test_steps_that_follow_from_each_other_are_worth_fewer() -> None:
    assert _effective(np.array([])) == 0.0
    alone = np.random.default_rng(0).normal(size=400)
    assert _effective(np.repeat(alone[:100], 4)) < 0.5 * _effective(alone)


PRICED = {
    "tokens": ((), lambda row: row.padded_tokens),
    "tokens_sq": ((), lambda row: row.padded_tokens**2),
    "attention": (("schedule.attention_a=0.01",), lambda row: row.padded_tokens + 0.01 * row.padded_tokens2),
    "measured": (
        ("schedule.cost_coefficients=[2.0,0.05,0.001]", "schedule.further_ms=1.5"),
        lambda row: 2.0 + 1.5 * (row.micro_batches - 1) + 0.05 * row.padded_tokens + 0.001 * row.padded_tokens2,
    ),
}
"""Settings of the planner's cost, and what a rank's share costs by them."""


def priced_run(make_run, cost_type, layout="padded", parts=1, overrides=()):
    """A run whose compute takes what its rows cost.

    A probe times data and optimizer too, so `measured` holds them; the others stand for compute alone. Warm-up is slow.
    """
    given, cost = PRICED[cost_type]

    def priced(row):
        row = replace(row, micro_batches=parts, layout=layout)
        if layout == "packed":
            row = replace(row, padded_tokens=row.real_tokens, padded_tokens2=row.real_tokens2)
        apart = row.data_ms + row.optimizer_ms if cost_type == "measured" else 0
        return asdict(replace(row, compute_ms=(cost(row) - apart) * (50 if row.warmup else 1)))

    settings = (f"schedule.cost_type={cost_type}", *given, *overrides)
    return make_run(steps=10, warmup_steps=2, overrides=settings, row=priced)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("cost_type", PRICED)
def test_a_row_costs_what_the_planner_says(make_run, cost_type, layout, parts):
    found = proxy_error(merge_run(priced_run(make_run, cost_type, layout, parts)))["cost"]

    if cost_type == "tokens_sq" and parts > 1:
        assert found["mape"] is None, "squares of micro-batches' tokens are not recorded"
    else:
        assert found["mape"] == pytest.approx(0.0, abs=1e-5)
        assert found["correlation"] == pytest.approx(1.0)


def test_the_coefficients_of_a_probe_are_used(make_run, store):
    fitted = {"alpha_ms": 2.0, "beta_ms_per_token": 0.05, "gamma_ms_per_token2": 0.001, "heldout": {}}
    overrides = (f"probe.run={make_probe(store, cost_model=fitted).id}",)
    run = priced_run(make_run, "measured", overrides=overrides)
    config = run.config_file.read_text()
    run.config_file.write_text(config.replace("cost_coefficients: [2.0, 0.05, 0.001]", "cost_coefficients: null"))
    assert proxy_error(merge_run(run))["cost"]["mape"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("window", "record", "predicted"),
    [
        (8, {}, 1.6),
        (4, {}, None),
        (4, {"predicted_window": 4}, 1.6),
        (8, None, None),
        (8, {"world_size": 4}, None),
        (8, {"global_batch": 64}, None),
    ],
)
def test_a_probe_of_another_window_or_of_other_runs_predicts_nothing(store, make_run, window, record, predicted):
    probe = store.create("probe", "gone")
    if record is not None:
        known = {"global_batch": 16, "predicted_speedup": {"window": 1.6}}
        probe = make_probe(store, name=None, **{**known, **record})
    used = f"probe.run={probe.id}"
    planned = make_run("partition", overrides=(used, "schedule.policy=window", f"schedule.window={window}"))
    assert predicted_speedup(merge_run(make_run(overrides=(used,))), merge_run(planned)) == predicted


def test_a_wrong_cost_has_some_error(make_run):
    """And where ranks have equal shares, errors without a correlation."""
    run = priced_run(make_run, "tokens")
    config = run.config_file.read_text()
    assert "cost_type: tokens\n" in config
    run.config_file.write_text(config.replace("cost_type: tokens\n", "cost_type: tokens_sq\n"))
    found = proxy_error(merge_run(run))
    assert found["cost"]["mape"] > 0.005 and found["padded_tokens"]["mape"] < 1e-5
    equal = summarise(make_run(row=lambda row: {"compute_ms": 5.0}))["proxy"]["padded_tokens"]
    assert equal["correlation"] is None and equal["mape"] > 0
