import pytest
from compared import compare_arms

from dynbench.analysis.arms import group_runs, named_arms, seconds_per_unit
from dynbench.analysis.merge import merge_run
from dynbench.analysis.question import SAMPLES
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis
from dynbench.errors import NotComparable


@pytest.fixture
def launch(make_run):
    """Merged runs in ABBA order: `launch(4, static={}, partition={})` gives four per arm."""

    def make(launches, **arms):
        runs = {name: [] for name in arms}
        for block in range(launches):
            for name in list(arms) if block % 2 == 0 else list(arms)[::-1]:
                fields = {"policy": name, **arms[name]}
                fields["slowdown"] = fields.get("slowdown", 1.0) * (1 + 0.01 * ((block * 7 + len(name)) % 3 - 1))
                runs[name].append(merge_run(make_run(**fields)))
        return runs

    return make


def compare(runs, settings=None, **options):
    return compare_arms(named_arms(runs), settings or Analysis(), **options)


@pytest.mark.slow
def test_partition_against_static(launch):
    (found,) = compare(launch(4, static={}, partition={}))
    assert (found.verdict, found.level, found.speedup.pairs) == (Verdict.FASTER, "step", 4)
    assert found.speedup.low > 1
    assert found.loss_max_rel_diff < 1e-12
    assert found.improvement_percent["step_time_ms.mean"] > 10
    gain = 100 * (found.speedup.estimate - 1)
    assert found.improvement_percent["throughput_tokens_per_s.mean"] == pytest.approx(gain)
    assert set(found.compared) == {"schedule.mode", "schedule.policy"}


def test_the_speedup_is_baseline_seconds_per_token_over_candidates(launch):
    runs = launch(1, static={}, partition={})
    (found,) = compare(runs)
    expected = seconds_per_unit(runs["static"][0]) / seconds_per_unit(runs["partition"][0])
    assert found.speedup.estimate == pytest.approx(expected)
    assert (found.verdict, found.record().model_dump()["ci95"]) == (Verdict.ESTIMATE, None)


@pytest.mark.slow
def test_the_interval_of_two_stages_keeps_the_spread_of_the_first(launch):
    runs = launch(6, static={}, partition={})
    (plain,), (staged,) = compare(runs), compare(runs, first=4)
    (early,) = compare({name: arm[:4] for name, arm in runs.items()})
    assert (staged.speedup.estimate, staged.speedup.pairs) == (plain.speedup.estimate, 6)
    assert staged.speedup.half_width == pytest.approx(early.speedup.half_width * (4 / 6) ** 0.5)
    assert (staged.record().first_stage, plain.record().first_stage) == (4, None)


@pytest.mark.slow
def test_what_equal_arms_differ_by_is_what_two_stages_say(launch):
    runs = launch(6, one=STATIC, two=STATIC, partition={})
    noise = compare({name: runs[name] for name in ("one", "two")}, first=4)[0].speedup.noise
    assert compare(runs, first=4)[1].aa_noise == pytest.approx(noise)


def test_work_is_counted_in_samples_where_they_have_no_lengths(launch):
    digits = {"policy": "static", "overrides": ("workload.name=mlp",)}
    flat = {"policy": "static", "overrides": (*digits["overrides"], "sync.name=flat")}
    runs = launch(1, ddp=digits, flat=flat)
    (found,) = compare(runs)
    one, other = (seconds_per_unit(arm[0], SAMPLES) for arm in runs.values())
    assert found.speedup.estimate == pytest.approx(one / other)
    assert (found.question.name, found.record().unit) == ("sync", "sample")
    assert "in samples per second" in found.reason and "token" not in found.reason
    shown = {*found.question.metrics, *found.question.overview}
    assert "throughput_samples_per_s.mean" in shown and "throughput_tokens_per_s.mean" not in shown
    (texts,) = compare(launch(1, ddp=STATIC, flat={**STATIC, "overrides": ("sync.name=flat",)}))
    assert texts.record().unit == "real token" and "in real tokens per second" in texts.reason


def test_prefix_compares_at_level_stream_without_loss_parity(launch):
    (found,) = compare(launch(2, static={}, prefix={}))
    assert (found.level, found.loss_max_rel_diff, found.record().model_dump()["same_work"]) == ("stream", None, False)


