"""Samples that weigh unequally train as in one process under every policy, split or not.

Virtual ranks run the steps of a whole run; over real ranks, tests/contract/test_strategies.py judges every strategy.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from batches import batch_of
from torch import Tensor, nn
from toys import Toy
from virtual_runs import RANKS, TRAINABLE, loop_of, rows_of
from virtual_runs import configured as virtual

from dynbench.analysis.rank_files import read_rank_file
from dynbench.analysis.steps import step_table
from dynbench.config.schema import Config
from dynbench.engine.planning import build_problem
from dynbench.engine.rank import replica
from dynbench.engine.rank.exchange import GlobalBatch
from dynbench.runs.records import COLUMNS, COLUMNS_FILE
from dynbench.runs.run import Run
from dynbench.schedule.policy import Planner, policy_class
from dynbench.workloads.data import TokenisedData

STEPS = 4
CASES = [(policy, parts) for policy in TRAINABLE for parts in ((1, 2, 3) if policy_class(policy).splits else (1,))]


def configured(policy: str, parts: int) -> Config:
    train = ("global_batch=18", f"steps={STEPS}", "eval_samples=0")
    return virtual(policy, f"schedule.micro_batches={parts}", *(f"train.{each}" for each in train))


def sgd(parameters, _=None) -> torch.optim.Optimizer:
    """Moves by the gradient, so that a wrong factor shows."""
    return torch.optim.SGD(parameters, lr=0.5)


def in_one_process(config: Config, toy: Toy) -> tuple[list[torch.Tensor], list[float | None]]:
    """The same samples step by step, all of them at once: parameters, and the mean loss by weight of each step."""
    planner = Planner(config.schedule.policy_name, build_problem(config, toy.train.lengths, RANKS, 1))
    model, losses = toy.build_model(config.train.seed), []
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        ids = np.concatenate([ids for share in planner.plan(step).shares for ids in share])
        weight = toy.train.weights[ids].sum()
        loss = toy.loss(model, batch_of(toy, ids)) / (weight or 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() if weight else None)
    return list(model.parameters()), losses


NO_FAULT = nullcontext()


def judge(folder: Path, config: Config, toy: Toy, fault: Any = NO_FAULT) -> None:
    """The steps of virtual ranks are those of one process, and their rows say so."""
    with fault, patch.object(replica, "build_optimizer", sgd), loop_of(folder, config, toy) as loop:
        found = list(loop.replica.model.parameters())
    steps = step_table(rows_of(folder).partition_by("rank"))[0]
    wanted, losses = in_one_process(config, Toy.of(toy.train))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert steps["loss_global"].to_list() == [
        loss if loss is None else pytest.approx(loss, rel=1e-9) for loss in losses
    ]


@pytest.mark.parametrize(("policy", "parts"), CASES)
def test_a_run_is_that_of_one_process(tmp_path: Path, policy: str, parts: int) -> None:
    judge(tmp_path, configured(policy, parts), Toy())


@pytest.mark.parametrize("parts", [1, 2])
def test_steps_that_weigh_nothing_move_nothing_and_have_no_loss(tmp_path: Path, parts: int) -> None:
    data = Toy().train
    first = Planner("static", build_problem(configured("static", 1), data.lengths, RANKS, 1)).plan(0)
    weights = np.zeros(len(data))
    weights[first.shares[1][0][0]] = 2.5
    weighed = TokenisedData.from_arrays(data.tokens, data.offsets, data.labels, weights=weights)
    judge(tmp_path, configured("static", parts), Toy.of(weighed))
    rows = read_rank_file(0, Run(tmp_path).rank_file(0)).rows
    assert rows["weight"].to_list()[:2] == rows["loss"].to_list()[:2] == [0.0] * 2


class GivesMeans(Toy):
    """Fault: the mean over the batch, not the sum."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model, batch) / batch["weights"].sum().clamp(min=1)


FAULTS: dict[str, tuple[type[Toy], Any]] = {
    "counts in place of weights": (Toy, patch.object(TokenisedData, "weight", lambda _, ids: float(len(ids)))),
    "weights of a micro-batch only": (
        Toy,
        patch.object(replica.Replica, "weight", lambda self, share: self._workload.train.weight(share[0])),
    ),
    "a mean in place of a sum": (GivesMeans, NO_FAULT),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_weights_are_caught(tmp_path: Path, fault: str) -> None:
    toy, planted = FAULTS[fault]
    with pytest.raises(AssertionError):
        judge(tmp_path, configured("partition", 2), toy(), planted)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("weight", "scale"), [(2.5, 0.4), (0.0, 0.0), (2.0**40 + 1, 1 / (2**40 + 1))])
def test_a_summed_loss_is_divided_by_the_steps_weight(weight: float, scale: float) -> None:
    total = GlobalBatch(3, weight)
    assert (total.samples(), total.scale()) == (3, scale)


def test_rows_without_weights_count_samples(tmp_path: Path) -> None:
    """As an earlier version wrote them."""
    judge(tmp_path, configured("partition", 1), Toy())
    path = Run(tmp_path).rank_file(0)
    weighed = read_rank_file(0, path)
    (path.parent / COLUMNS_FILE).unlink()
    earlier = COLUMNS.index("weight")
    lines = [",".join(line.split(",")[:earlier]) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{line}\n" for line in lines))
    counted = read_rank_file(0, path)
    assert counted.rows["weight"].to_list() == counted.rows["local_batch"].to_list() != weighed.rows["weight"].to_list()
    assert counted.rows.schema == weighed.rows.drop("turn").schema
