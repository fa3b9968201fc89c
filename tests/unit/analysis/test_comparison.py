"""Arms compared: with the baseline, with each other, with leaks, and over ranks."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from compared import compare_arms, terms
from scipy import stats

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.arms import named_arms, seconds_per_unit
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.comparison import compare_candidates, compare_pairs
from dynbench.analysis.merge import merge_run
from dynbench.analysis.selection import Selection
from dynbench.analysis.verdict import Verdict, arm_variances, holm, launch_table, of_two, p_value
from dynbench.config.schema import Analysis
from dynbench.errors import NotComparable
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def compare(runs, settings=None, **options):
    return compare_arms(named_arms(runs), settings or Analysis(), **options)


@pytest.mark.slow
def test_the_interval_of_two_stages_keeps_the_spread_of_the_first(launch):
    runs = launch(6, static={}, partition={})
    (plain,), (staged,) = compare(runs), compare(runs, first=4)
    (early,) = compare({name: arm[:4] for name, arm in runs.items()})
    assert (staged.speedup.estimate, staged.speedup.pairs) == (plain.speedup.estimate, 6)
    assert staged.speedup.half_width == pytest.approx(early.speedup.half_width * (4 / 6) ** 0.5)
    assert (staged.record().first_stage, plain.record().first_stage) == (4, None)


STATIC = {"policy": "static"}
COST = {"overrides": ("schedule.cost_type=attention",)}


def timed(run, factor):
    return replace(run, blocks=run.blocks.with_columns(time_ms=run.blocks["time_ms"] * factor))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "window"])
def test_equal_arms_that_came_out_different_are_noise_and_so_is_as_much_between_others(launch, policy):
    alike = {"policy": policy, "noise": 0.0}
    made = launch(4, a=alike, a2=alike, other={**alike, **COST})
    for launches, factor in itertools.product((1, 2, 4), (1.213, 1 / 1.213)):
        runs = {name: arm[:launches] for name, arm in made.items()}
        runs["a2"] = [timed(run, (1 + 0.002 * (-1) ** at) / factor) for at, run in enumerate(runs["a2"])]
        runs["other"] = [timed(run, 1 / 1.15) for run in runs["other"]]
        aa, other = compare(runs)
        assert (aa.aa, other.aa) == (True, False)
        assert aa.verdict == other.verdict == (Verdict.ESTIMATE if launches == 1 else Verdict.AMBIGUOUS)
        assert aa.reason.startswith("a and a2 are configured alike, so their ratio of ")
        assert "is the machine's noise" in aa.reason
        assert (aa.recovery, aa.aa_noise) == (None, None)
        assert (other.noise, other.aa_noise > 0.18) == (0.02, True)


@pytest.mark.slow
def test_an_aa_arm_whose_launches_differ_takes_faster_from_the_others_and_never_makes_them_the_same(launch):
    """Two launches, 1.10 with a narrow interval: FASTER; a twin that differs by 0 and 2 % knows nothing below 13 %."""
    same = {"policy": "static", "noise": 0.0}
    runs = launch(2, static=same, other={**same, **COST}, twin=same)

    def held(name, factors):
        ours = zip(runs["static"], runs[name], factors, strict=True)
        return [timed(run, static.time_ms / run.time_ms * factor) for static, run, factor in ours]

    others = held("other", (1 / 1.099, 1 / 1.097))
    (alone,) = compare({"static": runs["static"], "other": others})
    again, beside = compare({"static": runs["static"], "twin": held("twin", (1.0, 1.02)), "other": others})
    assert (alone.verdict, beside.verdict) == (Verdict.FASTER, Verdict.AMBIGUOUS)
    assert (again.noise, beside.noise, again.aa_noise) == (0.02, 0.02, None)
    assert beside.aa_noise > 0.13
    assert beside.aa_noise == pytest.approx(again.speedup.high / again.speedup.estimate - 1, rel=1e-6)
    assert beside.record().reason_said["say"] == "reason.beside_aa"


@pytest.mark.parametrize("arms", [("static", "partition"), ("static", "static", "partition"), ("static",)])
def test_launches_of_other_settings_are_no_launches_of_one_arm(make_run, arms):
    """Planted: every arm's second launch was trained with 20 steps, the first with 40; each pair agrees."""
    names = [f"{policy}{index}" for index, policy in enumerate(arms)]
    runs = {
        name: [merge_run(make_run(policy, steps=steps, seed=seed)) for seed, steps in enumerate((40, 20))]
        for name, policy in zip(names, arms, strict=True)
    }
    with pytest.raises(NotComparable, match=r"the launches of static0 .* train\.steps \(40 and 20\)"):
        compare(runs)
    for found in compare(runs, force=True):
        assert (found.verdict, dict(found.forbidden)) == (Verdict.INCOMPARABLE, {"train.steps": (40, 20)})