STATIC = {"policy": "static"}
COST = {"overrides": ("schedule.cost_type=attention",)}


def timed(run, factor):
    object.__setattr__(run, "blocks", run.blocks.with_columns(time_ms=run.blocks["time_ms"] * factor))


@pytest.mark.slow
def test_an_aa_comparison_is_not_called_different(launch):
    (found,) = compare(launch(4, one=STATIC, two=STATIC))
    assert found.verdict in (Verdict.SAME, Verdict.AMBIGUOUS)
    assert found.speedup.low < 1 < found.speedup.high
    assert found.record().model_dump()["aa"] is True


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.213, 1 / 1.213])
@pytest.mark.parametrize("launches", [1, 2, 4])
@pytest.mark.parametrize("policy", ["static", "partition", "window", "prefix"])
def test_equal_arms_that_came_out_different_are_noise_and_so_is_as_much_between_others(
    launch, factor, launches, policy
):
    alike = {"policy": policy, "noise": 0.0}
    runs = launch(launches, a=alike, a2=alike, other={**alike, "overrides": ("schedule.cost_type=attention",)})
    for index, run in enumerate(runs["a2"]):
        timed(run, (1 + 0.002 * (-1) ** index) / factor)
    for run in runs["other"]:
        timed(run, 1 / 1.15)
    aa, other = compare(runs)
    assert (aa.aa, other.aa) == (True, False)
    assert aa.verdict == (Verdict.ESTIMATE if launches == 1 else Verdict.AMBIGUOUS)
    assert aa.reason.startswith("a and a2 are configured alike, so their ratio of ")
    assert "is the machine's noise" in aa.reason
    assert (aa.recovery, aa.aa_noise) == (None, None)
    assert (other.noise, other.aa_noise > 0.18) == (0.02, True)
    assert other.verdict == (Verdict.ESTIMATE if launches == 1 else Verdict.AMBIGUOUS)


@pytest.mark.slow
def test_an_aa_arm_whose_launches_differ_takes_faster_from_the_others_and_never_makes_them_the_same(launch):
    """Two launches, 1.10 with a narrow interval: FASTER; a twin that differs by 0 and 2 % knows nothing below 13 %."""
    runs = launch(2, static={"policy": "static", "noise": 0.0}, other={"policy": "static", "noise": 0.0, **COST})
    for index, run in enumerate(runs["other"]):
        timed(run, runs["static"][index].time_ms / run.time_ms / (1.098 + 0.001 * (-1) ** index))
    (alone,) = compare(runs)
    twin = launch(2, twin={"policy": "static", "noise": 0.0})["twin"]
    for index, run in enumerate(twin):
        timed(run, runs["static"][index].time_ms / run.time_ms * (1.0, 1.02)[index])
    again, beside = compare({"static": runs["static"], "twin": twin, "other": runs["other"]})
    assert (alone.verdict, beside.verdict) == (Verdict.FASTER, Verdict.AMBIGUOUS)
    assert (again.noise, beside.noise, again.aa_noise) == (0.02, 0.02, None)
    assert beside.aa_noise > 0.13
    assert beside.aa_noise == pytest.approx(again.speedup.high / again.speedup.estimate - 1, rel=1e-6)
    assert beside.record().reason_said["say"] == "reason.beside_aa"


@pytest.mark.slow
def test_two_candidates_of_one_configuration_are_aa_too(launch):
    runs = launch(2, static={}, one={"policy": "partition"}, two={"policy": "partition"})
    for run in runs["two"]:
        timed(run, 1.5)
    assert [found.aa_noise > 0.3 for found in compare(runs)] == [True, True]


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


@pytest.mark.parametrize("key", ["launch.rdzv_id=other", "workload.cache_dir=/elsewhere", "analysis.confidence=0.9"])
def test_settings_in_which_launches_of_an_arm_may_differ_leave_it_aa(launch, key):
    (found,) = compare(launch(2, one=STATIC, two={**STATIC, "overrides": (key,)}))
    assert (found.aa, found.compared) == (True, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"fingerprint": "data-2"},
        {"steps": 50},
        {"overrides": ("workload.max_length=64",)},
        {"overrides": ("train.learning_rate=0.5",)},
        {"env": {"cpu_model": "Other CPU"}},
        {"status": "oom", "steps_written": 30},
    ],
)
def test_a_forced_arm_that_differs_in_what_forbids_is_no_aa_arm(launch, fields):
    runs = launch(2, static={}, other={**STATIC, **fields, "slowdown": 1.5}, partition={})
    other, partition = compare(runs, force=True)
    assert (other.verdict, other.aa, other.record().model_dump()["aa"]) == (Verdict.INCOMPARABLE, False, False)
    assert partition.aa_noise is None
    assert partition.verdict == Verdict.FASTER


