"""Every arm against every other: Holm by known answers and by simulation, pooled spread against least squares."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from dynbench.analysis import ranking
from dynbench.analysis.arms import named_arms
from dynbench.analysis.comparison import compare_two, terms_of
from dynbench.analysis.merge import merge_run
from dynbench.analysis.pairwise import compare_pairs, holm, launch_table, p_value, pooled_spread
from dynbench.analysis.questions.base import TOKENS
from dynbench.analysis.stats import paired_ratio
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis

RNG_SEED = 9
ALIKE = "static"


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1, 1]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_two_arms_are_the_paired_t_test():
    times = np.random.default_rng(RNG_SEED).normal(0, 0.05, (6, 2))
    pooled = pooled_spread(times)
    difference = times[:, 0] - times[:, 1]
    assert (pooled.residual * math.sqrt(2), pooled.df) == (pytest.approx(difference.std(ddof=1)), 5)
    error = pooled.residual * math.sqrt(2 / 6)
    assert p_value(difference.mean(), error, 5) == pytest.approx(stats.ttest_rel(*times.T).pvalue)


def test_the_pooled_spread_is_that_of_least_squares():
    launches, arms = 5, 4
    table = np.random.default_rng(RNG_SEED).normal(0, 1, (launches, arms))
    rows, columns = np.divmod(np.arange(table.size), arms)
    design = np.hstack([np.eye(launches)[rows], np.eye(arms)[columns]])
    fitted = design @ np.linalg.lstsq(design, table.ravel(), rcond=None)[0]
    pooled = pooled_spread(table)
    assert pooled.df == table.size - np.linalg.matrix_rank(design)
    assert pooled.residual == pytest.approx(math.sqrt(((table.ravel() - fitted) ** 2).sum() / pooled.df))
    assert pooled_spread(table, first=3) == pooled_spread(table[:3])
    assert pooled_spread(table[:1]) is None


def joint(table):
    """Plain and adjusted p values of every pair of a table, as `compare_pairs` has them of real launches."""
    pooled, means = pooled_spread(table), table.mean(axis=0)
    error = pooled.residual * math.sqrt(2 / len(table))
    plain = [p_value(means[a] - means[b], error, pooled.df) for a, b in combinations(range(table.shape[1]), 2)]
    return np.array(plain), np.array(holm(plain))


def false_differences(shift, sessions=2000, launches=4):
    """Share of simulated comparisons with any difference among arms that have none: by plain p values, and by Holm."""
    rng = np.random.default_rng(RNG_SEED)
    arms = len(shift)
    equal = np.array([shift[a] == shift[b] for a, b in combinations(range(arms), 2)])
    times = np.array(shift) + 0.02 * rng.standard_normal((sessions, launches, arms))
    times += 0.1 * rng.standard_normal((sessions, launches, 1))
    found = [[(p[equal] < 0.05).any() for p in joint(table)] for table in times]
    return np.mean(found, axis=0)


@pytest.mark.parametrize("shift", [(0, 0, 0, 0, 0), (0, 0, 0, 0, 0.3), (0, 0, 0.2, 0.2, 0.2)])
def test_a_single_false_difference_among_all_pairs_is_as_rare_as_holm_promises(shift):
    plain, held = false_differences(shift)
    assert held <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    assert plain > 0.1, "unadjusted p values exceed the level: the simulation can fail"


@pytest.fixture
def launch(make_run):
    """Merged runs of arms in ABBA order: `launch(4, one={}, two={"slowdown": 1.2})`, a seed per block."""

    def make(launches, **arms):
        runs = {name: [] for name in arms}
        for block in range(launches):
            for name in list(arms) if block % 2 == 0 else list(arms)[::-1]:
                fields = {"policy": ALIKE, "seed": block, "noise": 0.01, **arms[name]}
                runs[name].append(merge_run(make_run(**fields)))
        return runs

    return make


def pairs_of(arms, settings=None, **options):
    terms = terms_of(arms, settings or Analysis(), **options)
    first = [compare_two(terms, arms[0], arm) for arm in arms[1:]]
    return compare_pairs(terms, first)


def three(launch, launches=4, **changed):
    fields = {"static": {}, "partition": {"policy": "partition"}, "prefix": {"policy": "prefix", "slowdown": 1.5}}
    return launch(launches, **{name: {**own, **changed.get(name, {})} for name, own in fields.items()})


@pytest.mark.slow
def test_every_arm_meets_every_later_one(launch):
    runs = three(launch)
    arms = named_arms(runs)
    pairs = pairs_of(arms)
    named = [(pair.comparison.baseline.label, pair.comparison.candidate.label) for pair in pairs]
    assert named == [("static", "partition"), ("static", "prefix"), ("partition", "prefix")]
    table = launch_table(arms, TOKENS)
    assert table.shape == (4, 3)
    plain, held = joint(table)
    assert [pair.p for pair in pairs] == pytest.approx(plain)
    assert [pair.p_holm for pair in pairs] == pytest.approx(held)
    assert [pair.spread for pair in pairs] == ["pooled"] * 3
    assert [pair.faster for pair in pairs] == ["partition", "static", "partition"]
    own = paired_ratio(*(np.exp(table[:, arm]) for arm in (1, 2)))
    assert pairs[2].comparison.speedup.estimate == pytest.approx(own.estimate)
    assert pairs[2].pooled[0] < own.estimate < pairs[2].pooled[1]


@pytest.mark.slow
def test_a_pair_reads_as_the_comparison_that_it_is(launch):
    pairs = pairs_of(named_arms(three(launch)))
    record = pairs[0].record("id", "path").model_dump()
    of_comparison = pairs[0].comparison.record("id", "path").model_dump()
    assert {key: record[key] for key in of_comparison} == of_comparison
    assert set(record) - set(of_comparison) == {"spread", "pooled_ci95", "p_holm", "faster"}


@pytest.mark.slow
def test_equal_arms_are_never_told_apart(launch):
    runs = launch(4, one={}, two={"slowdown": 1.3}, other={"policy": "partition"})
    pairs = pairs_of(named_arms(runs))
    assert (pairs[0].comparison.aa, pairs[0].faster) == (True, None)
    assert pairs[0].p_holm < 0.05
    assert pairs[2].faster == "other"


@pytest.mark.slow
def test_a_launch_that_an_arm_lacks_is_left_out_of_the_spread_and_not_of_other_pairs(launch):
    runs = three(launch, launches=5)
    runs["prefix"] = runs["prefix"][:4]
    arms = named_arms(runs)
    assert launch_table(arms, TOKENS).shape == (4, 3)
    assert [pair.comparison.speedup.pairs for pair in pairs_of(arms)] == [5, 4, 4]


@pytest.mark.slow
def test_the_spread_of_two_stages_is_the_first_ones(launch):
    arms = named_arms(three(launch, launches=5))
    table = launch_table(arms, TOKENS)
    found = pairs_of(arms, first=3)[2]
    error = pooled_spread(table[:3]).residual * math.sqrt(2 / 5)
    assert found.p == pytest.approx(p_value(math.log(found.comparison.speedup.estimate), error, 4))


@pytest.mark.slow
def test_arms_without_common_launches_have_their_own_spreads(launch):
    """`static` and `partition` share seeds 0 to 2, `static` and `prefix` 3 to 5: these two cannot be paired at all."""
    runs = three(launch, launches=6)
    runs["partition"], runs["prefix"] = runs["partition"][:3], runs["prefix"][3:]
    pairs = pairs_of(named_arms(runs))
    assert [pair.spread for pair in pairs] == ["own", "own"]
    assert [pair.pooled for pair in pairs] == [None, None]
    ratio = pairs[0].comparison.speedup
    error = ratio.half_width / stats.t.ppf(0.975, 2)
    assert pairs[0].p == pytest.approx(2 * stats.t.sf(abs(math.log(ratio.estimate)) / error, 2))


@pytest.mark.slow
def test_a_stored_arm_met_the_others_in_another_session(launch):
    runs = three(launch)
    stored, *others = named_arms(runs)
    object.__setattr__(stored, "stored", True)
    assert {pair.spread for pair in pairs_of([stored, *others])} == {"own"}


@pytest.mark.slow
def test_a_launch_of_the_first_stage_that_was_repeated_stays_in_it(launch):
    runs = three(launch, launches=5)
    arms = named_arms(runs)
    usual = [(pair.p, pair.comparison.speedup.half_width) for pair in pairs_of(arms, first=3)]
    for arm in runs.values():
        object.__setattr__(arm[0].facts, "started", "2027-01-01T00:00:00+00:00")
    again = [(pair.p, pair.comparison.speedup.half_width) for pair in pairs_of(named_arms(runs), first=3)]
    assert again == [pytest.approx(found) for found in usual]


def test_a_single_arm_has_no_pairs_even_without_a_measured_step(launch):
    runs = launch(1, static={"steps_written": 5})
    assert pairs_of(named_arms(runs)) == []


def test_one_launch_has_no_p_value_and_no_ranking(launch):
    pairs = pairs_of(named_arms(three(launch, launches=1)))
    assert {(pair.p_holm, pair.spread, pair.faster) for pair in pairs} == {(None, None, None)}
    records = [pair.record() for pair in pairs]
    assert ranking.readable(records) is None


@pytest.mark.slow
def test_two_candidates_that_cannot_be_compared_are_said_so_and_not_tested(launch):
    """What forbids it is not in the way of other pairs, whose p values are held jointly without it."""
    arms = named_arms(three(launch))
    terms = terms_of(arms, Analysis())
    first = [compare_two(terms, arms[0], arm) for arm in arms[1:]]
    for run in arms[2].runs:
        train = run.facts.config.train.model_copy(update={"global_batch": 32})
        object.__setattr__(run.facts, "config", run.facts.config.model_copy(update={"train": train}))
    *known, last = compare_pairs(terms, first)
    assert (last.comparison.verdict, last.p_holm, last.faster) == (Verdict.INCOMPARABLE, None, None)
    assert [pair.p_holm for pair in known] == pytest.approx(holm([pair.p for pair in known]))


@pytest.mark.slow
def test_the_table_has_the_faster_arm_first_and_what_is_told_apart_on_top(launch):
    runs = launch(4, slow={"policy": "prefix", "slowdown": 1.5}, one={}, two={"policy": "partition", "slowdown": 1.0})
    records = [pair.record() for pair in pairs_of(named_arms(runs))]
    ranks = ranking.ranking(records)
    assert all(rank.ratio >= 1 for rank in ranks)
    assert [rank.told_apart for rank in ranks] == sorted((rank.told_apart for rank in ranks), reverse=True)
    assert {rank.other for rank in ranks[:2]} == {"slow"}
    for rank in ranks:
        low, high = rank.interval
        assert low < rank.ratio < high
    table, joint_p = ranking.readable(records)
    assert (len(table.rows), "3 pairs (Holm); spread pooled" in joint_p) == (3, True)
    assert ranking.ranking(records[:1]) == []
