"""Whatever env.json knows and can move a number is compared, also what is not in it yet."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dynbench.analysis.arms import Arm
from dynbench.analysis.checks.comparisons import environment
from dynbench.analysis.checks.evidence import worded
from dynbench.analysis.comparability import environment_differences
from dynbench.analysis.merge import merge_run
from dynbench.analysis.questions import DEFAULT, QUESTIONS
from dynbench.config.layers import load_config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.turn_order import Turns
from dynbench.runs.atomic import jsonable
from dynbench.runs.provenance import collect

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
    resolved = resolve(load_config(), Machine(gpus=0, cores=2, bf16=False), store)
    device = {"type": "cuda", "name": "X", "memory_mb": 80e3, "capability": "9.0", "cuda": "12.6", "nccl": "2.27"}
    data = {
        "dataset": "sst2",
        "train_source": "a.tsv",
        "eval_source": "b.tsv",
        "fingerprint": "f",
        "model": {"source": "random", "layers": 2, "dropout": {"attention": 0.0}},
        "decisions": {"workload.tokenizer": {"value": "t", "reason": "given"}},
    }
    measured = {
        "measured.torch_threads": {"value": 1, "reason": "launch.threads"},
        "launch.comm_model": {"value": "none", "reason": "given"},
    }
    devices = {"ranks": [{"rank": rank, **device} for rank in range(2)]}
    return jsonable(collect(resolved.config, {**resolved.decisions, **measured}, data, devices))


def leaves(value, path=()):
    """Path of every leaf, through mappings and lists of mappings."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict) or (isinstance(item, list) and item and isinstance(item[0], dict)):
            yield from leaves(item, (*path, key))
        else:
            yield (*path, key)


def value_at(env, path):
    for key in path:
        env = env[key]
    return env


def changed(env, path, change):
    env = deepcopy(env)
    change(value_at(env, path[:-1]), path[-1])
    return env


def flip(place, key):
    place[key] = f"not {place[key]}"


def remove(place, key):
    del place[key]


def run_with(env, label="run", seed=0, subset=None, **fields):
    config = SimpleNamespace(workload=SimpleNamespace(subset=subset, runs_own_code=False))
    facts = SimpleNamespace(env=env, seed=seed, config=config)
    return SimpleNamespace(label=label, facts=facts, partial=False, **fields)


def findings(*arms, pairs=()):
    comparisons = [SimpleNamespace(pairing=SimpleNamespace(pairs=pairs), question=DEFAULT)] if pairs else []
    named = [Arm(f"arm {index}", tuple(runs)) for index, runs in enumerate(arms)]
    runs = [run for arm in arms for run in arm]
    evidence = SimpleNamespace(arms=named, runs=runs, comparisons=comparisons)
    return [worded("environment", seen) for seen in environment(evidence)]


def is_excepted(path):
    decision = path[0] == "decisions" or path[:2] == ("data", "decisions")
    if decision:
        return path[-1] == "reason" or path[-2].startswith(("schedule.", "train.precision"))
    numbers_of_ranks = path[:2] == ("devices", "ranks") and path[-1] == "rank"
    return numbers_of_ranks or path[0] == "unknown" or ".".join(path[:2] if len(path) > 1 else path) in MAY_DIFFER


@pytest.mark.parametrize("same_arm", [True, False])
def test_every_leaf_of_a_real_environment_is_compared_but_those_listed(env, same_arm):
    paths = list(leaves(env))
    assert len(paths) > 60
    missed = {
        path
        for path in paths
        for one, other in [(run_with(env, "one"), run_with(changed(env, path, flip), "other"))]
        if not findings(*([[one, other]] if same_arm else [[one], [other]]))
    }
    assert missed == {path for path in paths if is_excepted(path)}


def test_a_fact_that_only_one_launch_has_differs_too(env):
    tried = 0
    for path in leaves(env):
        if is_excepted(path) or "decisions" in path or value_at(env, path) is None:
            continue
        tried += 1
        lacking = changed(env, path, remove)
        for pair in [(env, lacking), (lacking, env)]:
            assert findings(*([run_with(each)] for each in pair)), path
    assert tried > 30


def test_threads_that_follow_from_the_question_are_no_finding(env):
    other = changed(env, ("decisions", "measured.torch_threads", "value"), flip)
    runs = run_with(env, "one"), run_with(other, "other")
    assert environment_differences(*runs, QUESTIONS["scaling"]) == {}
    assert [*environment_differences(*runs, DEFAULT)] == ["env.decisions.measured.torch_threads.value"]


