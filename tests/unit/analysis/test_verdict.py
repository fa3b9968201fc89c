"""How far two runs did the same work, and from intervals to a word, jointly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file
from scipy import stats
from scipy.special import stdtr
from unit.analysis.conftest import SAMPLES, Fake, Make, sample_lengths, shares, with_steps

from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.analysis.verdict import (
    LAST,
    Spread,
    agreements,
    arm_variances,
    decide,
    hold_jointly,
    holm,
    loss_difference,
    loss_tolerance,
    of_two,
    weights_difference,
    windows_agree,
    work_level,
)
from dynbench.config.schema import changed


@pytest.mark.parametrize(
    ("verdict", "intervals"),
    [
        ("FASTER", [(1.08, 1.11)]),
        ("SLOWER", [(0.80, 0.90)]),
        ("SAME", [(0.99, 1.01), (1.001, 1.015)]),
        ("AMBIGUOUS", [(0.95, 1.05), (0.99, 1.30), (1.001, 1.03), (0.97, 0.999)]),
    ],
)
def test_verdicts_and_what_noise_of_equal_arms_takes_from_them(verdict, intervals):
    for low, high in intervals:
        ratio = Ratio(math.sqrt(low * high), low, high, 4)
        assert decide(ratio, noise=0.02) == verdict
        for aa_noise in (0.01, 0.05, 0.3, 5.0):
            taken = verdict in ("FASTER", "SLOWER") and abs(math.log(ratio.estimate)) <= math.log1p(aa_noise)
            assert decide(ratio, 0.02, aa_noise) == ("AMBIGUOUS" if taken else verdict)
    assert decide(Ratio(1.5, None, None, 1), noise=0.02) == "ESTIMATE"


RNG_SEED = 9
FAMILIES = 10_000
SPREAD = 0.027
"""Of the log ratio of two equal arms."""


def tables(arms, launches, families, wide=(), times=4.0, shift=()):
    """Logarithms of seconds of simulated launches, [families, launches, arms], the baseline first.

    What disturbs a launch is common to its arms.
    """
    sd = np.full(arms, SPREAD / math.sqrt(2))
    sd[list(wide)] *= times
    mean = np.zeros(arms)
    mean[1 : 1 + len(shift)] = -np.log(shift)
    rng = np.random.default_rng(RNG_SEED)
    shared = 0.1 * rng.standard_normal((families, launches, 1))
    return mean + shared + sd * rng.standard_normal((families, launches, arms))


def p_values(found):
    """Of every candidate against the baseline, [families, candidates], by the arms' own spreads."""
    launches, variances, means = found.shape[1], arm_variances(found), found.mean(axis=1)
    sd, df = of_two(variances[:, 1:], variances[:, :1], launches - 1)
    return 2 * stdtr(df, -np.abs(means[:, 1:] - means[:, :1]) * math.sqrt(launches) / sd)


@pytest.mark.slow
@pytest.mark.parametrize("launches", [2, 3, 4, 8])
@pytest.mark.parametrize("wide", [(), (0,), (1,), (0, 1)], ids=["alike", "baseline", "candidate", "both"])
@pytest.mark.parametrize("arms", [4, pytest.param(5, marks=pytest.mark.matrix), 12])
def test_a_false_verdict_in_a_family_is_rare_though_arms_spread_unlike(arms, wide, launches):
    """Of families of equal arms with any candidate told apart: Holm's first step decides."""
    p = p_values(tables(arms, launches, FAMILIES, wide))
    assert (p.min(axis=1) * p.shape[1] < 0.05).mean() <= 0.06


def test_a_tenth_is_seen_at_five_arms_and_four_launches():
    one = p_values(tables(5, 4, FAMILIES, shift=(1.1,)))[:, 0]
    assert (one * 4 < 0.05).mean() >= 0.9
    two = p_values(tables(5, 2, FAMILIES, shift=(1.1,)))[:, 0]
    assert (two * 4 < 0.05).mean() < 0.2, "two launches cannot"


def test_a_wide_arm_has_grubbs_variance():
    """Grubbs: half of what the pairs with the arm vary, less what the other pairs do."""
    table = np.random.default_rng(RNG_SEED).normal(0, 1, (6, 4)) * (1, 1, 5, 1)
    pairs = {two: np.var(table[:, two[0]] - table[:, two[1]], ddof=1) for two in combinations(range(4), 2)}
    with_arm = sum(variance for two, variance in pairs.items() if 2 in two)
    assert arm_variances(table)[2] == pytest.approx((with_arm - sum(pairs.values()) / 3) / 2)


