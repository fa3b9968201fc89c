"""What a comparison asks: found from what differs, or named; what is beyond it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.analysis.conftest import compare

from dynbench.analysis.arms import all_differences
from dynbench.analysis.differences import ALWAYS, NEVER, settings_differences, within
from dynbench.analysis.figures import FIGURES
from dynbench.analysis.measures import METRICS
from dynbench.analysis.questions import QUESTIONS, find_question, question_named
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, changed, flatten
from dynbench.errors import NotComparable

ALONE = {
    "schedule": ("schedule.policy", "workload.layout", "launch.slowdown"),
    "sync": ("sync.name", "sync.bucket_mb"),
    "compress": ("compress.name", "compress.error_feedback"),
    "precision": ("train.precision",),
    "bottleneck": ("launch.link_gbps",),
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


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.name)
def test_every_setting_outside_a_question_is_refused(question):
    """Each key of the configuration by itself, and the facts: none passes that the question does not list."""
    every = [*flatten(Config()), "world_size", "env.cpu_model", "env.data.fingerprint", "env.devices", "rows"]
    listed = {key for key in every if within(key, (*ALWAYS, *question.asks, *question.follows))} - {*NEVER}
    assert {key for key in every if not question.forbidden(keys(key))} == listed
    assert ("train.global_batch" in listed) == (question.name == "bottleneck")
    assert "train.seed" not in listed and "workload.model" not in listed


def test_each_key_raises_at_most_one_question():
    known = [question for question in QUESTIONS.values() if not question.named_only]
    for key in flatten(Config()):
        assert sum(question.raised_by([key]) for question in known) <= 1, key


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.name)
def test_what_a_question_shows_exists(question):
    assert {*question.metrics} <= {metric.key for metric in METRICS}
    assert {*question.figures} <= {*FIGURES["train"]}
    assert QUESTIONS[question.name] is question_named(question.name) is question


PRECISION = {"overrides": ("train.precision=bf16",)}
BUCKETS = {"overrides": ("sync.bucket_mb=1.0",)}
BOTH = {"overrides": ("train.precision=bf16", "sync.bucket_mb=1.0")}


@pytest.mark.slow
@pytest.mark.parametrize("arms", [{"other": BOTH}, {"other": PRECISION, "third": BUCKETS}], ids=["an arm", "two"])
def test_two_questions_at_once_are_refused_unless_named(launch, arms):
    runs = launch(2, static={}, **arms)
    with pytest.raises(NotComparable) as caught:
        compare(runs)
    assert "--question levers" in caught.value.hint
    found = compare(runs, question="levers")
    assert {item.question.name for item in found} == {"levers"}
    assert {key for item in found for key in item.compared} == {"train.precision", "sync.bucket_mb"}
    assert [(item.predicted_speedup, item.recovery) for item in found] == [(None, None)] * len(found)


RANKS = {"world_size": 4, "overrides": ("launch.threads=1",)}


@pytest.mark.parametrize(("names", "refused"), [(("A", "A", "A", "A"), False), (("A", "A", "B", "B"), True)])
def test_more_devices_have_to_be_of_the_same_kind(launch, names, refused):
    few, many = ({"env": {"devices": {"ranks": [{"name": name} for name in each]}}} for each in (names[:2], names))
    runs = launch(2, two=few, four={**RANKS, **many})
    if refused:
        with pytest.raises(NotComparable, match=r"env\.devices"):
            compare(runs)
    else:
        assert compare(runs)[0].question.name == "scaling"


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ((0, 2, 16), (1, 3, 16), "sync"),
        ((0, 3, 16), (1, 3, 16), "sync"),
        ((1, 3, 16), (1, 5, 16), "scaling"),
        ((1, 3, 16), (1, 5, 32), "scaling"),
        ((1, 3, 15), (1, 5, 25), None),
        ((0, 2, 16), (1, 5, 16), "scaling"),
    ],
    ids=("equal workers", "equal ranks", "more of both", "samples per worker", "samples per rank", "another strategy"),
)
def test_equal_workers_or_equal_ranks_are_compared(merged, one, other, name):
    """Of runs with so many servers, ranks and samples in a batch."""
    like = merged()

    def run(servers, ranks, batch):
        keys = {"launch.nproc": ranks, "train.global_batch": batch, **({"sync.name": "served"} if servers else {})}
        config, env = changed(like.facts.config, keys), {"devices": {"ranks": [{"name": "A"}] * ranks}}
        facts = replace(like.facts, servers=servers, world_size=ranks, config=config, env=env)
        return replace(like, facts=facts)

    differing = all_differences(run(*one), run(*other))
    question = find_question([differing])
    assert (question.name if name else None, not question.forbidden(differing)) == (name, name is not None)


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
