"""Arms compared: with the baseline, with each other, with leaks, and by P95 of their steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from compared import terms
from scipy import stats
from unit.analysis.conftest import Make, compare, findings, launches

from dynbench.analysis.arms import named_arms
from dynbench.analysis.comparison import Comparison, Terms, compare_candidates, compare_pairs
from dynbench.analysis.merge import merge_run
from dynbench.analysis.record import TailRecord
from dynbench.analysis.stats import paired_ratio, smallest_shown
from dynbench.analysis.verdict import holm, p_value
from dynbench.config.schema import Analysis, changed
from dynbench.errors import NotComparable

QUIET = {"policy": "static", "noise": 0.0}
COST = {"overrides": ("schedule.cost_type=attention",)}


def timed(run, factor):
    return replace(run, blocks=run.blocks.with_columns(time_ms=run.blocks["time_ms"] * factor))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", pytest.param("window", marks=pytest.mark.matrix)])
def test_equal_arms_that_came_out_different_are_noise_and_so_is_as_much_between_others(launch, policy):
    alike = {"policy": policy, "noise": 0.0}
    made = launch(4, a=alike, a2=alike, other={**alike, **COST})
    for number, factor in itertools.product((1, 2, 4), (1.213, 1 / 1.213)):
        runs = {name: arm[:number] for name, arm in made.items()}
        runs["a2"] = [timed(run, (1 + 0.002 * (-1) ** at) / factor) for at, run in enumerate(runs["a2"])]
        runs["other"] = [timed(run, 1 / 1.15) for run in runs["other"]]
        aa, other = compare(runs)
        assert (aa.aa, other.aa) == (True, False)
        assert aa.verdict == other.verdict == ("ESTIMATE" if number == 1 else "AMBIGUOUS")
        assert aa.record().reason_said["say"].startswith("reason.alike.")
        assert (aa.recovery, aa.aa_noise) == (None, None)
        assert (other.noise, other.aa_noise > 0.18) == (0.02, True)


@pytest.mark.slow
def test_an_aa_arm_whose_launches_differ_takes_faster_from_the_others_and_never_makes_them_the_same(launch):
    """Two launches, 1.10 with a narrow interval: FASTER; a twin that differs by 0 and 2 % knows nothing below 13 %."""
    runs = launch(2, static=QUIET, twin=QUIET, other={**QUIET, **COST})
    for name, factors in (("twin", (1.0, 1.02)), ("other", (1 / 1.099, 1 / 1.097))):
        runs[name] = [timed(run, factor) for run, factor in zip(runs[name], factors, strict=True)]
    (alone,) = compare({name: runs[name] for name in ("static", "other")})
    again, beside = compare(runs)
    assert (alone.verdict, beside.verdict) == ("FASTER", "AMBIGUOUS")
    assert (again.noise, beside.noise, again.aa_noise) == (0.02, 0.02, None)
    assert beside.aa_noise > 0.13
    assert beside.aa_noise == pytest.approx(again.speedup.high / again.speedup.estimate - 1, rel=1e-6)
    assert beside.record().reason_said["say"] == "reason.beside_aa"


@pytest.mark.slow
@pytest.mark.parametrize("policies", [("static", "partition"), ("static", "static", "partition"), ("static",)])
def test_launches_of_other_settings_are_no_launches_of_one_arm(launch, policies):
    """Planted: every arm's second launch was trained with 20 steps, the first with 40; each pair agrees."""
    of_arm = {f"{name}{index}": {"policy": name, "steps": [40, 20]} for index, name in enumerate(policies)}
    runs = launch(2, **of_arm)
    with pytest.raises(NotComparable, match=r"the launches of static0 .* train\.steps \(40 and 20\)"):
        compare(runs)
    for found in compare(runs, force=True):
        assert (found.verdict, dict(found.forbidden)) == ("INCOMPARABLE", {"train.steps": (40, 20)})