def family(at=0, shift=()):
    """One of 40 simulated comparisons, its ratios, and the spreads that its arms have."""
    table = tables(5, 4, 40, shift=shift)[at]
    variances = arm_variances(table)
    pairs = [of_two(variances[0], variance, 3) for variance in variances[1:]]
    ratios = [paired_ratio(*np.exp(table[:, [0, arm]].T)) for arm in range(1, 5)]
    return table, ratios, [Spread(float(sd), float(df), "arms") for sd, df in pairs]


@pytest.mark.parametrize("at", range(40))
def test_intervals_leave_1_out_where_holm_tells_apart(at):
    table, ratios, spreads = family(at, shift=(1.1, 0.93, 1.05))
    found = hold_jointly(ratios, spreads, 0.95)
    plain = p_values(table[None])[0]
    assert [one.p for one in found] == pytest.approx(holm(plain))
    assert [one.ratio.low > 1 or one.ratio.high < 1 for one in found] == [one.p < 0.05 for one in found]
    assert [one.ratio.estimate for one in found] == [ratio.estimate for ratio in ratios]
    assert {one.family for one in found} == {4} and all(0.95 <= one.level <= 1 - 0.05 / 4 + 1e-12 for one in found)


def test_a_family_of_one_with_its_own_spread_is_the_pair_by_itself():
    ratio = family()[1][0]
    own = Spread(ratio.half_width * 2 / stats.t.ppf(0.975, 3), 3, "own")
    (joint,) = hold_jointly([ratio], [own], 0.95)
    assert joint.ratio.ends == pytest.approx(ratio.ends)
    assert hold_jointly([], [], 0.95) == []


@pytest.mark.parametrize("estimate", [1.0, 1.2])
def test_launches_without_any_spread_are_told_apart_where_they_differ(estimate):
    exact = Ratio(estimate, estimate, estimate, 4)
    (joint, _) = hold_jointly([exact, exact], [Spread(0.0, 3, "arms")] * 2, 0.95)
    assert (joint.p, joint.ratio.ends) == (0.0 if estimate > 1 else 1.0, pytest.approx((estimate, estimate)))
    assert of_two(np.float64(0), np.float64(0), 3) == (0, 3)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1, 1]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.fixture(scope="module")
def long(make_shared_run: Make) -> Mapping[int, MergedRun]:
    """Runs of 300 steps that deal their samples by windows of so many; 1 is static. 125 batches are an epoch."""
    fields = {1: {}} | {window: {"policy": "window", "window": window} for window in (2, 4, 8)}
    return {window: merge_run(make_shared_run(steps=290, **each)) for window, each in fields.items()}


def cut(run: MergedRun, warmup_steps: int = 10, steps: int = 40, **settings: object) -> MergedRun:
    """The first steps, of so many of warm-up and so many after it."""
    given = {"train.warmup_steps": warmup_steps, "train.steps": steps, **settings}
    facts = replace(run.facts, config=changed(run.facts.config, given))
    table = run.steps.head(warmup_steps + steps).with_columns(warmup=pl.col("step") < warmup_steps)
    return replace(run, facts=facts, steps=table)


def test_steps_of_other_batches_are_other_training(long):
    """As under a budget of tokens, which deals as many samples as fit it."""
    varying = pl.when(pl.col("step") == 20).then(pl.col("global_batch") + 1).otherwise("global_batch")
    assert work_level(long[1], long[1]) == "step"
    assert work_level(long[1], with_steps(long[1], global_batch=varying)) == "tokens"


@pytest.mark.parametrize("window", [2, 4, 8])
def test_windows_are_the_same_work_where_their_samples_agree_at_both_ends(long, window):
    """An epoch is 125 batches: its last window has one step or five, and those of the next one are shifted."""
    ahead, agree = np.zeros(SAMPLES), {0}
    for step in range(300):
        for policy, more in (("static", 1), ("window", -1)):
            np.add.at(ahead, np.concatenate(shares(Fake(policy, window=window), step, sample_lengths())), more)
        if not ahead.any():
            agree.add(step + 1)
    assert {*agreements(long[1], long[window])} == agree
    for warm_up, steps in product((0, 1, 7, 8, 10, 16), (7, 8, 17, 40, 244, 246)):
        pair = [cut(long[each], warm_up, steps) for each in (1, window)]
        level = "window" if {warm_up, warm_up + steps} <= agree else "stream"
        assert work_level(*pair) == work_level(*pair[::-1]) == level
        assert windows_agree(*pair) and windows_agree(*pair[::-1])


def test_the_boundary_may_lie_elsewhere_where_the_samples_agree_there(long):
    """Of windows of 4 a run of W=8 may begin its measured steps after 4, because its own windows agree there."""
    assert work_level(cut(long[1], 4, 12), cut(long[4], 4, 12, **{"schedule.window": 8})) == "window"


