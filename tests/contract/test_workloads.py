"""Every workload of the registry trains under every policy, split or not, but for what is refused by name.

In its smallest size and on generated data, by virtual ranks in this process; over real ranks,
tests/multiproc/test_matrix.py launches every policy with one of them.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from toys import Toy

from dynbench.analysis.rank_files import read_rank_file
from dynbench.analysis.steps import step_table
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.rank.evaluation import BEST, EVAL_FILE, LAST, MODEL_FOLDER
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.turns import play
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.errors import UsageError
from dynbench.plugins import POLICIES, WORKLOADS
from dynbench.plugins.policies import ROWS, plan_names, plan_of
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import policy_class
from dynbench.workloads.base import Saves, Workload
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
RANKS, STEPS, BATCH = 3, 2, 12
TRAINABLE = [name for name, entry in POLICIES.items() if entry.in_train]
SPLITTING = [name for name in TRAINABLE if policy_class(name).splits]
PAIRS = [(workload, policy) for workload in WORKLOADS for policy in TRAINABLE]
BASELINES = ("sorted_equal", "lpt", "karmarkar_karp", "karmarkar_karp_equal", "group_by_length", "hf_batch_rebalance")
LEFT_OUT = {("causal_lm", policy) for policy in BASELINES}
"""What only `make test-matrix` trains."""


def configured(workload: str, policy: str, *more: str) -> Config:
    """Resolved settings; a workload's first size is its smallest."""
    settings = [
        *(f"workload.name={workload}", f"workload.size={next(iter(WORKLOADS[workload].sizes))}", "workload.subset=60"),
        *(f"schedule.policy={policy}", *(["schedule.window=2"] if policy == "window" else [])),
        *(f"train.global_batch={BATCH}", "train.warmup_steps=0", f"train.steps={STEPS}", "train.eval_samples=8"),
        *("launch.launcher=virtual", f"launch.world_size={RANKS}", "launch.device=cpu", *more),
    ]
    machine = Machine(cores=2, gpus=0, bf16=False)
    return resolve(load_config(None, settings), machine, RunStore(Path("nowhere"))).config


@cache
def built(name: str) -> Workload:
    """The workload with its data, once for all policies."""
    return build_workload(configured(name, "static"))


def judge(folder: Path, config: Config, workload: Workload) -> None:
    """Its steps have losses, the samples asked for and the weights of these; its evaluation has a loss."""
    run = Run(folder)
    run.ranks_dir.mkdir(parents=True)
    with virtual_loop(run, config, RankContext(0, 0, 1, CPU), workload, memory_meter(CPU)) as loop:
        before = [parameter.detach().clone() for parameter in loop.replica.model.parameters()]
        play(config.train, [loop], None, StopFlag(), None)
        moved = [not a.equal(b) for a, b in zip(before, loop.replica.model.parameters(), strict=True)]
        trained = [parameter.requires_grad for parameter in loop.replica.model.parameters()]
    assert moved == trained
    rows = pl.concat([read_rank_file(rank, run.rank_file(rank)).rows for rank in range(RANKS)])
    steps = step_table(rows, RANKS)[0]
    policy = config.schedule.policy_name
    assert len(steps) == STEPS and set(rows["policy"]) == {policy}
    assert all(isfinite(loss) for loss in steps["loss_global"])
    if policy_class(policy).fixed_batch:
        assert set(rows.group_by("step").agg(pl.col("local_batch").sum())["local_batch"]) == {BATCH}
    assert rows["weight"].min() > 0 and (rows["padded_tokens"] >= rows["real_tokens"]).all()
    if workload.eval is not None:
        found = pl.read_csv(folder / EVAL_FILE)
        assert found["step"].to_list() == [STEPS - 1] and isfinite(found["loss"][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [pytest.param(*pair, marks=[pytest.mark.matrix] if pair in LEFT_OUT else []) for pair in PAIRS],
)
def test_it_trains_or_is_refused_by_name(tmp_path: Path, name: str, policy: str) -> None:
    if reason := POLICIES[policy].missing:
        pytest.skip(f"{policy} {reason}")
    try:
        config = configured(name, policy)
    except UsageError as refusal:
        assert "schedule.policy" in refusal.message and policy in refusal.message and name in refusal.message
        return
    judge(tmp_path, config, built(name))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), [(name, policy) for name, policy in PAIRS if policy in SPLITTING])
def test_it_trains_in_several_micro_batches(tmp_path: Path, name: str, policy: str) -> None:
    if reason := POLICIES[policy].missing:
        pytest.skip(f"{policy} {reason}")
    try:
        judge(tmp_path, configured(name, policy, "schedule.micro_batches=2"), built(name))
    except UsageError as refusal:
        assert "schedule.policy" in refusal.message or "schedule.micro_batches" in refusal.message


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("plan", plan_names(*ROWS, in_train=True))
def test_it_trains_on_rows_without_padding_or_is_refused_by_name(tmp_path: Path, plan: str, name: str) -> None:
    policy, layout = plan_of(plan)
    try:
        several = ("schedule.micro_batches=2",) if policy in SPLITTING else ()
        config = configured(name, policy, f"workload.layout={layout}", *several)
    except UsageError as refusal:
        assert layout not in WORKLOADS[name].layouts
        assert "workload.layout" in refusal.message and name in refusal.message
        return
    workload = build_workload(config)
    judge(tmp_path, config, workload)
    rows = pl.concat([read_rank_file(rank, Run(tmp_path).rank_file(rank)).rows for rank in range(RANKS)])
    assert set(rows["layout"]) == {layout} and (rows["padded_tokens"] == rows["real_tokens"]).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_its_model_is_kept(tmp_path: Path, name: str) -> None:
    assert isinstance(built(name), Saves)
    judge(tmp_path, configured(name, "static", "train.save_model=true"), built(name))
    assert {path.name for path in (tmp_path / MODEL_FOLDER).iterdir()} == {BEST, LAST}
    assert all(any((tmp_path / MODEL_FOLDER / kept).iterdir()) for kept in (BEST, LAST))


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