FORBIDDEN = {
    "train.steps (40 and 50)": {"steps": 50},
    "world_size (2 and 4)": {"world_size": 4, "policy": "partition"},
    "workload.max_length (256 and 64)": {"overrides": ("workload.max_length=64",)},
    "env.data.fingerprint (data-1 and data-2)": {"fingerprint": "data-2"},
    "env.cpu_model (Test CPU and Other CPU)": {"env": {"cpu_model": "Other CPU"}},
    "env.packages.torch (2.13.0 and 2.6.0)": {"env": {"packages": {"torch": "2.6.0"}}},
}
"""What is said of a difference from `static`, and the difference."""


@pytest.mark.slow
def test_arms_that_differ_in_what_forbids_are_refused_or_forced_and_no_aa_arms(launch):
    broken = {"broken": {"status": "oom", "steps_written": 30}}
    forced = {key: {**fields, "slowdown": 1.5} for key, fields in (FORBIDDEN | broken).items()}
    runs = launch(4, static={}, partition={}, **forced)
    first, second = (runs[name][at : at + 1] for name, at in (("static", 0), ("partition", 1)))
    for key, arm in {"train.seed (0 and 1)": second, **{key: runs[key][:1] for key in FORBIDDEN}}.items():
        with pytest.raises(NotComparable) as caught:
            compare({"static": first, "other": arm})
        assert (key in caught.value.message, caught.value.exit_code) == (True, 5)
    partition, *others = compare(runs, force=True)
    assert (partition.aa_noise, partition.verdict, len(others)) == (None, "FASTER", len(forced))
    assert {(other.verdict, other.aa, other.record().aa) for other in others} == {("INCOMPARABLE", False, False)}


@pytest.mark.slow
def test_partial_launches_beside_whole_ones_are_left_out_whether_forced_or_not(launch, make_run):
    runs = launch(3, static={}, partition={})
    runs["partition"][1] = merge_run(make_run("partition", "broken", status="oom", steps_written=30))
    (found,), (forced,) = compare(runs), compare(runs, force=True)
    assert (forced.speedup.pairs, forced.verdict) == (found.speedup.pairs, found.verdict) == (2, found.verdict)
    assert any(reason.startswith("broken is partial") for reason in found.pairing.left_out)


FOUR = {
    "static": {},
    "partition": {},
    "prefix": {"slowdown": 1.5},
    "other": {"policy": "partition", **COST},
}


@pytest.fixture(scope="module")
def four(make_shared_run: Make) -> Terms:
    """Four arms of six launches each."""
    return terms(named_arms(launches(make_shared_run, 6, **FOUR)), Analysis())


def cut(shared: Terms, arms: int, number: int, **changes: object) -> Terms:
    """The first arms and launches."""
    return replace(shared, arms=[replace(arm, runs=arm.runs[:number]) for arm in shared.arms[:arms]], **changes)


def pairs_of(shared):
    return compare_pairs(shared, compare_candidates(shared))


def p_of(pair):
    """Of a pair by itself."""
    joint = pair.joint
    ratio, spread = joint.ratio, joint.spread
    return p_value(math.log(ratio.estimate), spread.sd / math.sqrt(ratio.pairs), spread.df)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("launches", [2, 4])
def test_a_pair_says_one_thing(four, number, launches):
    """The interval, the p value, who is faster and the verdict of every pair; those with the baseline are its own."""
    shared = cut(four, number, launches)
    known = [vars(item.record()) for item in compare_candidates(shared)]
    records = [pair.pair_record() for pair in pairs_of(shared)]
    assert [
        {key: getattr(record, key) for key in with_baseline}
        for record, with_baseline in zip(records, known, strict=False)
    ] == known
    for record in records:
        low, high = record.interval
        assert (low > 1 or high < 1) == (record.p_holm < 0.05)
        faster = {"FASTER": record.candidate, "SLOWER": record.baseline}.get(record.verdict)
        assert record.faster == faster and (faster is None or record.p_holm < 0.05)
    if number == 2:
        assert records[0].ci_joint == pytest.approx(records[0].ci95)