def test_runs_with_holes_or_other_steps_never_agree(long):
    hole = replace(long[2], steps=long[2].steps.filter(pl.col("step") != 5))
    assert agreements(long[1], hole) is None
    assert agreements(hole, hole) is None


def apart(run, differences):
    """Two runs whose losses differ, relative to the larger, by so much in each step."""
    return run, with_steps(run, loss_global=pl.col("loss_global") * (1 - pl.Series("difference", differences)))


def test_rounding_that_training_amplifies_is_no_other_gradient(long):
    grown = np.minimum(1e-8 * np.exp(np.arange(300) * 0.06), 0.4)
    noisy = grown * np.random.default_rng(0).uniform(0.02, 1.0, 300)
    assert noisy.max() > 0.3
    for pair in ([apart(long[1], noisy)], [apart(long[1], noisy)[::-1]]):
        assert loss_difference(pair) == pytest.approx(noisy[:10].max(), rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("step", [1, 12, 49, 50, 120, 299])
def test_another_gradient_is_seen_wherever_it_begins(long, step):
    differences = np.full(300, 1e-8)
    differences[step:] = 0.01 * np.linspace(1, 5, 300 - step)
    assert loss_difference([apart(long[1], differences)]) >= 0.0099


def test_loss_difference_is_the_largest_over_steps_and_pairs(merged):
    a, b, c = merged("static"), merged("partition"), merged("partition", loss_shift=0.01)
    assert loss_difference([(a, b)]) < 1e-12
    expected = np.max(0.01 / c.steps["loss_global"].to_numpy())
    assert loss_difference([(a, b), (a, c)]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_not_compared(long, loss):
    a, b = long[1], with_steps(long[1], loss_global=pl.lit(loss))
    assert loss_difference([(a, b)]) is loss_difference([(b, a)]) is loss_difference([(b, b)]) is None


def test_a_strategy_that_trains_otherwise_is_compared_by_tokens(merged):
    exact, other = merged(), merged(overrides=("sync.name=bucketed",))
    local, fewer = (merged(overrides=("sync.name=local_sgd", f"sync.inner_steps={steps}")) for steps in (4, 8))
    assert work_level(exact, other) == "step"
    assert work_level(exact, local) == work_level(local, fewer) == "tokens"
    assert work_level(local, local) == "step"


NAN, INF = float("nan"), float("inf")


def kept(folder: Path, weights: Mapping[str, object]) -> Any:
    """What is read of a run that kept a model of such weights."""
    (folder / LAST).parent.mkdir(parents=True)
    save_file({name: np.asarray(values) for name, values in weights.items()}, folder / LAST)
    return SimpleNamespace(run=SimpleNamespace(path=folder))


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ([1.0, 2], [1, 2.5], 0.5),
        *(([value], [number], None) for value in (NAN, INF) for number in (value, 4.0)),
        ([4.0], [NAN], None),
        ([1.0], [[1.0]], None),
        ([3], [9], 0.0),
        ([4.0], None, None),
    ],
)
def test_a_difference_that_is_no_number_is_none_of_all(tmp_path: Path, one, other, difference: float | None) -> None:
    """Nor is that of models with other weights, or of a torn one; counts are no weights."""
    fine = {"a": [1.0], "c": [1.0]}
    models = [*({"b": each, **fine} if each else fine for each in (one, other)), fine, fine]
    runs = [kept(tmp_path / f"{at}", model) for at, model in enumerate(models)]
    pairs, alike = [runs[:2]], [runs[2:]]
    for found in (pairs, alike + pairs, pairs + alike):
        assert weights_difference(found) == difference
    counts = [[kept(tmp_path / name, {"a": [number]}) for name, number in (("few", 3), ("many", 9))]]
    assert weights_difference(counts) == 0.0
    (tmp_path / "0" / LAST).write_bytes(b"torn")
    assert weights_difference(pairs) is None


def test_the_limit_follows_from_the_coarsest_precision_and_the_steps_that_are_compared(long):
    def limit(*precisions: str, steps: int = 40) -> float:
        runs = [cut(long[1], steps=steps, **{"train.precision": each}) for each in precisions]
        return loss_tolerance([(runs[0], runs[-1])])[0]

    assert limit("fp32") == limit("auto") == 1e-3
    assert limit("fp32", "bf16") == limit("bf16") == 2**-9 * 50**0.5
    assert limit("bf16", steps=15) == 2**-9 * 5 < limit("bf16", steps=200) == limit("bf16")
    assert limit("bf16") == pytest.approx(8 * limit("fp16"))