def test_a_fact_that_env_json_gains_is_compared_without_further_ado(env):
    (found,) = findings([run_with(env | {"new": {"fact": 1}})], [run_with(env | {"new": {"fact": 2}})])
    assert (found.severity, "env.new.fact (1 and 2)" in found.seen) == ("warn", True)


def test_equal_environments_and_other_moments_are_clean(env, monkeypatch):
    env |= {"clocks": {"offsets_ns": [0, 12]}}
    later = changed(env, ("load_average",), flip) | {"collected": "later", "clocks": {"offsets_ns": [0, 0, 57]}}
    assert findings([run_with(env), run_with(later)], [run_with(later)]) == []


def test_launches_of_arms_in_turns_differ_in_nothing_but_their_turns(env):
    names = ["static-1", "packed-1"], ["static-2", "packed-2"]
    turns = Turns(("static", "packed")), Turns(("static", "packed"), seed=7, launch=1)
    launches = [run_with(env | {"together": each.facts(runs)}) for each, runs in zip(turns, names, strict=True)]
    assert findings(launches) == []
    longer = replace(turns[1], block=8).facts(names[1])
    (found,) = findings([launches[0], run_with(env | {"together": longer})])
    assert "env.together.block (1 and 8)" in found.seen


def test_ranks_are_told_together_and_apart(env):
    newer = deepcopy(env)
    for rank in newer["devices"]["ranks"]:
        rank["nccl"] = "2.28"
    (found,) = findings([run_with(env)], [run_with(newer)])
    assert "env.devices.ranks.nccl (2.27 and 2.28)" in found.seen
    newer["devices"]["ranks"][0]["nccl"] = "2.27"
    (found,) = findings([run_with(env)], [run_with(newer)])
    assert "env.devices.ranks.nccl (2.27 and ['2.27', '2.28'])" in found.seen


def test_a_decision_that_was_set_by_hand_in_one_run_is_in_its_configuration(env):
    by_hand = changed(env, ("decisions", "launch.nproc"), remove)
    assert findings([run_with(env)], [run_with(by_hand)]) == []


def test_data_follows_from_the_seed_between_launches_but_not_within_a_pair(env):
    other = changed(env, ("data", "fingerprint"), flip)
    base, candidate = run_with(other, "b1", seed=1, subset=9), run_with(env, "c1", seed=1, subset=9)
    assert findings([run_with(env), base]) == []
    (found,) = findings([run_with(env), base], [run_with(env), candidate], pairs=[(base, candidate)])
    assert "b1 and c1: env.data.fingerprint" in found.seen


def test_data_that_were_changed_between_launches_are_seen_where_all_are_trained_on(env):
    """Of a seed each: nothing else tells that the second pair trained on another file."""
    other = changed(changed(env, ("data", "fingerprint"), flip), ("data", "model", "source"), flip)
    (found,) = findings([run_with(env, "a0"), run_with(other, "a1", seed=1)])
    assert found.seen == f"a0 and a1: env.data.fingerprint (f and {other['data']['fingerprint']})"
    assert found.limit == "the same data in all launches" and "compare anew" in found.hint


def test_where_the_code_alone_changed_between_launches_it_is_to_be_left_alone(env):
    edited = run_with(changed(env, ("git", "commit"), flip), "other")
    (found,) = findings([run_with(env, "one"), edited])
    assert found.hint.startswith("Leave the code as it is")
    moved = run_with(changed(edited.facts.env, ("host",), flip), "other")
    (found,) = findings([run_with(env, "one"), moved])
    assert found.hint.startswith("Launch all arms together")


def test_launches_that_differ_alike_are_told_once_and_others_each(env):
    one, two = env | {"nvidia_driver": "550.54"}, env | {"cpu_governor": "turbo"}
    found = findings([run_with(env), run_with(one)], [run_with(one), run_with(two)])
    assert len(found) == 2


def test_a_launch_that_ended_early_is_not_held_against_the_others(make_run):
    whole, partial = (merge_run(make_run("static", **fields)) for fields in ({}, {"status": "failed"}))
    partial = replace(partial, facts=replace(partial.facts, env={"host": "elsewhere"}))
    assert findings([whole, partial]) == []
    assert "env.host" in environment_differences(whole, partial)


def test_what_a_run_proves_of_its_packed_rows_is_no_difference(env):
    rows = [env | {"packed_rows": {"lengths": [3, 60], "output_difference": seen}} for seen in (1e-7, 3e-7)]
    assert findings([run_with(env)], [run_with(rows[0])]) == findings(*([run_with(row)] for row in rows)) == []
