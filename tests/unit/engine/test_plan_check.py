"""What cannot be planned is refused before any rank starts, with a global batch that ends well."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probes import make_probe

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine import plan_check
from dynbench.engine.plan_check import check_capacity, check_plan, check_steps_of_rank, data_at_hand, known_workload
from dynbench.engine.planning import build_problem
from dynbench.errors import BatchTooLarge, DynbenchError, NothingFits, UsageError
from dynbench.plugins import POLICIES, WORKLOADS
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import Planner, Problem, make_policy, policy_class
from dynbench.workloads.registry import build_workload

RANKS, BATCH = 8, 64
NOWHERE = Path("nowhere")
LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 1000).astype(int), 2, 256)
UNEQUAL = [20] * (RANKS - 1) + [9]


def error_of(call: Callable[..., object], *given: object) -> DynbenchError | None:
    """What it raises."""
    try:
        call(*given)
    except DynbenchError as error:
        return error
    return None


def first_plan(config: Config) -> object:
    return Planner(config.schedule.policy_name, build_problem(config, LENGTHS, RANKS, 1)).plan(0)


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.in_train])
def test_the_launcher_refuses_what_the_ranks_would_refuse(policy):
    if reason := POLICIES[policy].missing:
        pytest.skip(f"{policy} {reason}")
    refused = 0
    fixed = {"workload.pad_to_multiple_of": 1, "schedule.policy": policy, "train.global_batch": BATCH}
    for values in product((1, 2, "auto"), (None, 20, UNEQUAL), ("exact", "enumerate"), (1, 2)):
        schedule = dict(zip(("micro_batches", "capacity", "solver", "window"), values, strict=True))
        config = load_config(flags=fixed | {f"schedule.{key}": value for key, value in schedule.items()})
        expected = error_of(first_plan, config)
        error = error_of(check_plan, config, RANKS, NOWHERE)
        if error is None:
            assert not isinstance(expected, UsageError), schedule
        else:
            refused += 1
            assert type(error) is type(expected) or "obeys no capacities" in error.message, schedule
    assert refused


def test_a_cost_that_a_probe_will_measure_is_not_asked_for_before_it():
    settings = ["schedule.policy=partition", "schedule.cost_type=measured", "workload.pad_to_multiple_of=1"]
    check_plan(load_config(None, [*settings, "probe.run=auto"]), 4, NOWHERE)
    with pytest.raises(DynbenchError, match="no-such-probe"):
        check_plan(load_config(None, [*settings, "probe.run=no-such-probe"]), 4, NOWHERE)


@pytest.mark.parametrize(
    ("overrides", "largest"),
    [
        ("schedule.capacity=15", 60),
        ("schedule.mode=dynamic schedule.capacity=15", 60),
        ("schedule.capacity=[40,40,40,12]", 48),
        ("schedule.mode=dynamic schedule.capacity=[20,20,20,3]", 63),
        ("schedule.capacity=7 schedule.micro_batches=2", 56),
        ("schedule.mode=dynamic schedule.policy=prefix schedule.buffer=16 schedule.capacity=[1,99,99,99]", 49),
        ("", None),
        ("schedule.capacity=16", None),
        ("schedule.capacity=1 schedule.micro_batches=auto", None),
    ],
)
def test_largest_that_fits(overrides, largest):
    error = error_of(check_capacity, load_config(None, overrides.split()), 4, NOWHERE)
    if largest is None:
        assert error is None
    else:
        assert isinstance(error, NothingFits) and f"no more than {largest} can fit" in error.message
        fitting = load_config(None, [*overrides.split(), f"train.global_batch={largest}"])
        assert error_of(check_capacity, fitting, 4, NOWHERE) is None


FOUR_RANKS = 4
TABLE = [(16, 40), (32, 24), (48, 16), (64, 12)]
NAMES = [name for name, entry in POLICIES.items() if entry.in_train and policy_class(name).fixed_batch]
CAPPED = [name for name in NAMES if POLICIES[name].capped]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A registry with a probe whose capacities fall with length."""
    store = RunStore(tmp_path)
    make_probe(store, ranks=FOUR_RANKS, tables=[TABLE] * FOUR_RANKS)
    return store


def config_of(policy: str = "partition", *overrides: str, batch: int = 140) -> Config:
    settings = (f"schedule.policy={policy}", "schedule.capacity=probed", f"train.global_batch={batch}")
    steps = ("train.steps=60", "train.warmup_steps=5", "workload.pad_to_multiple_of=1")
    return load_config(None, [*settings, *steps, *overrides])


def problem_of(config: Config, root: Path) -> Problem:
    """As the ranks have it, whose data are known."""
    workload = known_workload(config)
    return build_problem(config, workload.train.lengths, FOUR_RANKS, 1, root, workload.positions)


def stopped(config: Config, root: Path) -> str | None:
    """What the ranks would stop with, planning step after step."""
    policy = make_policy(config.schedule.policy_name, problem_of(config, root))
    error = error_of(list, islice(policy.plans(), 65))
    return None if error is None else error.message


def refused(config: Config, root: Path, launches: int = 1) -> Any:
    return error_of(check_plan, config, FOUR_RANKS, root, launches)