@pytest.mark.slow
def test_a_slower_arm_is_called_slower(launch):
    slow = {"policy": "static", "slowdown": 1.1, "overrides": ("launch.slowdown={1: 1.1}",)}
    (found,) = compare(launch(4, static={}, slow=slow))
    assert found.verdict == Verdict.SLOWER
    assert "launch.slowdown" in found.compared


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


def test_another_configuration_of_the_model_is_incomparable(launch):
    first, second = ({"env": {"data": {"fingerprint": "d", "model": {"digest": digest}}}} for digest in "ab")
    with pytest.raises(NotComparable, match=r"env\.data\.model\.digest \(a and b\)"):
        compare(launch(1, static=first, partition=second))


def test_different_accelerators_are_incomparable(launch):
    arms = {
        "static": {"env": {"devices": {"ranks": [{"name": "A"}]}}},
        "partition": {"env": {"devices": {"ranks": [{"name": "B"}]}}},
    }
    with pytest.raises(NotComparable, match=r"env.devices"):
        compare(launch(1, **arms))


def test_a_forced_comparison_shows_numbers_without_a_verdict(launch):
    (found,) = compare(launch(2, static={}, partition={"fingerprint": "data-2"}), force=True)
    assert found.verdict == Verdict.INCOMPARABLE
    assert "env.data.fingerprint" in found.reason
    assert found.speedup.estimate > 1
    assert found.record().model_dump()["forced_over"] == {"env.data.fingerprint": ["data-1", "data-2"]}
    assert (found.recovery, found.record().model_dump()["recovered_share"]) == (None, None)


def test_virtual_ranks_are_named_beside_the_number(launch):
    fields = {"overrides": ("launch.launcher=virtual", "launch.world_size=2")}
    (found,) = compare(launch(2, static=fields, partition=fields))
    assert found.reason.endswith("(virtual ranks; communication: none)")


@pytest.mark.slow
def test_partial_launches_are_left_out(launch, make_run):
    runs = launch(3, static={}, partition={})
    runs["partition"][1] = merge_run(make_run("partition", "broken", status="oom", steps_written=20))
    (found,) = compare(runs)
    assert found.speedup.pairs == 2
    assert any(reason.startswith("broken is partial") for reason in found.pairing.left_out)


@pytest.mark.slow
def test_nothing_left_to_pair_is_incomparable(launch):
    with pytest.raises(NotComparable, match="is partial"):
        compare(launch(1, static={}, partition={"status": "failed", "steps_written": 20}))
    with pytest.raises(NotComparable, match="0 of 40 measured steps"):
        compare(launch(1, static={}, partition={"status": "failed", "steps_written": 5}), force=True)


def test_the_first_run_named_decides_the_baseline(launch):
    runs = launch(1, static={}, partition={})
    arms = group_runs([*runs["partition"], *runs["static"]])
    (found,) = compare_arms(arms, Analysis())
    assert (found.baseline.label, found.candidate.label) == ("partition", "static")
    assert found.speedup.estimate < 1


@pytest.mark.slow
def test_partial_launches_have_no_verdict_even_when_forced(launch):
    broken = {"status": "oom", "steps_written": 30}
    (found,) = compare(launch(2, static={}, partition=broken), force=True)
    assert found.verdict == Verdict.INCOMPARABLE
    assert "rows" in found.reason and found.speedup.estimate > 1


@pytest.mark.slow
def test_force_does_not_bring_partial_launches_beside_whole_ones(launch, make_run):
    runs = launch(3, static={}, partition={})
    runs["partition"][1] = merge_run(make_run("partition", "broken", status="oom", steps_written=30))
    (found,) = compare(runs, force=True)
    assert (found.speedup.pairs, found.verdict) == (2, compare(runs)[0].verdict)
