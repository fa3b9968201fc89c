import numpy as np
import polars as pl
import pytest

from dynbench.analysis.levels import comparison_level, largest_gap, loss_difference, work_level
from dynbench.analysis.merge import merge_run


@pytest.fixture
def merged(make_run):
    return lambda *args, **kwargs: merge_run(make_run(*args, **kwargs))


def test_static_and_partition_agree_in_every_step(merged):
    assert work_level(merged("static"), merged("partition")) == "step"


def test_static_and_prefix_share_the_data_only(merged):
    assert work_level(merged("static"), merged("prefix")) == "stream"


@pytest.mark.parametrize("window", [2, 4, 8])
def test_a_window_policy_agrees_with_static_every_window(merged, window):
    static, dealt = merged("static"), merged("window", window=window)
    assert work_level(static, dealt) == "window"
    assert largest_gap(static, dealt) == window


def test_windows_that_begin_anew_with_every_epoch_still_agree(merged):
    """125 batches per epoch: the last window of an epoch has one step and the next epoch's windows are shifted."""
    static, dealt = merged("static", steps=300), merged("window", window=4, steps=300)
    assert work_level(static, dealt) == "window"


def test_the_stated_window_is_the_limit(merged):
    static, dealt = merged("static"), merged("window", window=8)
    config = dict(dealt.facts.config) | {"schedule.window": 4}
    object.__setattr__(dealt.facts, "config", config)
    assert work_level(static, dealt) == "stream"


def test_one_changed_hash_is_noticed(merged):
    static, dealt = merged("static"), merged("partition")
    changed = dealt.steps.with_columns(work_hash=pl.col("work_hash") + (pl.col("step") == 17).cast(pl.UInt64))
    object.__setattr__(dealt, "steps", changed)
    assert largest_gap(static, dealt) == 34
    assert work_level(static, dealt) == "stream"


def test_runs_with_holes_or_other_steps_never_agree(merged):
    static, dealt = merged("static"), merged("partition")
    object.__setattr__(dealt, "steps", dealt.steps.filter(pl.col("step") != 5))
    assert largest_gap(static, dealt) is None
    assert largest_gap(dealt, dealt) is None


def test_the_weakest_pair_decides(merged):
    static, partition, prefix = merged("static"), merged("partition"), merged("prefix")
    assert comparison_level([(static, partition), (static, prefix)]) == "stream"


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