@pytest.mark.slow
def test_a_forced_arm_that_differs_in_what_forbids_is_no_aa_arm(launch):
    runs = launch(4, static={}, partition={})
    for fields in (
        {"fingerprint": "data-2"},
        {"steps": 50},
        {"overrides": ("workload.max_length=64",)},
        {"overrides": ("train.learning_rate=0.5",)},
        {"env": {"cpu_model": "Other CPU"}},
        {"status": "oom", "steps_written": 30},
    ):
        forced = launch(4, other={**STATIC, **fields, "slowdown": 1.5})
        other, partition = compare({"static": runs["static"], **forced, "partition": runs["partition"]}, force=True)
        assert (other.verdict, other.aa, other.record().model_dump()["aa"]) == (Verdict.INCOMPARABLE, False, False)
        assert partition.aa_noise is None
        assert partition.verdict == Verdict.FASTER


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"seed": 1}, "train.seed (0 and 1)"),
        ({"global_batch": 32}, "train.global_batch (16 and 32)"),
        ({"steps": 30}, "train.steps (40 and 30)"),
        ({"world_size": 4}, "world_size (2 and 4)"),
        ({"fingerprint": "data-2"}, "env.data.fingerprint (data-1 and data-2)"),
        ({"overrides": ("workload.max_length=64",)}, "workload.max_length (256 and 64)"),
        ({"env": {"cpu_model": "Other CPU"}}, "env.cpu_model (Test CPU and Other CPU)"),
        ({"env": {"packages": {"torch": "2.6.0"}}}, "env.packages.torch (2.13.0 and 2.6.0)"),
        (
            {"env": {"devices": {"ranks": [{"name": "H200"}]}}, "overrides": ("launch.device=cuda",)},
            "launch.device (auto and cuda)",
        ),
    ],
)
def test_runs_that_differ_in_more_are_incomparable(launch, fields, key):
    with pytest.raises(NotComparable) as caught:
        compare(launch(1, static={}, partition=fields))
    assert key in caught.value.message
    assert caught.value.exit_code == 5


@pytest.mark.slow
def test_partial_launches_beside_whole_ones_are_left_out_whether_forced_or_not(launch, make_run):
    runs = launch(3, static={}, partition={})
    runs["partition"][1] = merge_run(make_run("partition", "broken", status="oom", steps_written=30))
    (found,), (forced,) = compare(runs), compare(runs, force=True)
    assert (forced.speedup.pairs, forced.verdict) == (found.speedup.pairs, found.verdict) == (2, found.verdict)
    assert any(reason.startswith("broken is partial") for reason in found.pairing.left_out)


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
    variances = dict(zip((arm.label for arm in arms), arm_variances(launch_table(arms, seconds_per_unit)), strict=True))
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
def test_a_launch_of_the_first_stage_that_was_repeated_stays_in_it(launch):
    runs = arms_of(launch, 4, launches=5)
    arms = named_arms(runs)
    usual = [(p_of(pair), pair.speedup.half_width) for pair in pairs_of(arms, first=3)]
    for arm in runs.values():
        object.__setattr__(arm[0].facts, "started", "2027-01-01T00:00:00+00:00")
    again = [(p_of(pair), pair.speedup.half_width) for pair in pairs_of(named_arms(runs), first=3)]
    assert again == [pytest.approx(found) for found in usual]


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


SEEN = {"foreign_gradient": 0.0213, "output_difference": 0.1, "gradient_difference": 0.3, "tolerance": 1e-5}
LEAKS = {"packed_rows": {**SEEN, "leak": "in fp32, the gradient … is 0.0213, not 0"}}
SHIFTS = {"packed_rows": {**SEEN, "foreign_gradient": 0.0, "leak": "in fp32, outputs differ"}}
HOLDS = {"packed_rows": {**SEEN, "foreign_gradient": 0.0, "leak": None}}
FLATTENED = ("workload.layout=flattened",)


def flattened(merged, env, policy="partition", **more):
    return merged(policy, env=env, overrides=FLATTENED, **more)


