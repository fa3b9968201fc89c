"""The line of an epoch: what all ranks trained in it, and what the evaluation found."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dynbench.config.schema import Train
from dynbench.engine.launching.progress import ProgressReader
from dynbench.engine.rank.evaluation import Epochs
from dynbench.engine.rank.rank_facts import Told, epochs_file, read_epochs
from dynbench.runs.records import StepRow
from dynbench.runs.run import Run

TRAIN = Train(epochs=2, steps=7, warmup_steps=1)
ROW = StepRow(**{field.name: 0 for field in fields(StepRow)} | {"policy": "static"})


def row(rank: int, samples: int, loss: float, ms: float) -> StepRow:
    return replace(ROW, rank=rank, local_batch=samples, weight=float(samples), loss=loss, step_time_ms=ms)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_epoch_is_said_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    epochs = Epochs(TRAIN, list)
    assert [step for step in range(8) if epochs.ends(step)] == [3, 7]
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            epochs.add(row(0, 6, 1.0, 50.0), {"correct": 3})
            epochs.add(row(1, 2, 3.0, 70.0), {"correct": 1})
        epochs.end(2, {"loss": 9.0, "accuracy": 0.0})
        assert said(caplog) == []
        epochs.end(3, {"loss": 0.5, "accuracy": 0.875})
    assert said(caplog) == [
        "epoch 1 of 2: training loss 1.5000, accuracy 50.0%; evaluation loss 0.5000, accuracy 87.5%; "
        "0.2 s, 160 samples/s"
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        epochs.add(row(0, 6, 2.0, 50.0), {"correct": 6})
        epochs.end(7, None)
    assert said(caplog) == ["epoch 2 of 2: training loss 2.0000, accuracy 100.0%; 0.1 s, 120 samples/s"], "begun anew"


def test_workloads_that_count_nothing_have_no_accuracy(caplog: pytest.LogCaptureFixture) -> None:
    epochs = Epochs(TRAIN, list)
    with caplog.at_level(logging.INFO):
        epochs.add(row(0, 6, 1.0, 50.0), {})
        epochs.end(3, {"loss": 0.5, "perplexity": 1.6})
    assert said(caplog) == ["epoch 1 of 2: training loss 1.0000; evaluation loss 0.5000; 0.1 s, 120 samples/s"]


def test_without_epochs_nothing_is_said_and_nothing_exchanged() -> None:
    epochs = Epochs(Train(), lambda _: pytest.fail("a collective"))
    epochs.add(row(0, 6, 1.0, 50.0), {})
    assert not any(map(epochs.ends, range(200)))
    epochs.end(99, {"loss": 1.0})


def test_every_run_of_a_launch_keeps_its_own(tmp_path: Path) -> None:
    runs = [Run(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        run.ranks_dir.mkdir(parents=True)
    arms = [Epochs(TRAIN, list, file=epochs_file(run)) for run in runs]
    for step in (3, 7):
        for loss, epochs in enumerate(arms, 1):
            epochs.add(row(0, 6, float(loss), 50.0), {})
            epochs.end(step, None)
    for loss, run in enumerate(runs, 1):
        assert [line.partition("; ")[0] for line in read_epochs(run)] == [
            f"epoch {number} of 2: training loss {loss}.0000" for number in (1, 2)
        ]
    for run in runs:
        run.rank_file(0).write_text("step,weight,real_tokens,compute_ms,step_time_ms,loss\n0,1,10,10,40,1.0\n")
    told = ProgressReader(runs, [range(1)] * 2, 8, None).look().epochs
    assert told == tuple(tuple(read_epochs(run)) for run in runs)


def test_the_first_that_trains_says_it_and_its_steps_are_the_time(caplog: pytest.LogCaptureFixture) -> None:
    """Under a server, rank 0, whose steps take as long, and which has no samples."""
    arms = [Epochs(TRAIN, list, timed=1, says=says) for says in (False, True)]
    with caplog.at_level(logging.INFO):
        for epochs in arms:
            epochs.add(row(0, 0, 0.0, 900.0), {})
            epochs.add(row(1, 6, 1.0, 50.0), {})
            epochs.end(3, None)
    assert said(caplog) == ["epoch 1 of 2: training loss 1.0000; 0.1 s, 120 samples/s"]


@pytest.mark.parametrize(("steps", "lines"), [(4, [1, 2, 3, 4]), (95, [*range(9, 95, 9), 95])])
def test_the_loss_of_about_ten_steps_is_said(caplog: pytest.LogCaptureFixture, steps: int, lines: list[int]) -> None:
    with caplog.at_level(logging.INFO):
        for says in (False, True):
            told = Told(steps, says=says)
            for step in range(steps):
                told.step(replace(row(1, 6, 0.5, 50.0), step=step))
    assert [int(line.split()[1]) for line in said(caplog)] == lines
    assert said(caplog)[0] == f"step {lines[0]} of {steps}: loss 0.5000 over the 6 samples of this rank, 50.0 ms"
