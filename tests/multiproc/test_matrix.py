"""`dynbench train` under every strategy, schedule and layout of the registries: it trains, or is refused by name.

All of it is `make test-matrix`; a fixed sample is part of `make test`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from multiproc.launches import TINY, fork, global_loss, rows_of

from dynbench.plugins import POLICIES, STRATEGIES
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import policy_class

pytestmark = pytest.mark.multiproc

WORKERS = 2
SHORT = (*TINY, "train.steps=3", "train.warmup_steps=1", "train.precision=fp32", "schedule.window=2")
LAYOUTS = ("padded", "packed")
Case = tuple[str, str, str]
"""Strategy, policy and layout."""
SAMPLE: set[Case] = {
    *((sync, "partition", "packed") for sync in ("ddp", "zero1", "fsdp", "ps_flat", "diloco")),
    ("naive", "prefix", "packed"),
    ("ddp", "token_budget", "padded"),
    ("ddp", "karmarkar_karp", "padded"),
}
CASES: list[Case] = list(
    product(STRATEGIES, [name for name, entry in POLICIES.items() if entry.in_train and not entry.missing], LAYOUTS)
)


def settings_of(case: Case) -> tuple[str, ...]:
    sync, policy, layout = case
    ranks = WORKERS + STRATEGIES[sync].servers
    meets = ("sync.inner_steps=2",) if STRATEGIES[sync].reads("inner_steps") else ()
    more = (f"sync.name={sync}", f"schedule.policy={policy}", f"workload.layout={layout}", f"launch.nproc={ranks}")
    return (*SHORT, "schedule.mode=dynamic", *more, *meets)


def marked(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id="-".join(case), marks=[] if case in SAMPLE else pytest.mark.matrix) for case in cases]


MADE = [case for case in CASES if case[2] in POLICIES[case[1]].layouts]
REFUSED = [case for case in CASES if case not in MADE]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Run]:
    """What the command made of a case, once for all that ask."""
    made: dict[Case, Run] = {}

    def train(case: Case) -> Run:
        if case not in made:
            results = tmp_path_factory.mktemp("results")
            process = fork(results, "train", "--json", settings=settings_of(case))
            _, stderr = process.communicate(timeout=300)
            assert process.returncode == 0, stderr
            (made[case],) = RunStore(results).list()
        return made[case]

    return train


@pytest.mark.parametrize("case", marked(MADE))
def test_it_trains(trained: Callable[[Case], Run], case: Case) -> None:
    (sync, policy, layout), run = case, trained(case)
    entry, rows = STRATEGIES[sync], rows_of(run)
    assert run.status is Status.COMPLETED
    assert rows.height == 4 * (WORKERS + entry.servers)
    working = rows.filter(rows["rank"] >= entry.servers)
    assert set(working["policy"]) == {policy} and set(working["layout"]) == {layout}
    assert working["loss"].is_finite().all()
    assert (working["padded_tokens"] == working["real_tokens"]).all() == (layout == "packed")
    samples = working.group_by("step").agg(pl.col("local_batch").sum())["local_batch"]
    assert set(samples) == {12} or not policy_class(policy).fixed_batch
    assert (run.path / "eval.csv").exists() == entry.trains
    if entry.exact:
        beside = trained(("ddp", policy, layout))
        assert global_loss(run) == pytest.approx(global_loss(beside), rel=1e-4), "of the same steps as under ddp"


@pytest.mark.parametrize("case", marked(REFUSED))
def test_it_is_refused_by_name(tmp_path: Path, case: Case) -> None:
    process = fork(tmp_path, "train", "--json", settings=settings_of(case))
    stdout, _ = process.communicate(timeout=300)
    error = json.loads(stdout)["error"]
    assert (process.returncode, error["exit_code"]) == (2, 2)
    _, policy, layout = case
    assert f"workload.layout: {layout!r} makes no sense under policy {policy!r}" in error["message"]
    assert RunStore(tmp_path).list() == []


def test_the_sample_is_of_the_registries_and_of_both_kinds() -> None:
    assert set(CASES) >= SAMPLE
    assert SAMPLE & set(MADE) and SAMPLE & set(REFUSED)
    assert {sync for sync, _, _ in MADE} == set(STRATEGIES)
