"""Images and digits on real ranks: epochs, right answers, one set of batch-norm statistics, the model that is kept."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from forked import forked_ranks
from multiproc.launches import TINY, rows_of
from photographs import cut_short, write_folder
from safetensors.torch import load_file

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.analysis.verdict import weights_difference
from dynbench.config.layers import load_config
from dynbench.engine.launching.progress import Progress
from dynbench.engine.launching.run_launch import launch_training
from dynbench.engine.rank.saved import Saved, evaluate_saved
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc
SMALL = ("workload.name=image_classification", "workload.size=small", "workload.image_size=16")


def launched(store: RunStore, *given: str, told: list[Progress] | None = None) -> Run:
    """A run in epochs of the tiny settings."""
    tiny = [each for each in TINY if not each.startswith(("train.steps", "workload.dropout", "train.warmup"))]
    settings = [*tiny, "train.warmup_steps=1", "train.epochs=2", "train.save_model=true", *given]
    with forked_ranks():
        return launch_training(load_config(None, settings), store, on_progress=None if told is None else told.append)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 48 JPEGs, one of them broken, and its cache."""
    root = tmp_path_factory.mktemp("photographs")
    write_folder(root / "data", train=16, val=4)
    cut_short(root / "data" / "train" / "cat" / "07.jpg")
    return root


@pytest.fixture(scope="module")
def run(store: RunStore, photographs: Path) -> tuple[Run, list[Progress]]:
    """Two epochs of a ResNet, its images decoded ahead."""
    told: list[Progress] = []
    data = ("dataset=image_folder", f"data_path={photographs / 'data'}", f"cache_dir={photographs}", "workers=1")
    return launched(store, *SMALL, *(f"workload.{each}" for each in data), told=told), told


def test_epochs_on_a_folder_of_photographs(run: tuple[Run, list[Progress]]) -> None:
    made, told = run
    rows, summary = rows_of(made), summary_of(merge_run(made))
    epochs = summary["epochs"]
    assert isinstance(epochs, dict) and epochs["steps_per_epoch"] == 3, "47 images, 12 in a step"
    assert [(one["steps"], one["samples"]) for one in epochs["each"]] == [(3, 36), (3, 36)]
    assert all(one["eval_accuracy"] is not None and one["comm_ms"]["comm_ms"] > 0 for one in epochs["each"])
    per_epoch = rows.group_by(pl.col("step") // 3).agg(pl.col("correct").sum()).sort("step")["correct"]
    assert [one["train_accuracy"] for one in epochs["each"]] == [correct / 36 for correct in per_epoch]
    [lines] = told[-1].epochs
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]
    for line, one in zip(lines, epochs["each"], strict=True):
        assert f"training loss {one['train_loss']:.4f}, accuracy {one['train_accuracy']:.1%};" in line
        assert f"evaluation loss {one['eval_loss']:.4f}, accuracy {one['eval_accuracy']:.1%};" in line
    assert told[-1].unit == "samples"
    assert any("1 of 48 images" in warning and "cat/07.jpg" in warning for warning in made.record().warnings)


def test_the_kept_model_is_evaluated_as_in_training(run: tuple[Run, list[Progress]]) -> None:
    made, _ = run
    found = summary_of(merge_run(made))["eval"]
    assert isinstance(found, dict)
    again = evaluate_saved(Saved(made.path / "model" / "last", made.config_file).config())
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert (again["accuracy"], again["samples"]) == (found["accuracy"], found["samples"])
    state = load_file(made.path / "model" / "last" / "model.safetensors")
    assert any(
        name.endswith("running_var") and not torch.allclose(value, torch.ones(1)) for name, value in state.items()
    )


def test_two_ranks_end_with_the_weights_of_one(store: RunStore) -> None:
    adam = ("workload.name=mlp", "train.optimizer=adam", "train.learning_rate=0.001", "train.weight_decay=0")
    one, two = (launched(store, *adam, f"launch.nproc={ranks}") for ranks in (1, 2))
    merged = [merge_run(each) for each in (one, two)]
    difference = weights_difference([(merged[0], merged[1])])
    assert difference is not None and 0 < difference < 1e-5
    other = merge_run(launched(store, *adam, "launch.nproc=1", "train.seed=1"))
    assert weights_difference([(merged[0], other)]) > 0.1
    assert weights_difference([]) is None