@pytest.mark.slow
def test_arms_without_common_launches_have_their_own_spreads(four):
    """`static` and `partition` share seeds 0 to 2, `static` and `prefix` 3 to 5: these two cannot be paired at all."""
    static, partition, prefix, _ = four.arms
    apart = [static, replace(partition, runs=partition.runs[:3]), replace(prefix, runs=prefix.runs[3:])]
    pairs = pairs_of(replace(four, arms=apart))
    assert [pair.pair_record().spread for pair in pairs] == ["own", "own"]
    ratio = pairs[0].speedup
    error = ratio.half_width / stats.t.ppf(0.975, 2)
    assert p_of(pairs[0]) == pytest.approx(2 * stats.t.sf(abs(math.log(ratio.estimate)) / error, 2))


@pytest.mark.slow
def test_a_launch_of_the_first_stage_that_was_repeated_stays_in_it(four):
    shared = cut(four, 4, 5, first=3)
    later = {}
    for arm in shared.arms:
        again, *others = arm.runs
        again = replace(again, facts=replace(again.facts, started="2027-01-01T00:00:00+00:00"))
        later[arm.label] = [again, *others]
    usual, repeated = (
        [(p_of(pair), pair.speedup.half_width) for pair in pairs_of(replace(shared, arms=arms))]
        for arms in (shared.arms, named_arms(later))
    )
    assert repeated == [pytest.approx(found) for found in usual]
    assert all(pair.joint.spread.df <= 2 * (3 - 1) for pair in pairs_of(shared)), "of the first stage alone"


@pytest.mark.slow
def test_two_candidates_that_cannot_be_compared_are_said_so_and_not_tested(four):
    """What forbids it is not in the way of other pairs, whose p values are held jointly without it."""
    shared = cut(four, 3, 4)
    first = compare_candidates(shared)
    *arms, last = shared.arms
    larger = [
        replace(run, facts=replace(run.facts, config=changed(run.facts.config, {"train.global_batch": 32})))
        for run in last.runs
    ]
    *known, unlike = compare_pairs(replace(shared, arms=[*arms, replace(last, runs=tuple(larger))]), first)
    assert (unlike.verdict, unlike.joint, unlike.faster) == ("INCOMPARABLE", None, None)
    assert [pair.pair_record().p_holm for pair in known] == pytest.approx(holm([p_of(pair) for pair in known]))


SEEN = {"foreign_gradient": 0.0213, "output_difference": 0.1, "gradient_difference": 0.3, "tolerance": 1e-5}
LEAKS = {"packed_rows": {**SEEN, "leak": "in fp32, the gradient … is 0.0213, not 0"}}
SHIFTS = {"packed_rows": {**SEEN, "foreign_gradient": 0.0, "leak": "in fp32, outputs differ"}}
HOLDS = {"packed_rows": {**SEEN, "foreign_gradient": 0.0, "leak": None}}


def flattened(launch, env, **more):
    """The comparison of an arm of flattened rows, and what checks find."""
    fields = {"policy": "partition", "env": env, "overrides": ("workload.layout=flattened",), **more}
    runs = launch(2, static={}, theirs=fields)
    (found,) = compare(runs)
    return found, {finding.id for finding in findings(runs)}


@pytest.mark.slow
@pytest.mark.parametrize("env", [LEAKS, SHIFTS, {}], ids=["sees", "differs", "not looked at"])
def test_losses_are_not_held_against_each_other(launch, env):
    """Not even equal ones: nothing promises that they are."""
    found, checks = flattened(launch, env)
    assert (found.level, found.loss_max_rel_diff, found.record().same_work) == ("tokens", None, False)
    assert found.recovery is None or not env
    assert ("eval.loss" in found.improvement_percent) == (not env), "its evaluations are of something else"
    assert "throughput_tokens_per_s.mean" in found.improvement_percent
    assert "loss_parity" not in checks


