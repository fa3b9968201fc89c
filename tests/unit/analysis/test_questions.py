"""What a comparison asks: found from what differs, or named; what is beyond it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared import compare_arms

from dynbench.analysis.arms import named_arms, seconds_per_unit
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.comparability import all_differences
from dynbench.analysis.figures import FIGURES
from dynbench.analysis.levels import LEAST_TOLERANCE
from dynbench.analysis.measures import METRICS
from dynbench.analysis.merge import merge_run
from dynbench.analysis.question import ALWAYS, NEVER, SAMPLES, within
from dynbench.analysis.questions import DEFAULT, QUESTIONS, find_question, question_named, settings_differences
from dynbench.analysis.verdict import Verdict
from dynbench.cli.analyze import command as analyze
from dynbench.cli.compare import command as compare
from dynbench.config.digest import changed, flatten
from dynbench.config.layers import load_config
from dynbench.config.schema import Analysis, Config
from dynbench.errors import NotComparable, UsageError

ALONE = {
    "schedule": ("schedule.policy", "workload.layout", "launch.slowdown"),
    "sync": ("sync.name", "sync.bucket_mb"),
    "compress": ("compress.name", "compress.error_feedback"),
    "precision": ("train.precision",),
    "scaling": ("launch.nproc", "launch.nnodes", "launch.world_size", "world_size"),
}
"""Question to keys that raise it, and no other."""


def keys(*named: str) -> dict[str, tuple[object, object]]:
    return dict.fromkeys(named, ("a", "b"))


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, raised in ALONE.items() for key in raised])
def test_a_question_is_found_from_what_differs(name, key):
    assert find_question([keys(key)]).name == name
    assert find_question([keys(key, *ALWAYS)]).name == name
    assert QUESTIONS[name].forbidden(keys(key)) == {}


def test_nothing_that_raises_one_is_the_default():
    assert find_question([]) is find_question([{}, keys("train.seed", "train.eval_every", "probe.run")]) is DEFAULT


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.name)
def test_every_setting_outside_a_question_is_refused(question):
    """Each key of the configuration by itself, and the facts: none passes that the question does not list."""
    every = [*flatten(Config()), "world_size", "env.cpu_model", "env.data.fingerprint", "env.devices", "rows"]
    listed = {key for key in every if within(key, (*ALWAYS, *question.asks, *question.follows))} - {*NEVER}
    assert {key for key in every if not question.forbidden(keys(key))} == listed
    assert "train.global_batch" not in listed and "train.seed" not in listed and "workload.model" not in listed


def test_each_key_raises_at_most_one_question():
    known = [question for question in QUESTIONS.values() if not question.named_only]
    for key in flatten(Config()):
        assert sum(question.raised_by([key]) for question in known) <= 1, key


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.name)
def test_what_a_question_shows_exists(question):
    assert {*question.metrics} <= {metric.key for metric in METRICS}
    assert {*question.figures} <= {*FIGURES["train"]}
    assert QUESTIONS[question.name] is question_named(question.name) is question


@pytest.mark.parametrize("command", [analyze, compare])
def test_the_option_lists_every_question(command):
    (said,) = [option.help for option in command.params if option.name == "question"]
    assert [name for name in QUESTIONS if name not in said] == []


def test_a_probe_of_its_own_belongs_to_a_precision_as_to_a_policy():
    assert find_question([keys("train.precision", "schedule.capacity", "probe.run")]).name == "precision"
    assert find_question([keys("schedule.policy", "schedule.capacity", "probe.run")]).name == "schedule"
    assert find_question([keys("sync.name", "schedule.objective")]).name == "sync", "ranks meet otherwise"
    assert find_question([keys("schedule.micro_batches", "schedule.objective")]).name == "schedule"
    assert find_question([keys("launch.nproc", "world_size", "schedule.capacity", "launch.threads")]).name == "scaling"


@pytest.mark.parametrize("named", ["schedul", "", "question"])
def test_no_such_question_is_answered_with_those_there_are(named):
    with pytest.raises(UsageError, match="no such question") as caught:
        find_question([{}], named)
    assert "schedule, sync, compress, precision, scaling, levers" in caught.value.hint


@pytest.fixture
def launch(make_run):
    """`launch(static={}, other={…})`: two launches of each arm of the policy static."""

    def make(**arms):
        runs = {name: [] for name in arms}
        for _ in range(2):
            for name, fields in arms.items():
                runs[name].append(merge_run(make_run(**{"policy": "static", **fields})))
        return runs

    return make


def compared(runs, question=None, **options):
    return compare_arms(named_arms(runs), Analysis(), question=question, **options)


PRECISION = {"overrides": ("train.precision=bf16",)}
BUCKETS = {"overrides": ("sync.bucket_mb=1.0",)}
BOTH = {"overrides": ("train.precision=bf16", "sync.bucket_mb=1.0")}
POLICY = {"policy": "partition"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "name"),
    [
        ({"other": PRECISION}, "precision"),
        ({"other": BUCKETS}, "sync"),
        ({"other": POLICY}, "schedule"),
        ({"other": POLICY, "third": {"policy": "prefix"}}, "schedule"),
        ({"other": {}}, "schedule"),
    ],
)
def test_the_question_of_runs(launch, arms, name):
    found = compared(launch(static={}, **arms))
    assert {item.question.name for item in found} == {item.record().question for item in found} == {name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "key"),
    [
        ({"other": BOTH}, "sync.bucket_mb (25.0 and 1.0)"),
        ({"other": {**POLICY, **PRECISION}}, "train.precision (fp32 and bf16)"),
        ({"other": PRECISION, "third": BUCKETS}, "train.precision (fp32 and bf16)"),
    ],
)
def test_two_questions_at_once_are_refused_unless_named(launch, arms, key):
    runs = launch(static={}, **arms)
    with pytest.raises(NotComparable, match="the question is ") as caught:
        compared(runs)
    assert "differ in " in caught.value.message
    assert "--question levers" in caught.value.hint
    found = compared(runs, "levers")
    assert {item.question.name for item in found} == {"levers"}
    assert key.partition(" ")[0] in {key for item in found for key in item.compared}
    assert [(item.predicted, item.recovery) for item in found] == [(None, None)] * len(found)


@pytest.mark.parametrize("communicate", ["true", "false"])
def test_losses_are_compared_of_runs_that_train(launch, communicate):
    told = {"overrides": (f"sync.communicate={communicate}",)}
    for item in compared(launch(static=told, other={**POLICY, **told})):
        known = [item.loss_max_rel_diff is not None, item.loss_drift is not None]
        assert known == [communicate == "true"] * 2


@pytest.mark.slow
def test_the_wrong_name_says_which_question_it_is(launch):
    runs = launch(static={}, other=PRECISION)
    with pytest.raises(NotComparable, match=r"train\.precision \(fp32 and bf16\); the question is sync") as caught:
        compared(runs, "sync")
    assert "--question precision" in caught.value.hint
    (found,) = compared(runs, "sync", force=True)
    assert (found.verdict, [*found.forbidden]) == (Verdict.INCOMPARABLE, ["train.precision"])


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"overrides": ("workload.max_length=64",)}, {"seed": 1}, {"fingerprint": "d2"}])
@pytest.mark.parametrize("name", [None, *QUESTIONS])
def test_no_question_asks_about_other_data(launch, fields, name):
    with pytest.raises(NotComparable):
        compared(launch(static={}, other=fields), name)


RANKS = {"world_size": 4, "overrides": ("launch.threads=1",)}


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "level"), [(16, "step"), (32, "tokens")])
def test_ranks_scale_strongly_or_weakly(launch, batch, level):
    (found,) = compared(launch(two={}, four={**RANKS, "global_batch": batch}))
    assert (found.question.name, found.level) == ("scaling", level)
    assert found.efficiency == pytest.approx(found.speedup.estimate / 2)
    assert found.record().same_work == (level == "step")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [24, 64, 8])
def test_a_batch_that_does_not_grow_with_the_ranks_is_refused(launch, batch):
    with pytest.raises(NotComparable, match=rf"train\.global_batch \(16 and {batch}\); the question is scaling"):
        compared(launch(two={}, four={**RANKS, "global_batch": batch}))


@pytest.mark.slow
def test_the_efficiency_is_against_the_fewest_ranks_whatever_the_baseline(launch):
    runs = launch(four={"world_size": 4}, two={}, one={"world_size": 1})
    two, one = compared(runs)
    assert one.efficiency == pytest.approx(1.0)
    assert two.efficiency == pytest.approx(two.speedup.estimate / one.speedup.estimate / 2)


@pytest.mark.parametrize(("names", "refused"), [(("A", "A", "A", "A"), False), (("A", "A", "B", "B"), True)])
def test_more_devices_have_to_be_of_the_same_kind(launch, names, refused):
    few, many = ({"env": {"devices": {"ranks": [{"name": name} for name in each]}}} for each in (names[:2], names))
    runs = launch(two=few, four={**RANKS, **many})
    if refused:
        with pytest.raises(NotComparable, match=r"env\.devices"):
            compared(runs)
    else:
        assert compared(runs)[0].question.name == "scaling"


SERVED = {"sync.name": "served", "launch.nproc": 3}


@pytest.mark.parametrize(
    ("servers", "ranks", "batch", "other", "name"),
    [
        (0, 2, 16, {**SERVED, "ranks": (1, 3)}, "sync"),
        (0, 3, 16, {**SERVED, "ranks": (1, 3)}, "sync"),
        (1, 3, 16, {"launch.nproc": 5, "ranks": (1, 5)}, "scaling"),
        (1, 3, 16, {"launch.nproc": 5, "ranks": (1, 5), "train.global_batch": 32}, "scaling"),
        (1, 3, 15, {"launch.nproc": 5, "ranks": (1, 5), "train.global_batch": 25}, None),
        (0, 2, 16, {"sync.name": "served", "launch.nproc": 5, "ranks": (1, 5)}, "scaling"),
    ],
    ids=[
        "equal workers",
        "equal ranks",
        "more of both",
        "as many samples per worker",
        "per rank",
        "another strategy",
    ],
)
def test_equal_workers_or_equal_ranks_are_compared(launch, servers, ranks, batch, other, name):
    def run(merged, servers, world_size, **keys):
        devices = {"devices": {"ranks": [{"name": "A"}] * world_size}}
        config = changed(merged.facts.config, keys)
        facts = replace(merged.facts, servers=servers, world_size=world_size, config=config, env=devices)
        return replace(merged, facts=facts)

    (merged, _) = launch(static={})["static"]
    asked = {key: value for key, value in other.items() if key != "ranks"}
    one = run(merged, servers, ranks, **{"train.global_batch": batch, "launch.nproc": ranks})
    differing = all_differences(one, run(one, *other["ranks"], **asked))
    question = find_question([differing])
    if name is None:
        assert question.forbidden(differing)
    else:
        assert (question.name, question.forbidden(differing)) == (name, {})


@pytest.mark.parametrize("shift", [0.0, 0.2])
@pytest.mark.parametrize(("fields", "told"), [(PRECISION, True), (BUCKETS, False)])
def test_the_drift_of_the_loss_is_that_of_the_means(launch, fields, told, shift):
    runs = launch(static={}, other={**fields, "loss_shift": shift})
    (found,) = compared(runs)
    before = sum(run.measured["loss_global"].mean() for run in runs["static"]) / 2
    assert found.loss_drift == pytest.approx(shift / before, abs=1e-9)
    assert (found.question.loss_drift is not None) == told


def test_another_unit_of_work_is_counted_and_said(launch, monkeypatch):
    monkeypatch.setitem(QUESTIONS, "sync", replace(QUESTIONS["sync"], unit=SAMPLES))
    runs = launch(static={}, other=BUCKETS)
    (found,) = compared(runs)
    ratios = [
        seconds_per_unit(a, SAMPLES) / seconds_per_unit(b, SAMPLES)
        for a, b in zip(runs["static"], runs["other"], strict=True)
    ]
    assert found.speedup.estimate == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert seconds_per_unit(runs["static"][0], SAMPLES) == pytest.approx(runs["static"][0].time_ms / 1000 / (16 * 40))
    assert "in samples per second" in found.reason
    assert found.record().unit == "sample"


def test_configurations_tell_their_ranks_apart():
    few, many = (load_config(None, ["launch.launcher=virtual", f"launch.world_size={ranks}"]) for ranks in (1, 4))
    assert find_question([settings_differences(few, many)]).name == "scaling"
    assert settings_differences(few, many)["world_size"] == (1, 4)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (BUCKETS, [("loss_parity", "fail")]),
        ({"overrides": ("compress.error_feedback=false",)}, [("loss_drift", "warn")]),
        ({"overrides": ("compress.error_feedback=false",), "loss_shift": 0.001}, []),
    ],
)
def test_equal_losses_are_asked_of_those_that_promise_them(launch, fields, found):
    """Of a compressor only what it drifts by: with the rule of `sync`, each of its steps would fail the check."""
    arms = named_arms(launch(static={}, other={"loss_shift": 0.2, **fields}))
    comparisons = compare_arms(arms, Analysis())
    findings = run_checks(Evidence(arms, comparisons, Analysis()))
    assert [(item.id, item.severity) for item in findings if item.id.startswith("loss_")] == found
    assert comparisons[0].loss_max_rel_diff > LEAST_TOLERANCE


def test_numbers_of_ranks_are_no_other_environment(launch):
    few, many = (
        {"env": {"devices": {"ranks": [{"rank": rank, "name": "A"} for rank in range(ranks)]}}} for ranks in (1, 4)
    )
    arms = named_arms(launch(one={"world_size": 1, **few}, four={**RANKS, **many}))
    findings = run_checks(Evidence(arms, compare_arms(arms, Analysis()), Analysis()))
    assert [item.seen for item in findings if item.id == "environment"] == []


@pytest.mark.parametrize(
    ("batch", "steps", "warmup", "refused"),
    [
        (64, 10, 2, set()),
        (64, 10, 0, {"train.global_batch", "train.steps", "train.warmup_steps", "warmup_samples"}),
        (64, 10, 8, {"train.global_batch", "train.steps", "warmup_samples"}),
        (64, 20, 2, {"train.global_batch", "train.steps", "train.warmup_steps", "measured_samples"}),
        (64, 40, 8, {"train.global_batch", "measured_samples", "warmup_samples"}),
        (16, 10, 8, {"train.steps", "measured_samples"}),
    ],
)
def test_steps_may_be_fewer_where_their_batches_are_as_much_larger(batch, steps, warmup, refused):
    fixed = ("train.global_batch=16", "train.steps=40", "train.warmup_steps=8")
    other = (f"train.global_batch={batch}", f"train.steps={steps}", f"train.warmup_steps={warmup}")
    found = settings_differences(load_config(None, fixed), load_config(None, (*other, "workload.layout=packed")))
    assert {*question_named("steps").forbidden(found)} == refused
    assert find_question([found]).name != "steps"


def test_no_warmup_is_as_many_samples_of_any_batch():
    one, other = (
        load_config(None, (f"train.global_batch={batch}", f"train.steps={steps}", "train.warmup_steps=0"))
        for batch, steps in ((16, 40), (64, 10))
    )
    assert question_named("steps").forbidden(settings_differences(one, other)) == {}
