from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.levels import agreements, comparison_level, loss_difference, windows_agree, work_level
from dynbench.analysis.merge import merge_run
from dynbench.config.digest import changed


@pytest.fixture
def merged(make_run):
    return lambda *args, **kwargs: merge_run(make_run(*args, **kwargs))


def test_static_and_partition_agree_in_every_step(merged):
    assert work_level(merged("static"), merged("partition")) == "step"


def test_static_and_prefix_share_the_data_only(merged):
    assert work_level(merged("static"), merged("prefix")) == "stream"


def test_steps_of_other_batches_are_other_training(merged):
    """As under a budget of tokens, which deals as many samples as fit it."""
    static, budget = merged("static"), merged("static")
    varying = pl.when(pl.col("step") == 20).then(pl.col("global_batch") + 1).otherwise("global_batch")
    assert work_level(static, replace(budget, steps=budget.steps.with_columns(global_batch=varying))) == "tokens"


def gaps(a, b):
    return np.diff(agreements(a, b)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("window", [2, 4, 8])
@pytest.mark.parametrize("warm_up", [0, 1, 2])
@pytest.mark.parametrize("measured", [1, 2, 3])
def test_a_window_policy_agrees_with_static_every_window(merged, window, warm_up, measured):
    fields = {"warmup_steps": warm_up * window, "steps": measured * window}
    static, dealt = merged("static", **fields), merged("window", window=window, **fields)
    assert work_level(static, dealt) == "window"
    assert gaps(static, dealt) == [window] * (warm_up + measured)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("warmup_steps", "steps"), [(10, 40), (10, 38), (7, 8), (9, 8), (8, 41), (8, 7), (0, 17), (1, 7)]
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_window_that_the_warm_up_or_the_end_splits_is_not_the_same_work(merged, warmup_steps, steps, order):
    fields = {"warmup_steps": warmup_steps, "steps": steps}
    pair = (merged("static", **fields), merged("window", window=8, **fields))[::order]
    assert work_level(*pair) == "stream"
    assert windows_agree(*pair)
    if warmup_steps != 0 and (warmup_steps + steps) % 8 == 0:
        assert len({run.measured["real_tokens"].sum() for run in pair}) == 2


def test_the_boundary_may_lie_elsewhere_where_the_samples_agree_there(merged):
    """Of windows of 4 a run of W=8 may begin its measured steps after 4, because its own windows agree there."""
    fields = {"warmup_steps": 4, "steps": 12}
    static, dealt = merged("static", **fields), merged("window", window=4, **fields)
    object.__setattr__(dealt.facts, "config", changed(dealt.facts.config, {"schedule.window": 8}))
    assert work_level(static, dealt) == "window"


@pytest.mark.slow
def test_windows_that_begin_anew_with_every_epoch_still_agree(merged):
    """125 batches per epoch: the last window of an epoch has one step and the next epoch's windows are shifted."""
    fields = {"warmup_steps": 4, "steps": 246}
    static, dealt = merged("static", **fields), merged("window", window=4, **fields)
    assert work_level(static, dealt) == "window"
    fields = {"warmup_steps": 4, "steps": 244}
    assert work_level(merged("static", **fields), merged("window", window=4, **fields)) == "stream"


def test_the_stated_window_is_the_limit(merged):
    fields = {"warmup_steps": 8, "steps": 16}
    static, dealt = merged("static", **fields), merged("window", window=8, **fields)
    assert work_level(static, dealt) == "window"
    object.__setattr__(dealt.facts, "config", changed(dealt.facts.config, {"schedule.window": 4}))
    assert work_level(static, dealt) == "stream"


def test_one_changed_hash_is_noticed(merged):
    static, dealt = merged("static"), merged("partition")
    changed = dealt.steps.with_columns(work_hash=pl.col("work_hash") + (pl.col("step") == 17).cast(pl.UInt64))
    object.__setattr__(dealt, "steps", changed)
    assert agreements(static, dealt).tolist() == list(range(18))
    assert work_level(static, dealt) == "stream"


def test_runs_with_holes_or_other_steps_never_agree(merged):
    static, dealt = merged("static"), merged("partition")
    object.__setattr__(dealt, "steps", dealt.steps.filter(pl.col("step") != 5))
    assert agreements(static, dealt) is None
    assert agreements(dealt, dealt) is None


def test_the_weakest_pair_decides(merged):
    static, partition, prefix = merged("static"), merged("partition"), merged("prefix")
    assert comparison_level([(static, partition), (static, prefix)]) == "stream"


def apart(merged, differences):
    """Two runs whose losses differ, relative to the larger, by so much in each step."""
    a, b = (merged("static", warmup_steps=10, steps=len(differences) - 10) for _ in range(2))
    loss = pl.col("loss_global") * (1 - pl.Series("difference", differences))
    object.__setattr__(b, "steps", b.steps.with_columns(loss_global=loss))
    return a, b


@pytest.mark.slow
def test_rounding_that_training_amplifies_is_no_other_gradient(merged):
    grown = np.minimum(1e-8 * np.exp(np.arange(300) * 0.06), 0.4)
    noisy = grown * np.random.default_rng(0).uniform(0.02, 1.0, 300)
    assert noisy.max() > 0.3
    for pair in ([apart(merged, noisy)], [apart(merged, noisy)[::-1]]):
        assert loss_difference(pair) == pytest.approx(noisy[:10].max(), rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(("begin", "counted"), [(27, 10), (5, 50)])
def test_losses_that_agree_at_first_may_come_apart_quickly_and_others_may_not(merged, begin, counted):
    """From 1e-7 to 1e-3 in twelve steps, as rounding under AdamW was seen to grow, or a small fault from the start."""
    differences = np.full(60, 1e-7)
    differences[begin:] = np.minimum(1e-7 * 3.0 ** np.arange(60 - begin), 3e-3)
    expected = differences[:counted].max()
    assert loss_difference([apart(merged, differences)]) == pytest.approx(expected, rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("step", [1, 12, 49, 50, 120, 299])
def test_another_gradient_is_seen_wherever_it_begins(merged, step):
    differences = np.full(300, 1e-8)
    differences[step:] = 0.01 * np.linspace(1, 5, 300 - step)
    assert loss_difference([apart(merged, differences)]) >= 0.0099


def test_loss_difference_is_the_largest_over_steps_and_pairs(merged):
    a, b, c = merged("static"), merged("partition"), merged("partition", loss_shift=0.01)
    assert loss_difference([(a, b)]) < 1e-12
    expected = np.max(0.01 / c.steps["loss_global"].to_numpy())
    assert loss_difference([(a, b), (a, c)]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_not_compared(merged, loss):
    a, b = merged("static"), merged("partition")
    object.__setattr__(b, "steps", b.steps.with_columns(loss_global=pl.lit(loss)))
    assert loss_difference([(a, b)]) is loss_difference([(b, a)]) is loss_difference([(b, b)]) is None


def test_a_strategy_that_trains_otherwise_is_compared_by_tokens(merged):
    exact, other = merged("static"), merged("static", overrides=("sync.name=bucketed",))
    local, fewer = (
        merged("static", overrides=("sync.name=local_sgd", f"sync.inner_steps={steps}")) for steps in (4, 8)
    )
    assert work_level(exact, other) == "step"
    assert work_level(exact, local) == work_level(local, fewer) == "tokens"
    assert work_level(local, local) == "step"


def test_a_strategy_that_trains_otherwise_is_compared_by_tokens_under_other_plans(merged):
    """Where ranks step apart, who trains on which samples is part of the training."""
    local = ("sync.name=local_sgd",)
    static, again, planned = (merged(policy, overrides=local) for policy in ("static", "static", "partition"))
    assert work_level(merged("static"), merged("partition")) == "step"
    assert work_level(static, again) == "step"
    assert work_level(static, planned) == "tokens"