def test_where_attention_keeps_samples_apart_it_is_an_arm_like_any_other(launch):
    found, checks = flattened(launch, HOLDS)
    assert (found.level, found.record().leak) == ("step", None) and found.loss_max_rel_diff is not None
    assert "samples_see_each_other" not in checks
    wrong, checks = flattened(launch, HOLDS, loss_shift=0.05)
    assert wrong.loss_max_rel_diff > 0.01 and "loss_parity" in checks


WOBBLE = (1.0, 1.02, 0.99, 1.01, 0.985, 1.0)
"""What launches multiply the P95 of all arms by."""


def planted(shared: Terms, **arms: tuple[float, float]) -> Terms:
    """Arms whose P95 is that of `static` times a factor, which every other launch has more of by a relative spread."""
    wanted = {"static": (1.0, 0.0), **arms}
    chosen = [next(arm for arm in shared.arms if arm.label == name) for name in wanted]
    summaries = {
        run.run.id: {
            **shared.summaries[run.run.id],
            "step_time_ms": {"mean": 80.0, "p95": 100 * wobble * factor * (1 + spread * (-1) ** index)},
        }
        for arm, (factor, spread) in zip(chosen, wanted.values(), strict=True)
        for index, (run, wobble) in enumerate(zip(arm.runs, WOBBLE, strict=True))
    }
    return replace(shared, arms=chosen, summaries=summaries)


def tail_of(found: Comparison) -> TailRecord:
    assert found.tail is not None
    return found.tail


@pytest.mark.parametrize(
    ("factor", "spread", "word"),
    [(0.9, 0.001, "FASTER"), (1.1, 0.001, "SLOWER"), (1.003, 0.001, "SAME"), (0.97, 0.04, "AMBIGUOUS")],
)
def test_the_tail_is_told_by_its_own_pairs_whatever_the_total_time_is(
    four: Terms, factor: float, spread: float, word: str
) -> None:
    """It takes less time in all; of P95 both ways, sameness and ambiguity were planted."""
    shared = planted(four, partition=(factor, spread))
    (found,) = compare_candidates(shared)
    tail = tail_of(found)
    assert (found.verdict, tail.verdict) == ("FASTER", word)
    before, after = ([shared.summaries[run.run.id]["step_time_ms"]["p95"] for run in arm.runs] for arm in shared.arms)
    ratio = paired_ratio(before, after)
    assert (tail.speedup, tail.interval) == (pytest.approx(ratio.estimate), pytest.approx(ratio.ends))
    assert (tail.launches_needed is None) == (word != "AMBIGUOUS")


def test_an_unclear_tail_has_the_number_of_launches_that_would_show_its_difference(four: Terms) -> None:
    """Of few launches no number, and of one no interval."""
    shared = planted(four, partition=(0.97, 0.04))
    (found,) = compare_candidates(shared)
    tail = tail_of(found)
    low, high = tail.interval or (0, 0)
    spread = math.log(high / low) / 2 * math.sqrt(6) / stats.t.ppf(0.975, 5)
    needed, aim = tail.launches_needed, abs(math.log(tail.speedup))
    assert needed is not None and needed > 6
    assert smallest_shown(spread, needed) <= aim < smallest_shown(spread, needed - 2)
    for number, word in ((1, "ESTIMATE"), (2, "AMBIGUOUS")):
        (found,) = compare_candidates(cut(shared, 2, number))
        tail = tail_of(found)
        assert (tail.verdict, tail.interval is None, tail.launches_needed) == (word, number == 1, None)
        assert (tail.change is None) == (number == 1) == (tail.turned.change is None)


@pytest.mark.slow
def test_equal_arms_that_differ_in_the_tail_take_it_from_the_others(launch) -> None:
    shared = terms(named_arms(launch(6, static={}, twin={}, partition={})), Analysis())
    twin, partition = compare_candidates(planted(shared, twin=(1.2, 0.001), partition=(0.9, 0.001)))
    assert (twin.tail, tail_of(partition).verdict) == (None, "AMBIGUOUS")
