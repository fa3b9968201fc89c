"""Every policy of the registry trains, under every layout that it makes sense under."""

from __future__ import annotations

import polars as pl
import pytest
from multiproc.launches import Launch, rows_of

from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names, plan_of
from dynbench.schedule.policy import policy_class

pytestmark = pytest.mark.multiproc

DYNAMIC = ("schedule.mode=dynamic", "schedule.window=2")
VIRTUAL = (*DYNAMIC, "launch.launcher=virtual", "launch.world_size=3")
TRAINABLE = [name for name, entry in POLICIES.items() if entry.in_train]
LAUNCHED = ("prefix", "karmarkar_karp", "token_budget")
"""In `make test`; in this process, tests/contract/test_workloads.py trains them all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in LAUNCHED else pytest.mark.matrix) for name in TRAINABLE]
)
def test_it_trains(launch: Launch, name: str) -> None:
    if reason := POLICIES[name].missing:
        pytest.skip(f"{name} {reason}")
    fixed_batch = policy_class(name).fixed_batch
    # Real ranks check each step's global batch, which this policy may vary.
    rows = rows_of(launch(*(VIRTUAL if fixed_batch else DYNAMIC), f"schedule.policy={name}"))
    assert set(rows["policy"]) == {name}
    assert rows["loss"].is_finite().all()
    per_step = set(rows.group_by("step").agg(samples=pl.col("local_batch").sum())["samples"])
    assert per_step == {12} if fixed_batch else len(per_step) > 1


@pytest.mark.parametrize("name", plan_names("packed", in_train=True))
def test_it_trains_on_packed_rows(launch: Launch, name: str) -> None:
    policy, _ = plan_of(name)
    fixed_batch = policy_class(policy).fixed_batch
    rows = rows_of(
        launch(*(VIRTUAL if fixed_batch else DYNAMIC), f"schedule.policy={policy}", "workload.layout=packed")
    )
    assert set(rows["policy"]) == {policy} and set(rows["layout"]) == {"packed"}
    assert rows["loss"].is_finite().all() and (rows["padded_tokens"] == rows["real_tokens"]).all()
    per_step = set(rows.group_by("step").agg(samples=pl.col("local_batch").sum())["samples"])
    assert per_step == {12} if fixed_batch else len(per_step) > 1
