"""Workloads on real ranks: a language model, also interrupted; images and digits; a trace of lengths."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import polars as pl
import pytest
import torch
from forked import forked_ranks
from multiproc.faults import Command, check, printed_by
from multiproc.launches import TINY, Launch, rows_of, sets
from photographs import cut_short, write_folder
from safetensors.torch import load_file

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.config.layers import load_config
from dynbench.engine.launching.progress import Progress
from dynbench.engine.launching.run_launch import launch_arms
from dynbench.engine.rank.saved import Saved, evaluate_saved
from dynbench.runs.records import read_columns
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

LANGUAGE = (
    *("workload.name=causal_lm", "workload.size=tiny", "workload.max_length=24", "workload.dropout=0"),
    *("schedule.mode=dynamic", "train.max_grad_norm=1.5", "train.schedule=linear", "train.save_model=true"),
)


def test_a_language_model_trains_on_real_ranks(launch: Launch) -> None:
    run = launch(*LANGUAGE)
    rows = rows_of(run)
    norms = rows.pivot(on="rank", index="step", values="grad_norm")
    assert norms["0"].to_list() == norms["1"].to_list() and norms["0"].min() > 0
    assert rows["clipped"].to_list() == [int(norm > 1.5) for norm in rows["grad_norm"]]
    assert {"grad_norm", "clipped"} <= set(read_columns(run.ranks_dir))
    assert (rows["weight"] == rows["real_tokens"] - rows["local_batch"]).all()

    summary = summary_of(merge_run(run))
    found = summary["eval"]
    assert isinstance(found, dict) and "accuracy" not in found
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"])) and found["unigram_perplexity"] > 10
    for name in ("best", "last"):
        again = evaluate_saved(Saved(run.path / "model" / name, run.config_file).config())
        assert again["loss"] == pytest.approx(found["loss"], rel=1e-6)
        assert again["unigram_perplexity"] == found["unigram_perplexity"]


def endless(articles: Path) -> tuple[str, ...]:
    words = [f"word{number % 7} and number {number % 11}" for number in range(200)]
    articles.write_text(json.dumps([{"id": number, "title": "t", "text": text} for number, text in enumerate(words)]))
    workload = ("name=causal_lm", "size=tiny", "dataset=json", f"data_path={articles}", "max_length=24")
    return (*(f"workload.{each}" for each in workload), "train.steps=100000")


@pytest.mark.parametrize(
    "sync",
    [pytest.param(("name=ddp",), marks=pytest.mark.matrix), ("name=ps",), ("name=diloco", "inner_steps=3")],
    ids=lambda given: given[0][5:],
)
def test_what_was_learnt_is_kept_and_read_back(tmp_path: Path, sync: tuple[str, ...]) -> None:
    chosen = sets(*endless(tmp_path / "articles.json"), *(f"sync.{each}" for each in sync))
    begun = Command(tmp_path)
    process = begun.begin("train", "--save-model", *chosen)
    written = begun.wait_for_rows(6)
    process.send_signal(signal.SIGINT)
    ended = begun.end()
    check(ended, 130, Status.INTERRUPTED, rows=written)
    assert [path.name for path in (ended.run.path / "model").iterdir()] == ["last"]
    on_cpu = (ended.run.id, "--device", "cpu")
    code, found = printed_by(ended.store.root, "eval", *on_cpu)
    assert code == 0 and math.isfinite(found["loss"]) and found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    code, found = printed_by(ended.store.root, "generate", *on_cpu, "--prompt", "word1", "--length", "5")
    assert code == 0 and found["tokens"] <= 5


@pytest.fixture(scope="module")
def run(store: RunStore, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Progress]]:
    """Two epochs of a ResNet on 48 JPEGs, one of them broken, that are decoded ahead."""
    root, shown = tmp_path_factory.mktemp("photographs"), []
    write_folder(root / "data", train=16, val=4)
    cut_short(root / "data" / "train" / "cat" / "07.jpg")
    images = ("name=image_classification", "size=small", "image_size=16", "dataset=image_folder")
    data = (*images, f"data_path={root / 'data'}", f"cache_dir={root}", "workers=1")
    tiny = [each for each in TINY if not each.startswith(("train.steps", "workload.dropout", "train.warmup"))]
    trained = ("train.warmup_steps=1", "train.epochs=2", "train.save_model=true")
    config = load_config(None, [*tiny, *trained, *(f"workload.{each}" for each in data)])
    with forked_ranks():
        return launch_arms([(config, {})], store, on_progress=shown.append)[0], shown


def test_epochs_on_a_folder_of_photographs(run: tuple[Run, list[Progress]]) -> None:
    made, shown = run
    rows, summary = rows_of(made), summary_of(merge_run(made))
    epochs = summary["epochs"]
    assert isinstance(epochs, dict) and epochs["steps_per_epoch"] == 3, "47 images, 12 in a step"
    assert [(one["steps"], one["samples"]) for one in epochs["each"]] == [(3, 36), (3, 36)]
    assert all(one["eval_accuracy"] is not None and one["comm_ms"]["comm_ms"] > 0 for one in epochs["each"])
    per_epoch = rows.group_by(pl.col("step") // 3).agg(pl.col("correct").sum()).sort("step")["correct"]
    assert [one["train_accuracy"] for one in epochs["each"]] == [correct / 36 for correct in per_epoch]
    [lines] = shown[-1].epochs
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]
    for line, one in zip(lines, epochs["each"], strict=True):
        assert f"training loss {one['train_loss']:.4f}, accuracy {one['train_accuracy']:.1%};" in line
        assert f"evaluation loss {one['eval_loss']:.4f}, accuracy {one['eval_accuracy']:.1%};" in line
    assert shown[-1].unit == "samples"
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
