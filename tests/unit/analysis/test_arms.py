"""Arms, in what their runs differ, and which launch pairs with which."""

from __future__ import annotations

import itertools
import math
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import getitem
from types import SimpleNamespace

import pytest
from probes import resolved

from dynbench.analysis.arms import Arm, environment_differences, group_runs, named_arms, pair_launches
from dynbench.analysis.checks.comparisons import environment
from dynbench.analysis.questions import DEFAULT
from dynbench.analysis.stats import paired_ratio
from dynbench.analysis.verdict import decide
from dynbench.errors import UsageError
from dynbench.experiment.launch_plan import LaunchState, apart, plan_state
from dynbench.runs.atomic import jsonable
from dynbench.runs.provenance import collect


def ids(runs):
    return [run.run.id for run in runs]


def test_runs_that_differ_in_seed_only_are_launches_of_one_arm(merged):
    """Not where the data file changed between them; another seed may have other data."""
    a0, b0, b1, a1 = merged(), merged("partition"), merged("partition", seed=1), merged(seed=1)
    changed, subset = merged(fingerprint="changed"), merged("partition", fingerprint="subset", seed=2)
    arms = group_runs([b1, a0, changed, b0, a1, subset])
    assert [arm.label.split()[0] for arm in arms] == ["partition", "static", "static"]
    assert [ids(arm.runs) for arm in arms] == [ids([b0, b1, subset]), ids([a0, a1]), ids([changed])]


def test_arms_of_one_policy_are_told_apart_by_what_differs(merged):
    runs = [merged("partition", overrides=(f"schedule.cost_type={cost}",)) for cost in ("tokens", "attention")]
    labels = ["partition (cost_type=tokens)", "partition (cost_type=attention)"]
    assert [arm.label for arm in group_runs(runs)] == labels


def test_an_arm_without_a_run_is_refused(merged):
    with pytest.raises(UsageError, match="arm 'empty' has no run"):
        named_arms({"full": [merged("static")], "empty": []})


