"""Every workload of the registry trains under every policy, split or not, but for what is refused by name.

In its smallest size and on generated data, by virtual ranks in this process; `reference` has real ones. Where samples
have no lengths, policies that deal by lengths are refused, and capacities and speeds decide.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sampled import sampled
from torch import Tensor, nn
from toys import Toy
from virtual_runs import RANKS, TRAINABLE, loop_of, rows_of
from virtual_runs import configured as virtual

from dynbench.analysis.steps import step_table
from dynbench.config.schema import Config
from dynbench.engine.rank.evaluation import BEST, EVAL_FILE, LAST, MODEL_FOLDER
from dynbench.errors import UsageError
from dynbench.plugins import POLICIES, WORKLOADS
from dynbench.plugins.policies import ROWS, plan_names, plan_of
from dynbench.schedule.policy import policy_class
from dynbench.workloads.base import Saves, Workload
from dynbench.workloads.registry import build_workload

STEPS, BATCH = 2, 12
SPLITTING = [name for name in TRAINABLE if policy_class(name).splits]
CASES = [
    *((name, policy, "padded", parts) for name in WORKLOADS for policy in TRAINABLE for parts in (1, 2)),
    *(
        (name, policy, layout, 1 + (policy in SPLITTING))
        for name in WORKLOADS
        for policy, layout in map(plan_of, plan_names(*ROWS, in_train=True))
    ),
]
"""Workload, policy, layout and micro-batches."""
BASELINES = ("sorted_equal", "lpt", "karmarkar_karp", "karmarkar_karp_equal", "group_by_length", "hf_batch_rebalance")
LEFT_OUT = {("causal_lm", policy, "padded") for policy in BASELINES}
"""What only `make test-matrix` trains."""
WITHOUT_LENGTHS = [name for name, entry in WORKLOADS.items() if entry.lengths is None]
USEFUL = [name for name in TRAINABLE if POLICIES[name].without_lengths]


def configured(workload: str, policy: str, *more: str) -> Config:
    """Resolved settings; a workload's first size is its smallest."""
    size = next(iter(WORKLOADS[workload].sizes))
    return virtual(
        policy,
        *(f"workload.{each}" for each in (f"name={workload}", f"size={size}", "subset=60", "max_length=64")),
        *(f"train.{each}" for each in (f"global_batch={BATCH}", f"steps={STEPS}", "eval_samples=8")),
        *more,
    )


@cache
def built(name: str) -> Workload:
    """The workload with its data, once for all policies."""
    return build_workload(configured(name, "static"))


def judge(folder: Path, config: Config, workload: Workload) -> pl.DataFrame:
    """Its steps have losses, the samples asked for and the weights of these; its evaluation has a loss."""
    with loop_of(folder, config, workload) as loop:
        parameters = list(loop.replica.model.parameters())
        before = [parameter.detach().clone() for parameter in parameters]
    moved = [not a.equal(b) for a, b in zip(before, parameters, strict=True)]
    assert moved == [parameter.requires_grad for parameter in parameters]
    rows = rows_of(folder)
    steps = step_table(rows.partition_by("rank"))[0]
    policy = config.schedule.policy_name
    assert len(steps) == STEPS and set(rows["policy"]) == {policy}
    assert all(isfinite(loss) for loss in steps["loss_global"])
    if policy_class(policy).fixed_batch:
        assert set(rows.group_by("step").agg(pl.col("local_batch").sum())["local_batch"]) == {BATCH}
    assert rows["weight"].min() > 0 and (rows["padded_tokens"] >= rows["real_tokens"]).all()
    if workload.eval is not None:
        found = pl.read_csv(folder / EVAL_FILE)
        assert found["step"].to_list() == [STEPS - 1] and isfinite(found["loss"][0])
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy", "layout", "parts"), sampled(CASES, [case for case in CASES if case[:3] not in LEFT_OUT])
)
def test_it_trains_or_is_refused_by_name(tmp_path: Path, name: str, policy: str, layout: str, parts: int) -> None:
    split = [f"schedule.micro_batches={parts}"] if parts > 1 else []
    try:
        config = configured(name, policy, f"workload.layout={layout}", *split)
    except UsageError as refusal:
        said = refusal.message
        if layout != "padded":
            assert "workload.layout" in said and name in said and layout not in WORKLOADS[name].layouts
        elif "schedule.micro_batches" in said:
            assert parts > 1
        else:
            assert "schedule.policy" in said and policy in said and name in said
        return
    try:
        rows = judge(tmp_path, config, built(name) if layout == "padded" else build_workload(config))
    except UsageError as refusal:
        assert layout == "padded" and parts > 1 and policy not in SPLITTING
        assert "schedule.micro_batches" in refusal.message
        return
    assert set(rows["layout"]) == {layout}
    if layout != "padded":
        assert (rows["padded_tokens"] == rows["real_tokens"]).all()
    if name in WITHOUT_LENGTHS:
        assert policy in USEFUL and (rows["local_batch"] == BATCH // RANKS).all(), "equal ranks share equally"
        for tokens in ("padded_tokens", "real_tokens"):
            assert (rows[tokens] == rows["local_batch"]).all(), "a sample counts as one token"
        assert rows["correct"].is_between(0, rows["local_batch"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [name for name in USEFUL if name != "static"])
@pytest.mark.parametrize("name", WITHOUT_LENGTHS)
def test_capacities_and_speeds_decide_counts(tmp_path: Path, name: str, policy: str) -> None:
    found = {}
    for setting in ("capacity=[2, 8, 8]", "speeds=[1, 1, 0.5]"):
        with loop_of(tmp_path / setting, configured(name, policy, f"schedule.{setting}"), built(name)):
            pass
        found[setting] = rows_of(tmp_path / setting)
    capped, uneven = found.values()
    assert capped.filter(rank=0)["local_batch"].max() <= 2
    counts = uneven.group_by("rank").agg(pl.col("local_batch").sum()).sort("rank")["local_batch"].to_list()
    assert counts[2] < counts[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_its_model_is_stored(tmp_path: Path, name: str) -> None:
    assert isinstance(built(name), Saves)
    judge(tmp_path, configured(name, "static", "train.save_model=true"), built(name))
    assert {path.name for path in (tmp_path / MODEL_FOLDER).iterdir()} == {BEST, LAST}
    assert all(any((tmp_path / MODEL_FOLDER / saved).iterdir()) for saved in (BEST, LAST))


class Diverges(Toy):
    """Fault: no loss after the first step."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model, batch) * (np.inf if any(p.grad is not None for p in model.parameters()) else 1)


class Forgets(Toy):
    """Fault: a part of the model is out of the loss."""

    def build_model(self, seed: int) -> nn.Module:
        model = super().build_model(seed)
        model.frozen.requires_grad_(True)
        model.mix.register_forward_hook(lambda module, given, out: out.detach())
        return model


@pytest.mark.parametrize("fault", [Diverges, Forgets])
def test_a_workload_that_does_not_train_is_caught(tmp_path: Path, fault: type[Toy]) -> None:
    with pytest.raises(AssertionError):
        judge(tmp_path, configured("text_classification", "partition"), fault())
