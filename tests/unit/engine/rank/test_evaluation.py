"""Evaluations, epochs and scalars of a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from probes import resolved

from dynbench.analysis.merge import _read_evaluations
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, Train
from dynbench.engine.launching.progress import ProgressReader
from dynbench.engine.rank.evaluation import (
    EVAL_BATCH,
    EVAL_FILE,
    SCALARS_FOLDER,
    Epochs,
    Evaluator,
    Scalars,
    eval_batch_size,
    scalars_of,
)
from dynbench.engine.rank.loop import Loop
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.rank_facts import EPOCHS_FILE, read_epochs
from dynbench.runs.records import StepRow
from dynbench.runs.run import Run
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.policy import Problem
from dynbench.sync.base import Local
from dynbench.workloads.causal_lm import CausalLanguageModel

CPU = torch.device("cpu")
SAMPLES = 90


def configured(seed: int = 0) -> Config:
    workload = ("name=causal_lm", "size=tiny", "dropout=0", "max_length=24", "subset=16")
    train = (f"train.seed={seed}", f"train.eval_samples={SAMPLES}", "train.global_batch=8")
    return resolved(*(f"workload.{each}" for each in workload), *train).config


@pytest.fixture(scope="module")
def workload() -> CausalLanguageModel:
    return CausalLanguageModel(configured())


def evaluated(folder: Path, workload: CausalLanguageModel, ranks: int, seed: int = 0) -> dict[str, object]:
    """The last whole row of eval.csv, of a model of one seed evaluated by several ranks one after another."""
    model, strategy, sums = workload.build_model(0), Local(), []
    strategy.wrap(model, CPU)

    def added(mine):
        sums.append(mine)
        return np.sum(sums, axis=0).tolist()

    for rank in range(ranks):
        file = folder / EVAL_FILE if rank == ranks - 1 else None
        evaluator = Evaluator(configured(seed), workload, CPU, shard=(rank, ranks), sum_over_ranks=added, file=file)
        evaluator.evaluate(3, strategy, Precision("fp32", CPU))
    with (folder / EVAL_FILE).open("a", encoding="utf-8") as torn:
        torn.write("9,0.1,")
    return _read_evaluations([Run(folder)]).to_dicts()[-1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, workload: CausalLanguageModel) -> dict[str, object]:
    """What one rank finds by itself."""
    return evaluated(tmp_path_factory.mktemp("one"), workload, 1)


@pytest.mark.slow
def test_perplexity_is_of_the_mean_over_target_tokens(alone, workload):
    assert list(alone) == ["step", "loss", "perplexity", "tokens", "samples"]
    chosen = np.random.default_rng(0).permutation(len(workload.eval))[:SAMPLES]
    model, total = workload.build_model(0).eval(), 0.0
    with torch.no_grad():
        for i in chosen:
            total += workload.loss(model, workload.collate(workload.eval, np.array([i]), 24)).item()
    tokens = int(workload.eval.lengths[chosen].sum()) - SAMPLES
    assert (alone["tokens"], alone["samples"]) == (tokens, SAMPLES)
    assert alone["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert alone["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)


@pytest.mark.parametrize(("ranks", "seed"), [(3, 0), (1, 5), (4, 7)])
def test_neither_ranks_nor_seeds_change_it(tmp_path, workload, alone, ranks, seed):
    shared = evaluated(tmp_path, workload, ranks, seed)
    assert shared == {**alone, **{key: pytest.approx(alone[key], rel=1e-5) for key in ("loss", "perplexity")}}


@pytest.mark.parametrize(
    ("capacity", "most"),
    [(Capacity(), EVAL_BATCH), (Capacity.uniform(500), EVAL_BATCH), (Capacity.per_rank((30, 7)), 7),
     (Capacity.table([[(8, 40), (24, 5)]]), 5), (Capacity.table([[(8, 40)]]), 1),
     (PackedCapacity.uniform(24 * 9 + 5), 9), (PackedCapacity.uniform(23), 1)],
)  # fmt: skip
def test_no_more_is_evaluated_at_a_time_than_training_has_room_for(workload, capacity, most):
    """In samples as long as the longest of them, which is padded or packed to 24 tokens."""
    assert workload.eval.lengths.max() == 24
    layout = "packed" if isinstance(capacity, PackedCapacity) else "padded"
    problem = Problem(workload.train.lengths, workers=2, global_batch=8, capacity=capacity, layout=layout)
    assert eval_batch_size(configured(), problem, workload) == most


def test_a_loss_beyond_all_numbers_has_no_perplexity(tmp_path, workload, monkeypatch):
    monkeypatch.setattr(workload, "eval_sums", lambda *_: {"loss_sum": 1e6, "tokens": 1.0})
    assert evaluated(tmp_path, workload, 1)["perplexity"] == math.inf


TRAIN = Train(epochs=2, steps=7, warmup_steps=1)
ROW = StepRow(**{field.name: 0 for field in fields(StepRow)} | {"policy": "static"})
Said = Callable[[], list[str]]


def row(rank: int, samples: int, loss: float, ms: float) -> StepRow:
    return replace(ROW, rank=rank, local_batch=samples, weight=float(samples), loss=loss, step_time_ms=ms)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """What was logged since it was last asked."""
    caplog.set_level(logging.INFO)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return lines


def test_without_epochs_nothing_is_exchanged(said):
    none = Epochs(Train(), lambda _: pytest.fail("a collective"))
    none.add(row(0, 6, 1.0, 50.0), {})
    none.end(3, {"loss": 0.5})
    assert said() == []


def test_every_run_of_a_launch_keeps_its_own_and_one_is_said(tmp_path, said):
    runs = [Run(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        run.ranks_dir.mkdir(parents=True)
    arms = [Epochs(TRAIN, list, file=run.ranks_dir / EPOCHS_FILE, says=run is runs[0]) for run in runs]
    for step in (3, 7):
        for loss, epochs in enumerate(arms, 1):
            epochs.add(row(0, 6, float(loss), 50.0), {"correct": 3})
            epochs.end(step, {"loss": 0.5, "accuracy": 0.875})
    kept = tuple(tuple(read_epochs(run)) for run in runs)
    for loss, lines in enumerate(kept, 1):
        said_of = f"training loss {loss}.0000, accuracy 50.0%; evaluation loss 0.5000, accuracy 87.5%"
        assert [line.rpartition("; ")[0] for line in lines] == [f"epoch {number} of 2: {said_of}" for number in (1, 2)]
    assert tuple(said()) == kept[0]
    for run in runs:
        run.rank_file(0).write_text("step,weight,real_tokens,compute_ms,step_time_ms,loss\n0,1,10,10,40,1.0\n")
    assert ProgressReader(runs, [range(1)] * 2, 8, None).look().epochs == kept


def test_each_side_of_a_server_is_said_with_the_means_of_its_own_rows(said):
    """Ranks of either side leave the other's columns empty; the sums of four ranks and four steps meet in one line.

    The steps of the first that trains are the time: rank 0, the server, has no samples and steps that take longer.
    """
    epochs = Epochs(TRAIN, list, timed=1, sides={"worker": ("push_ms", "pull_ms"), "server": ("send_ms",)})
    for step in range(8):
        epochs.add(row(0, 0, 0.0, 900.0), {"push_ms": None, "pull_ms": None, "send_ms": 100.0 + step})
        for rank in (1, 2, 3):
            sent = {"push_ms": 10.0 * rank + step, "pull_ms": 30.0 * rank + step, "send_ms": None}
            epochs.add(row(rank, rank, float(rank), 60.0 + step), sent)
        epochs.end(step, None)
    assert said() == [
        "epoch 1 of 2: training loss 2.3333; 0.2 s, 61.5 ms a batch, 98 samples/s; "
        "worker: push 21.5 ms, pull 61.5 ms; server: send 101.5 ms",
        "epoch 2 of 2: training loss 2.3333; 0.3 s, 65.5 ms a batch, 92 samples/s; "
        "worker: push 25.5 ms, pull 65.5 ms; server: send 105.5 ms",
    ]


@pytest.mark.parametrize(("steps", "lines"), [(4, [1, 2, 3, 4]), (95, [*range(9, 95, 9), 95])])
def test_the_loss_of_about_ten_steps_is_logged(said, steps, lines):
    loop = SimpleNamespace(config=SimpleNamespace(train=Train(steps=steps, warmup_steps=0)))
    for step in range(steps):
        Loop._log_step(loop, replace(row(1, 6, 0.5, 50.0), step=step))
    assert said() == [f"step {line} of {steps}: loss 0.5000 over the 6 samples of this rank, 50.0 ms" for line in lines]


def test_numbers_of_a_rank_s_rows_and_of_evaluations_are_drawn():
    drawn: dict[str, tuple[float, int]] = {}
    writer = SimpleNamespace(add_scalar=lambda tag, value, step: drawn.update({tag: (value, step)}))
    scalars = Scalars(writer)
    scalars.row(replace(row(1, 6, 0.5, 50.0), step=7), {"grad_norm": 2.0, "turn": 3, "push_ms": None})
    scalars.evaluation(7, {"loss": 0.25, "accuracy": None})
    wanted = {"evaluation/loss": (0.25, 7), "rank_1/loss": (0.5, 7), "rank_1/grad_norm": (2.0, 7)}
    assert drawn.items() >= wanted.items() and "evaluation/accuracy" not in drawn
    not_drawn = ("step", "rank", "warmup", "work_hash", "policy", "turn", "push_ms")
    assert drawn.keys().isdisjoint(f"rank_1/{name}" for name in not_drawn)


@pytest.mark.parametrize(("asked", "writes"), [(False, True), (True, False)])
def test_nothing_is_written_unasked_or_by_other_ranks(tmp_path, asked, writes):
    config = load_config(None, [f"train.tensorboard={asked}"])
    with scalars_of(config, Run(tmp_path), writes=writes) as scalars:
        scalars.evaluation(0, {"loss": 1.0})
    assert not (tmp_path / SCALARS_FOLDER).exists()