BLOCKS = 4
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SEEDS = (lambda block: 0, lambda block: 5 + block, lambda block: block % 2, lambda block: block // 2)
"""Of a block: one seed, as `compare` does, two in turn, two one after the other."""


def launch(arm, block, seed, at, *, partial=False, rows=10, together=None):
    """A launch as pairing sees it; `at` counts launches of the session."""
    started = (NOON + timedelta(minutes=at)).isoformat(timespec="microseconds")
    facts = SimpleNamespace(seed=seed, started=started, launch_id=together)
    seen = {"facts": facts, "partial": partial, "lacks": ("status is failed",) * partial}
    run, label = SimpleNamespace(id=f"{arm}{block}@{at}"), f"{arm}{block}"
    measured = SimpleNamespace(height=rows)
    return SimpleNamespace(run=run, label=label, arm=arm, block=block, at=at, measured=measured, **seen)


def session(text, seed_of=SEEDS[0], launch_of=None):
    """`"A0 B0x B0"`: launches in order; x marks a partial one."""
    return [
        launch(
            word[0],
            int(word[1]),
            seed_of(int(word[1])),
            at,
            partial=word.endswith("x"),
            together=launch_of and launch_of(word),
        )
        for at, word in enumerate(text.split())
    ]


def pair(launches, **options):
    arms = [Arm(arm, tuple(run for run in launches if run.arm == arm)) for arm in "AB"]
    return pair_launches(*arms, **options)


def names(pairing):
    return [base.label + other.label for base, other in pairing.pairs]


def abba_order(arms: str) -> tuple[LaunchState, ...]:
    return plan_state("r", "A", apart(arms, ""), BLOCKS, dict.fromkeys(arms, 0)).launches


@pytest.mark.parametrize("arms", ["AB", "BA", "ACB"])
@pytest.mark.parametrize("fault", ["removed", "partial", "without a measured step"])
def test_a_launch_that_is_missing_takes_its_partner_along_and_shifts_no_pair(arms, fault):
    order = [(at, planned) for at, planned in enumerate(abba_order(arms)) if planned.arm in "AB"]
    drift = [math.exp(0.05 * at) for at in range(len(arms) * BLOCKS)]
    for seed_of, (_, lost) in itertools.product(SEEDS, order):
        launches = []
        for at, each in order:
            usable = {"partial": each == lost, "rows": 10 * (each != lost or fault == "partial")}
            if each != lost or fault != "removed":
                launches.append(launch(each.arm, each.block, seed_of(each.block), at, **usable))
        pairing = pair(launches)
        kept = [block for block in range(BLOCKS) if block != lost.block]
        assert names(pairing) == [f"A{block}B{block}" for block in kept]
        assert len(pairing.left_out) == (1 if fault == "removed" else 2)
        ratio = paired_ratio(*([drift[run.at] for run in side] for side in zip(*pairing.pairs, strict=True)))
        assert decide(ratio, 0.02) not in ("FASTER", "SLOWER")


@pytest.mark.parametrize(
    ("launched", "pairs"),
    [
        ("A0 B0 A1 B1 A2 B2", "A0B0 A1B1 A2B2"),
        ("A0 A1 B1 A2 B2", "A1B1 A2B2"),
        ("A0 A1 A2 A3 B0 B1 B2 B3", "A0B0 A1B1 A2B2 A3B3"),
        ("A0x B0 B1x A1 A2 B2 B3 A3", "A2B2 A3B3"),
        ("B0 B1 A1 A2 B2 A3", "A1B1 A2B2"),
        ("A0 B0x B0 B1 A1", "A0B0 A1B1"),
        ("A0 B0x B1 A1 A2 B2 B3 A3 B0", "A1B1 A2B2 A3B3"),
        ("A0x A0 B0 B1 A1x A1", "A0B0 A1B1"),
        ("A0 B0x", ""),
    ],
)
def test_launches_by_hand(launched, pairs):
    assert " ".join(names(pair(session(launched)))) == pairs


def test_left_out_launches_say_why():
    pairing = pair([*session("A0 B0x B1 A1"), launch("B", 9, 7, at=9)])
    assert names(pairing) == ["A1B1"]
    assert pairing.left_out == (
        "A0 ran beside B0, which is partial",
        "B0 is partial (status is failed)",
        "B9 has no partner with seed 7",
    )


def test_partial_launches_pair_when_forced():
    assert names(pair(session("A0 B0x"), partial=True)) == ["A0B0"]
    assert names(pair([launch("A", 0, 0, 0), launch("B", 0, 0, 1, partial=True, rows=0)], partial=True)) == []


@pytest.mark.parametrize(
    ("launched", "pairs", "left_out"),
    [
        ("A0 B0 A1 B1 A2 B2", "A0B0 A1B1 A2B2", 0),
        ("B2 A2 A1 A0 B0", "A0B0 A2B2", 1),
        ("A0 B0 B1 A2 B2", "A0B0 A2B2", 1),
        ("A0 A1 A2 B2 B1x B0", "A0B0 A2B2", 2),
    ],
)
def test_runs_of_one_launch_are_a_pair_whatever_their_order_and_one_that_is_missing_shifts_none(
    launched, pairs, left_out
):
    found = pair(session(launched, seed_of=SEEDS[1], launch_of=lambda word: word[1]))
    assert (sorted(names(found)), len(found.left_out)) == (pairs.split(), left_out)


def test_arms_that_never_shared_a_launch_are_paired_in_time():
    assert names(pair(session("A0 B0 A1 B1", launch_of=lambda word: word))) == ["A0B0", "A1B1"]


VARIABLES = ("OMP_NUM_THREADS", "NCCL_ALGO", "NCCL_NEW_KNOB", "CUDA_DEVICE_MAX_CONNECTIONS", "LD_PRELOAD")
NAMES_OF_PLACES_AND_JOBS = ("SLURM_JOB_ID", "DYNBENCH_RESULTS", "DYNBENCH_CACHE")

MAY_DIFFER = {
    "collected",
    "seed",
    "config_digest",
    "load_average",
    "memory_mb.available",
    "data.train_source",
    "data.eval_source",
    *(f"environment.{name}" for name in NAMES_OF_PLACES_AND_JOBS),
}
"""Leaves whose change is no finding, beside `unknown`, reasons of decisions, and decisions on what arms differ in."""


@pytest.fixture
def env(monkeypatch, store):
    """A real env.json, with what a launch on two GPUs adds to it."""
    for name in (*VARIABLES, *NAMES_OF_PLACES_AND_JOBS):
        monkeypatch.setenv(name, "1")
    settled = resolved(store=store)
    device = {"type": "cuda", "name": "X", "memory_mb": 80e3, "capability": "9.0", "cuda": "12.6", "nccl": "2.27"}
    data = dict.fromkeys(("dataset", "train_source", "eval_source", "fingerprint"), "x")
    data["model"] = {"source": "random", "layers": 2, "dropout": {"attention": 0.0}}
    decided = {"value": 1, "reason": "given"}
    data["decisions"] = {"workload.tokenizer": decided}
    measured = dict.fromkeys(("measured.torch_threads", "launch.comm_model"), decided)
    env = jsonable(collect(settled.config, {**settled.decisions, **measured}, data))
    del env["unknown"]["devices"]
    return {**env, "devices": {"ranks": [{"rank": rank, **device} for rank in range(2)]}}


def leaves(value, path=()):
    """Path of every leaf, through mappings and lists of mappings."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict) or (isinstance(item, list) and item and isinstance(item[0], dict)):
            yield from leaves(item, (*path, key))
        else:
            yield (*path, key)


def spoilt(env, path, *, gone=False):
    """The environment with another value there, or with none."""
    env = deepcopy(env)
    place = reduce(getitem, path[:-1], env)
    if gone:
        del place[path[-1]]
    else:
        place[path[-1]] = f"not {place[path[-1]]}"
    return env


def run_with(env, label="run", seed=0, subset=None):
    config = SimpleNamespace(workload=SimpleNamespace(subset=subset, runs_own_code=False))
    return SimpleNamespace(label=label, facts=SimpleNamespace(env=env, seed=seed, config=config), partial=False)


def is_excepted(path):
    decision = path[0] == "decisions" or path[:2] == ("data", "decisions")
    if decision:
        return path[-1] == "reason" or path[-2].startswith(("schedule.", "train.precision"))
    numbers_of_ranks = path[:2] == ("devices", "ranks") and path[-1] == "rank"
    return numbers_of_ranks or path[0] == "unknown" or ".".join(path[:2] if len(path) > 1 else path) in MAY_DIFFER


def test_every_leaf_of_a_real_environment_is_compared_but_those_listed(env):
    """A fact that only one launch has differs too."""

    def differ(*envs):
        return environment_differences(*map(run_with, envs)) != {}

    paths = list(leaves(env))
    assert len(paths) > 60
    assert {path for path in paths if not differ(env, spoilt(env, path))} == {*filter(is_excepted, paths)}
    for path in paths:
        if not (is_excepted(path) or "decisions" in path or reduce(getitem, path, env) is None):
            lacking = spoilt(env, path, gone=True)
            assert differ(env, lacking) and differ(lacking, env), path


def test_a_decision_that_was_set_by_hand_in_one_run_is_in_its_configuration(env):
    by_hand = spoilt(env, ("decisions", "launch.nproc"), gone=True)
    assert environment_differences(run_with(env), run_with(by_hand)) == {}


def test_data_follows_from_the_seed_between_launches_but_not_within_a_pair(env):
    """Every launch is held against the first of all, and against its partner."""
    other, elsewhere = (spoilt(env, path) for path in (("data", "fingerprint"), ("host",)))
    base, candidate = run_with(other, "b1", seed=1, subset=9), run_with(env, "c1", seed=1, subset=9)
    arms = [Arm("base", (run_with(env), base, run_with(elsewhere, "b2"))), Arm("other", (run_with(env), candidate))]
    compared = SimpleNamespace(pairing=SimpleNamespace(pairs=[(base, candidate)]), question=DEFAULT)
    found = [seen.values for seen in environment(SimpleNamespace(arms=arms, runs=(), comparisons=[compared]))]
    said = ["{first} and {second}: {differences}".format(**values).split(" (")[0] for values in found]
    assert said == ["run and b2: env.host", "b1 and c1: env.data.fingerprint"]