@pytest.mark.slow
@pytest.mark.parametrize("policy", CAPPED)
def test_the_batch_that_is_named_ends_well(policy, store):
    virtual = "launch.launcher=virtual"
    batch = next(
        size
        for size in range(FOUR_RANKS * 40, 0, -FOUR_RANKS)
        if not (stopped(config_of(policy, batch=size), store.root) or "").startswith("step 0:")
    )
    error = refused(config_of(policy, virtual, batch=batch), store.root)
    assert isinstance(error, BatchTooLarge) and not error.message.startswith("step 0:")
    assert error.message == stopped(config_of(policy, batch=batch), store.root)
    assert "that fits in all 65 steps" in error.hint
    fitting = int(error.hint.split("--global-batch ")[1].split(",")[0])
    assert stopped(config_of(policy, batch=fitting), store.root) is None
    assert refused(config_of(policy, virtual, batch=fitting), store.root) is None
    assert ("micro_batches=auto" in error.hint) == policy_class(policy).splits
    if policy_class(policy).splits:
        assert refused(config_of(policy, virtual, "schedule.micro_batches=auto", batch=batch), store.root) is None


def test_no_smaller_batch_may_help(store):
    make_probe(store, name="tiny", ranks=FOUR_RANKS, tables=[[(20, 1), (64, 1)]] * FOUR_RANKS)
    error = refused(config_of("partition", "schedule.capacity=tiny", "schedule.micro_batches=1", batch=5), store.root)
    assert "--global-batch 4, the largest" in error.hint
    lonely = config_of("static", "schedule.capacity=[1, 1, 1, 1]", "train.global_batch=8", "workload.subset=2000")
    assert "--global-batch 4" in refused(lonely, store.root).hint


def test_a_sample_that_fits_nowhere_is_told_as_such(store):
    make_probe(store, name="short", ranks=FOUR_RANKS, tables=[[(40, 64)]] * FOUR_RANKS)
    error = refused(config_of("partition", "schedule.capacity=short", batch=16), store.root)
    assert "is longer than the capacity" in error.message
    assert "workload.max_length" in error.hint and "--global-batch" not in error.hint


@pytest.mark.slow
def test_every_launch_of_a_comparison_is_checked(store):
    batch = next(size for size in range(110, 40, -1) if stopped(config_of(batch=size), store.root) is None)
    seeds = [stopped(config_of("partition", f"train.seed={seed}", batch=batch), store.root) for seed in range(12)]
    first = next(seed for seed, message in enumerate(seeds) if message)
    assert refused(config_of(batch=batch), store.root, launches=first) is None
    error = refused(config_of(batch=batch), store.root, launches=first + 1)
    assert isinstance(error, BatchTooLarge) and error.message == f"launch with train.seed {first}: {seeds[first]}"


def test_where_the_data_are_not_at_hand_the_ranks_check_them(store, monkeypatch):
    config = config_of()
    problem = problem_of(config, store.root)
    check_steps_of_rank(config, problem)  # the launcher has done it
    monkeypatch.setattr(plan_check, "data_at_hand", lambda config: False)
    assert refused(config, store.root) is None
    with pytest.raises(BatchTooLarge, match="step 0") as caught:
        check_steps_of_rank(config, problem)
    assert "that fits in all 65 steps" in caught.value.hint


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("workload.dataset=embedded", True),
        ("workload.dataset=lognormal", True),
        ("workload.dataset=sst2", False),
        ("workload.weights=pretrained", False),
        ("workload.size=model workload.model=some/hub-name", False),
        ("workload.dataset=lengths workload.data_path={trace}", True),
        ("workload.dataset=lengths workload.data_path={long}", False),
        ("workload.dataset=lengths workload.data_path={long} workload.max_length=16", True),
        ("workload.dataset=lengths workload.data_path={trace} workload.eval_path={long}", False),
        ("workload.dataset=tsv workload.data_path={path} workload.tokenizer=some/hub-name", False),
        ("workload.dataset=tsv workload.data_path={path} workload.tokenizer={path}", True),
    ],
)
def test_data_at_hand_cost_no_network_and_no_wait(tmp_path, overrides, expected):
    (tmp_path / "data.tsv").write_text("a text\t0\n")
    (tmp_path / "trace.txt").write_text("40\n" * 1000)
    (tmp_path / "long.txt").write_text("250\n" * 40_000)
    paths = {"path": tmp_path / "data.tsv", "trace": tmp_path / "trace.txt", "long": tmp_path / "long.txt"}
    config = load_config(None, overrides.format(**paths).split())
    assert data_at_hand(config) is expected


def test_a_registered_workload_of_the_users_own_is_not_run_by_the_launcher(monkeypatch):
    config = load_config(None, ["workload.dataset=lognormal"])
    assert data_at_hand(config)
    monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    assert not data_at_hand(config)
    assert known_workload(config) is None


def test_known_data_are_those_of_the_ranks_and_leave_nothing_behind(tmp_path, caplog):
    rows = (f"{'word ' * (1 + row % 50)}\t{row % 2}\n" for row in range(200))
    (tmp_path / "data.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    workload = (
        "dataset=tsv",
        f"data_path={tmp_path / 'data.tsv'}",
        "tokenizer=bytes",
        f"cache_dir={tmp_path / 'cache'}",
    )
    config = load_config(None, [*(f"workload.{each}" for each in (*workload, "subset=90")), "train.seed=3"])
    with caplog.at_level(logging.INFO):
        known = known_workload(config)
    assert caplog.records == [], "the ranks will say it"
    assert not (tmp_path / "cache").exists()
    assert known.train.fingerprint == build_workload(config).train.fingerprint


def test_a_search_that_takes_long_says_how_far_it_is(store, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        refused(config_of(), store.root)
        assert caplog.records == []
        monkeypatch.setattr(plan_check, "_PATIENCE_S", 0.0)
        refused(config_of(), store.root)
    assert "checking that all steps fit: step 0 of 65" in caplog.text
    assert "looking for the largest global batch that fits: trying 1" in caplog.text


def test_speeds_estimated_on_the_way_leave_the_plans_of_prefix_unknown(store):
    for policy in CAPPED:
        config = config_of(policy, "schedule.speeds=auto")
        assert (refused(config, store.root) is None) == (policy == "prefix")