def compared(merged, env, **more):
    runs = {"static": [merged("static", seed=seed) for seed in range(2)]}
    runs["theirs"] = [flattened(merged, env, seed=seed, **more) for seed in range(2)]
    arms = named_arms(runs)
    (found,) = compare_arms(arms, Analysis())
    return found, run_checks(Evidence(arms, [found], Analysis()))


@pytest.mark.parametrize("env", [LEAKS, SHIFTS, {}], ids=["sees", "differs", "not looked at"])
def test_losses_are_not_held_against_each_other(merged, env):
    """Not even equal ones: nothing promises that they are."""
    found, findings = compared(merged, env)
    assert (found.level, found.loss_max_rel_diff, found.record().same_work) == ("tokens", None, False)
    assert found.recovery is None or not env
    assert ("eval.loss" in found.improvement_percent) == (not env), "its evaluations are of something else"
    assert "throughput_tokens_per_s.mean" in found.improvement_percent
    assert "loss_parity" not in {finding.id for finding in findings}
    assert found.verdict in (Verdict.FASTER, Verdict.AMBIGUOUS, Verdict.SLOWER, Verdict.SAME)


def test_where_attention_keeps_samples_apart_it_is_an_arm_like_any_other(merged):
    found, findings = compared(merged, HOLDS)
    assert (found.level, found.record().leak) == ("step", None) and found.loss_max_rel_diff is not None
    assert "samples_see_each_other" not in {finding.id for finding in findings}
    wrong, findings = compared(merged, HOLDS, loss_shift=0.05)
    assert wrong.loss_max_rel_diff > 0.01 and "loss_parity" in {finding.id for finding in findings}


Make = Callable[..., Run]
NAIVE, FLAT, PS = ("sync.name=naive",), ("sync.name=flat",), ("sync.name=ps",)
CROWDED = {"env": {"cpu_cores": {"present": 2, "usable": 2, "quota": None}}}


@pytest.fixture
def arms(make_run: Make) -> dict[str, list[Run]]:
    """Two strategies over one, two and four ranks that train, and a server with one and two workers."""

    def launches(ranks: int, how: tuple[str, ...], **fields: object) -> list[Run]:
        made = {"world_size": ranks, "overrides": how, "noise": 0.0, **fields}
        return [make_run("static", seed=seed, **made) for seed in range(2)]

    return {
        "naive_1": launches(1, NAIVE),
        "naive_2": launches(2, NAIVE),
        "naive_4": launches(4, NAIVE, **CROWDED),
        "naive_2_weak": launches(2, NAIVE, global_batch=32),
        "flat_2": launches(2, FLAT, slowdown=0.5),
        "flat_4": launches(4, FLAT, slowdown=0.5),
        "ps_1": launches(1, PS, servers=1),
        "ps_2": launches(2, PS, servers=1),
    }


@pytest.mark.slow
def test_each_strategy_is_scaled_against_its_own_fewest_ranks(arms: dict[str, list[Run]], store: RunStore) -> None:
    report = analyze_runs(Selection(arms=arms, question="topology"), store, Analysis())
    found = {one.arm: one for one in report.scaling}
    assert {name: (one.kind, one.against) for name, one in found.items()} == {
        "naive_1": ("reference", "naive_1"),
        "naive_2": ("strong", "naive_1"),
        "naive_4": ("strong", "naive_1"),
        "naive_2_weak": ("weak", "naive_1"),
        "flat_2": ("reference", "flat_2"),
        "flat_4": ("strong", "flat_2"),
        "ps_1": ("reference", "ps_1"),
        "ps_2": ("strong", "ps_1"),
    }
    for one in found.values():
        fewer = found[one.against]
        assert one.efficiency == pytest.approx(one.speedup * fewer.workers / one.workers)
        assert one.efficiency_of_ranks == pytest.approx(one.speedup * fewer.world_size / one.world_size)
        assert one.units_per_s / fewer.units_per_s == pytest.approx(one.speedup, rel=0.02)
    assert (found["ps_2"].workers, found["ps_2"].world_size) == (2, 3)
    assert found["ps_2"].efficiency_of_ranks > found["ps_2"].efficiency, "a server is shared by more workers"
    by_candidate = {item.candidate.label: item.efficiency for item in report.comparisons}
    assert by_candidate == {name: pytest.approx(found[name].efficiency) for name in by_candidate}
    assert json.loads((report.folder.path / "comparison.json").read_text())["scaling"][0]["arm"] == "naive_1"
