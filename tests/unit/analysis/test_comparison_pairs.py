"""Every arm against every other: two families, whose verdicts, intervals and p values say one thing of each pair."""

import math

import pytest
from compared import terms
from scipy import stats

from dynbench.analysis.arms import named_arms
from dynbench.analysis.comparison import compare_candidates, compare_pairs
from dynbench.analysis.comparison_tables import RANKING, held_jointly
from dynbench.analysis.merge import merge_run
from dynbench.analysis.question import TOKENS
from dynbench.analysis.verdict import Verdict, arm_variances, holm, launch_table, of_two, p_value
from dynbench.config.schema import Analysis
from dynbench.table_text import in_english

ALIKE = "static"


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
    shared = terms(arms, settings or Analysis(), **options)
    return compare_pairs(shared, compare_candidates(shared))


FOUR = {
    "static": {},
    "partition": {"policy": "partition"},
    "prefix": {"policy": "prefix", "slowdown": 1.5},
    "other": {"policy": "partition", "overrides": ("schedule.cost_type=attention",)},
}


def arms_of(launch, number, launches=4):
    return launch(launches, **dict(list(FOUR.items())[:number]))


def three(launch, launches=4):
    return arms_of(launch, 3, launches)


def p_of(pair):
    """Of a pair by itself."""
    joint = pair.joint
    ratio, spread = joint.ratio, joint.spread
    return p_value(math.log(ratio.estimate), spread.sd / math.sqrt(ratio.pairs), spread.df)


@pytest.mark.slow
def test_every_arm_meets_every_later_one(launch):
    arms = named_arms(arms_of(launch, 4))
    pairs = pairs_of(arms)
    named = [(pair.baseline.label, pair.candidate.label) for pair in pairs]
    assert named[:4] == [*(("static", name) for name in ("partition", "prefix", "other")), ("partition", "prefix")]
    assert named[4:] == [("partition", "other"), ("prefix", "other")]
    variances = dict(zip((arm.label for arm in arms), arm_variances(launch_table(arms, TOKENS)), strict=True))
    for pair, (one, other) in zip(pairs, named, strict=True):
        spread = pair.joint.spread
        assert (spread.sd, spread.df) == pytest.approx(of_two(variances[one], variances[other], 3))
    assert {pair.pair_record().spread for pair in pairs} == {"arms"}
    for together in (pairs[:3], pairs[3:]):
        assert [pair.pair_record().p_holm for pair in together] == pytest.approx(
            holm([p_of(pair) for pair in together])
        )
        assert {pair.joint.family for pair in together} == {3}
    assert pairs[3].faster == "partition"


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("launches", [2, 4])
def test_a_pair_says_one_thing(launch, number, launches):
    """The interval, the p value, who is faster and the verdict of every pair; those with the baseline are its own."""
    arms = named_arms(arms_of(launch, number, launches))
    shared = terms(arms, Analysis())
    comparisons = compare_candidates(shared)
    records = [pair.pair_record() for pair in compare_pairs(shared, comparisons)]
    assert [
        {key: getattr(record, key) for key in vars(known.record())}
        for record, known in zip(records, comparisons, strict=False)
    ] == [vars(known.record()) for known in comparisons]
    for record in records:
        low, high = record.interval
        assert (low > 1 or high < 1) == (record.p_holm < 0.05)
        faster = {"FASTER": record.candidate, "SLOWER": record.baseline}.get(record.verdict)
        assert record.faster == faster and (faster is None or record.p_holm < 0.05)
    if number == 2:
        assert records[0].ci_joint == pytest.approx(records[0].ci95)


@pytest.mark.slow
def test_equal_arms_are_never_told_apart_and_take_no_certainty_from_the_family(launch):
    runs = launch(4, one={}, two={"slowdown": 1.3}, other={"policy": "partition"})
    pairs = pairs_of(named_arms(runs))
    assert (pairs[0].aa, pairs[0].faster, pairs[0].pair_record().p_holm) == (True, None, None)
    assert pairs[1].pair_record().judged_together == 1


@pytest.mark.slow
def test_a_launch_that_an_arm_lacks_is_left_out_of_the_spread_and_not_of_other_pairs(launch):
    runs = three(launch, launches=5)
    runs["prefix"] = runs["prefix"][:4]
    arms = named_arms(runs)
    assert launch_table(arms, TOKENS).shape == (4, 3)
    assert [pair.speedup.pairs for pair in pairs_of(arms)] == [5, 4, 4]


