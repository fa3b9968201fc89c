from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from compared import compare_arms

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.arms import named_arms
from dynbench.analysis.merge import merge_run
from dynbench.analysis.waste import recovery, relative_speeds
from dynbench.config.schema import Analysis

SLOWED = ("launch.slowdown={1: 2.0}",)


def merged(make_run, *policies, **fields):
    return [merge_run(make_run(policy, **fields)) for policy in policies]


@pytest.mark.parametrize("attention_ms", [0.0, 0.002])
def test_the_bound_is_recomputed_from_the_formula(make_run, attention_ms):
    static, partition = merged(make_run, "static", "partition", world_size=4, noise=0.0, attention_ms=attention_ms)
    found = recovery([(static, partition)])
    steps = static.measured
    tokens, tokens2, longest = (steps[name].to_numpy() for name in ("real_tokens", "real_tokens2", "longest"))
    mean = 2.0 + (0.05 * tokens + attention_ms * tokens2) / 4
    least = np.maximum(mean, 2.0 + 0.05 * longest + attention_ms * longest**2)
    total = steps["step_time_max_ms"].to_numpy()
    bound = (total - steps["compute_ms_max"].to_numpy() + least).sum()
    assert found.bound_speedup == pytest.approx(total.sum() / bound, rel=1e-3)
    other = partition.measured["step_time_max_ms"].sum()
    assert found.share == pytest.approx((total.sum() - other) / (total.sum() - bound), rel=1e-2)
    assert 0.3 < found.share < 1
    assert found.overhead_share == pytest.approx(2.0 / steps["compute_ms_max"].mean(), rel=1e-2)


@pytest.mark.parametrize("level", ["step", "window"])
@pytest.mark.parametrize(("workers", "batch"), [(2, 8), (2, 32), (4, 16), (8, 64)])
def test_no_deal_passes_the_bound_where_time_grows_with_the_square_of_the_length(make_run, level, workers, batch):
    fields = {"world_size": workers, "global_batch": batch, "noise": 0.0, "attention_ms": 0.002}
    static, partition = merged(make_run, "static", "partition", **fields)
    found = recovery([(static, partition)], level)
    assert static.time_ms / partition.time_ms <= found.bound_speedup
    assert found.share <= 1


def test_a_bound_that_the_candidate_passes_is_none(make_run):
    static, partition = merged(make_run, "static", "partition", noise=0.0)
    (quicker,) = merged(make_run, "partition", noise=0.0, slowdown=0.5)
    assert recovery([(static, partition)]) is not None
    assert recovery([(static, quicker)]) is None


def test_the_baseline_itself_recovers_nothing(make_run):
    static, again = merged(make_run, "static", "static", noise=0.0)
    assert recovery([(static, again)]).share == pytest.approx(0, abs=1e-3)


def test_without_a_loss_no_share_is_stated(make_run, monkeypatch):
    pair = tuple(merged(make_run, "static", "partition", noise=0.0))
    assert "% of what static loses is recovered; the fitted bound on static's steps" in recovery([pair]).sentence(
        "static"
    )
    monkeypatch.setattr("dynbench.analysis.waste.LEAST_LOSS", 0.99)
    assert recovery([pair]).share is None
    assert recovery([pair]).sentence("static").endswith("times as fast: next to nothing is lost")


def test_a_candidate_that_loses_more_recovers_nothing(make_run):
    (static,), (slower,) = merged(make_run, "static", noise=0.0), merged(make_run, "static", noise=0.0, slowdown=1.2)
    found = recovery([(static, slower)])
    assert found.share < 0
    assert found.sentence("static").startswith("nothing of what static loses is recovered; the fitted bound")


def test_every_micro_batch_has_its_overhead(make_run):
    static, partition = merged(make_run, "static", "partition", noise=0.0, micro_batches=2)
    found = recovery([(static, partition)])
    assert found.overhead_share == pytest.approx(2.0 / static.measured["compute_ms_max"].mean(), rel=1e-2)


def test_speeds_come_from_the_slowdown_then_the_schedule_then_the_estimates(make_run, tmp_path):
    (plain,) = merged(make_run, "static")
    assert relative_speeds(plain).tolist() == [1, 1]
    (given,) = merged(make_run, "partition", overrides=("schedule.speeds=[2.0, 1.0]",))
    assert relative_speeds(plain, given).tolist() == [1, 0.5]
    (slowed,) = merged(make_run, "partition", overrides=("schedule.speeds=[2.0, 1.0]", "launch.slowdown={0: 4.0}"))
    assert relative_speeds(plain, slowed).tolist() == [0.25, 1]
    (estimated,) = merged(make_run, "partition", overrides=("schedule.speeds=auto",))
    (estimated.run.path / "speeds.csv").write_text("step,rank,speed\n10,0,1.0\n10,1,0.5\n20,0,1.0\n20,1,0.8\n")
    assert relative_speeds(plain, estimated).tolist() == [1, 0.8]


def test_ranks_slowed_differently_are_not_held_against_one_bound(make_run):
    (static,) = merged(make_run, "static")
    (slowed,) = merged(make_run, "partition", overrides=SLOWED)
    assert recovery([(static, slowed)]) is None


@pytest.mark.slow
def test_a_comparison_states_bound_and_share(make_run, store):
    report = analyze_runs([make_run("static"), make_run("partition")], store, Analysis())
    stated = report.record().as_dict()["comparison"]
    assert stated["bound_speedup"] > 1
    assert 0 < stated["recovered_share"] < 1
    assert "of what static loses is recovered" in (report.folder.path / "summary.md").read_text()


LENGTHS = [100, *[10] * 7]
"""Of every step, over 4 ranks: the bound of a step is the long sample's time."""
DEALT = {
    "static": [[[100, 10], [10, 10], [10, 10], [10, 10]], [[100, 10, 10], [10, 10], [10, 10], [10]]],
    "partition": [[[100], [10, 10, 10], [10, 10], [10, 10]]] * 2,
    "window": [[[100], [100], [10] * 3, [10] * 3], [[10, 10]] * 4],
}


def dealt(make_run, policy, compute=lambda padded: 1 + 0.1 * padded):
    """A run whose steps are those of `DEALT` in turn; a step takes 1 ms beside compute."""
    window = 2 if policy == "window" else 1
    run = make_run(policy, world_size=4, global_batch=8, warmup_steps=2, steps=8, window=window)
    (run.path / "eval.csv").unlink()
    for path in run.ranks_dir.glob("rank_*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            step = DEALT[policy][int(row["step"]) % 2]
            share = step[int(row["rank"])]
            padded = [len(each) * max(each) for each in step]
            row["local_batch"], row["real_tokens"], row["max_seq_len_in_batch"] = len(share), sum(share), max(share)
            row["real_tokens2"] = sum(length**2 for length in share)
            row["padded_tokens2"] = len(share) * max(share) ** 2
            row["padded_tokens"], row["compute_ms"] = len(share) * max(share), compute(len(share) * max(share))
            row["step_time_ms"] = compute(max(padded)) + 1
        with path.open("w") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return merge_run(run)


def test_a_window_passes_the_bound_of_steps_and_is_held_against_that_of_all_steps_together(make_run):
    static, partition, window = (dealt(make_run, policy) for policy in DEALT)
    exact = recovery([(static, partition)], "step")
    assert (exact.within_steps, exact.share) == (True, pytest.approx(1))
    assert exact.bound_speedup == pytest.approx((22 + 32) / 24)
    assert recovery([(static, window)], "step") is None
    moved = recovery([(static, window)], "window")
    assert moved.bound_speedup == pytest.approx((22 + 32) / (2 * (2 + 0.1 * sum(LENGTHS) / 4)))
    assert moved.share == pytest.approx((54 - 16) / (54 - 2 * (2 + 0.1 * sum(LENGTHS) / 4)))
    assert "the fitted bound on static's samples in any of its steps is" in moved.sentence("static")


@pytest.mark.parametrize("policy", ["partition", "window", "prefix"])
def test_a_comparison_uses_the_bound_of_its_level(make_run, policy):
    fields = {"world_size": 4, "warmup_steps": 8, "window": 4 if policy == "window" else 1}
    static, other = merge_run(make_run("static", world_size=4, warmup_steps=8)), merge_run(make_run(policy, **fields))
    (found,) = compare_arms(named_arms({"static": [static], policy: [other]}), Analysis())
    stated = found.record().model_dump()
    assert stated["bound_within_steps"] is (stated["level"] == "step") is (policy == "partition")
    assert stated["bound_speedup"] == pytest.approx(recovery([(static, other)], found.level).bound_speedup)
    assert recovery([(static, other)], "window").bound_speedup >= recovery([(static, other)], "step").bound_speedup


@pytest.mark.parametrize(("passes", "stated"), [(0.01, True), (0.04, True), (0.06, False)])
def test_a_bound_is_passed_by_no_more_than_its_fit_is_off(make_run, passes, stated):
    static, partition = merged(make_run, "static", "partition", noise=0.0)
    bound_speedup = recovery([(static, partition)]).bound_speedup
    at_bound = replace(
        partition,
        blocks=partition.blocks.with_columns(
            time_ms=pl.col("time_ms") * (static.time_ms / bound_speedup / (1 + passes) / partition.time_ms)
        ),
    )
    found = recovery([(static, at_bound)])
    assert (found is not None) is stated
    if found is not None:
        assert found.share == pytest.approx(1)
        assert found.bound_speedup == pytest.approx(bound_speedup), "it is that of the baseline, whoever passes it"


def test_other_batches_are_held_against_no_bound(make_run):
    """As under a budget of tokens: its steps are not those that the bound is of."""
    pair = tuple(merged(make_run, "static", "partition", noise=0.0))
    assert recovery([pair], "stream") is not None
    assert recovery([pair], "tokens") is None