@pytest.mark.slow
def test_the_spread_of_two_stages_is_the_first_ones(launch):
    arms = named_arms(arms_of(launch, 4, launches=5))
    variances = arm_variances(launch_table(arms, TOKENS)[:3])
    spread = pairs_of(arms, first=3)[-1].joint.spread
    assert (spread.sd, spread.df) == pytest.approx(of_two(variances[2], variances[3], 2))


@pytest.mark.slow
def test_arms_without_common_launches_have_their_own_spreads(launch):
    """`static` and `partition` share seeds 0 to 2, `static` and `prefix` 3 to 5: these two cannot be paired at all."""
    runs = three(launch, launches=6)
    runs["partition"], runs["prefix"] = runs["partition"][:3], runs["prefix"][3:]
    pairs = pairs_of(named_arms(runs))
    assert [pair.pair_record().spread for pair in pairs] == ["own", "own"]
    ratio = pairs[0].speedup
    error = ratio.half_width / stats.t.ppf(0.975, 2)
    assert p_of(pairs[0]) == pytest.approx(2 * stats.t.sf(abs(math.log(ratio.estimate)) / error, 2))


@pytest.mark.slow
def test_a_stored_arm_met_the_others_in_another_session(launch):
    runs = arms_of(launch, 4)
    stored, *others = named_arms(runs)
    object.__setattr__(stored, "stored", True)
    assert {pair.pair_record().spread for pair in pairs_of([stored, *others])} == {"own"}


@pytest.mark.slow
def test_a_launch_of_the_first_stage_that_was_repeated_stays_in_it(launch):
    runs = arms_of(launch, 4, launches=5)
    arms = named_arms(runs)
    usual = [(p_of(pair), pair.speedup.half_width) for pair in pairs_of(arms, first=3)]
    for arm in runs.values():
        object.__setattr__(arm[0].facts, "started", "2027-01-01T00:00:00+00:00")
    again = [(p_of(pair), pair.speedup.half_width) for pair in pairs_of(named_arms(runs), first=3)]
    assert again == [pytest.approx(found) for found in usual]


def test_a_single_arm_has_no_pairs_even_without_a_measured_step(launch):
    runs = launch(1, static={"steps_written": 5})
    assert pairs_of(named_arms(runs)) == []


def test_one_launch_has_no_p_value_and_no_ranking(launch):
    pairs = pairs_of(named_arms(three(launch, launches=1)))
    assert {(pair.joint, pair.faster) for pair in pairs} == {(None, None)}
    records = [pair.pair_record() for pair in pairs]
    assert RANKING.table(records) is None


@pytest.mark.slow
def test_two_candidates_that_cannot_be_compared_are_said_so_and_not_tested(launch):
    """What forbids it is not in the way of other pairs, whose p values are held jointly without it."""
    arms = named_arms(three(launch))
    shared = terms(arms, Analysis())
    first = compare_candidates(shared)
    for run in arms[2].runs:
        train = run.facts.config.train.model_copy(update={"global_batch": 32})
        object.__setattr__(run.facts, "config", run.facts.config.model_copy(update={"train": train}))
    *known, last = compare_pairs(shared, first)
    assert (last.verdict, last.joint, last.faster) == (Verdict.INCOMPARABLE, None, None)
    assert [pair.pair_record().p_holm for pair in known] == pytest.approx(holm([p_of(pair) for pair in known]))


@pytest.mark.slow
def test_the_table_has_the_faster_arm_first_and_what_is_told_apart_on_top(launch):
    runs = launch(4, slow={"policy": "prefix", "slowdown": 1.5}, one={}, two={"policy": "partition", "slowdown": 1.0})
    records = [pair.pair_record() for pair in pairs_of(named_arms(runs))]
    ranks = RANKING.rows(records, in_english)
    assert all(rank["times_as_fast"] >= 1 for rank in ranks)
    assert [rank["told_apart"] for rank in ranks] == sorted((rank["told_apart"] for rank in ranks), reverse=True)
    assert {rank["against"] for rank in ranks[:2]} == {"slow"}
    for rank in ranks:
        low, high = rank["interval"]
        assert low < rank["times_as_fast"] < high
    assert len(RANKING.table(records).rows) == 3
    assert "the 2 with slow, and the 1 others" in held_jointly(records)
    assert RANKING.rows(records[:1], in_english) == []
