"""Workloads on real ranks: a language model, also interrupted; images and digits; a trace of lengths."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from forked import forked_ranks
from multiproc.launches import TINY, Launch, fork, rows_of, wait_until, work_hashes
from photographs import cut_short, write_folder
from safetensors.torch import load_file

from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.summary import summary_of
from dynbench.analysis.verdict import weights_difference
from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.engine.launching.progress import Progress
from dynbench.engine.launching.run_launch import launch_arms
from dynbench.engine.planning import build_problem
from dynbench.engine.rank.saved import Saved, evaluate_saved
from dynbench.runs.records import read_columns, work_hash
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import Planner
from dynbench.workloads.registry import build_workload

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
    return (*TINY, *(f"workload.{each}" for each in workload), "train.steps=100000")


def lines(run: Run, rank: int) -> int:
    file = run.rank_file(rank)
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize(
    "sync",
    [pytest.param(("name=ddp",), marks=pytest.mark.matrix), ("name=ps",), ("name=diloco", "inner_steps=3")],
    ids=lambda given: given[0][5:],
)
def test_what_was_learnt_is_kept_and_read_back(tmp_path: Path, sync: tuple[str, ...]) -> None:
    chosen = (*endless(tmp_path / "articles.json"), *(f"sync.{each}" for each in sync))
    process = fork(tmp_path, "train", "--json", "--save-model", settings=chosen)
    store = RunStore(tmp_path)
    wait_until(lambda: len(store.list()) == 1, "the run folder")
    (run,) = store.list()
    wait_until(lambda: all(lines(run, rank) > 6 for rank in (0, 1)), "the first rows")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    assert (run.status, run.record().exit_code) == (Status.INTERRUPTED, 130)

    assert [path.name for path in (run.path / "model").iterdir()] == ["last"]
    rows = rows_of(run)
    if sync == ("name=ddp",):  # under others, some columns are those of one rank
        nulls = rows.null_count()
        assert nulls.sum_horizontal().item() == 0
    for rank in (0, 1):
        text = run.rank_file(rank).read_text()
        assert text.endswith("\n") and {line.count(",") for line in text.splitlines()} == {rows.width - 1}

    found = answer(tmp_path, "eval", run.id)
    assert math.isfinite(found["loss"]) and found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert answer(tmp_path, "generate", run.id, "--prompt", "word1", "--length", "5")["tokens"] <= 5


def answer(results: Path, *arguments: str) -> dict[str, object]:
    process = fork(results, *arguments, "--json", "--device", "cpu")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return json.loads(stdout)


SMALL_IMAGES = ("workload.name=image_classification", "workload.size=small", "workload.image_size=16")


def launched(store: RunStore, *given: str, shown: list[Progress] | None = None) -> Run:
    """A run in epochs of the tiny settings."""
    tiny = [each for each in TINY if not each.startswith(("train.steps", "workload.dropout", "train.warmup"))]
    settings = [*tiny, "train.warmup_steps=1", "train.epochs=2", "train.save_model=true", *given]
    with forked_ranks():
        on_progress = None if shown is None else shown.append
        return launch_arms([(load_config(None, settings), {})], store, on_progress=on_progress)[0]


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
    shown: list[Progress] = []
    data = ("dataset=image_folder", f"data_path={photographs / 'data'}", f"cache_dir={photographs}", "workers=1")
    return launched(store, *SMALL_IMAGES, *(f"workload.{each}" for each in data), shown=shown), shown


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


DIGITS = (
    *(each for each in TINY if "dropout" not in each),
    *("workload.name=mlp", "sync.name=naive", "train.optimizer=sgd", "train.learning_rate=0.1"),
    "train.save_model=true",
)
UNWEIGHTED = "from dynbench.engine.rank import exchange; exchange.GlobalBatch.scale = lambda it: 1 / it.samples()"
"""A rank's part of the mean without the number of ranks that it is averaged over."""


def trained_on_digits(store: RunStore, ranks: int, first: str = "") -> MergedRun:
    process = fork(store.root, "train", settings=(*DIGITS, f"launch.nproc={ranks}"), first=first)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return merge_run(store.resolve("@latest"))


def test_two_naive_ranks_end_with_the_weights_of_one_process_and_wrongly_weighted_ones_do_not(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    one, two, wrong = (trained_on_digits(store, *each) for each in ((1,), (2,), (2, UNWEIGHTED)))
    rounding, apart = weights_difference([(one, two)]), weights_difference([(one, wrong)])
    assert rounding is not None and apart is not None and rounding < 1e-6 < 1e-3 < apart


STEPS = (
    "schedule.mode=dynamic",
    "train.steps=3",
    "train.warmup_steps=0",
    "train.global_batch=12",
    "workload.subset=60",
)


def test_ranks_on_exported_lengths_run_the_steps_of_the_texts(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    words = np.random.default_rng(2).integers(1, 60, 120)
    rows = [f"{'good ' * count}\t{row % 2}" for row, count in enumerate(words)]
    (tmp_path / "own.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\n", encoding="utf-8")
    texts = ["--dataset", "tsv", "--data-path", str(tmp_path / "own.tsv"), "--tokenizer", str(tmp_path / "vocab.txt")]
    trace = tmp_path / "shared.parquet"
    assert main(["data", "lengths", *texts, "-o", str(trace)]) == 0

    run = launch(*STEPS, "workload.dataset=lengths", f"workload.data_path={trace}")

    own = (f"workload.{key[2:].replace('-', '_')}={value}" for key, value in zip(texts[::2], texts[1::2], strict=True))
    config = load_config(None, [*STEPS, *own])
    lengths = build_workload(config).train.lengths
    planner = Planner("partition", build_problem(config, lengths, 2, 1))
    shares = [[np.concatenate(share) for share in planner.plan(step).shares] for step in range(3)]
    assert work_hashes(run) == [work_hash(ids := np.concatenate(step), lengths[ids]) for step in shares]
    found = rows_of(run)
    assert found["local_batch"].to_list() == [len(ids) for step in shares for ids in step]
    assert found["max_seq_len_in_batch"].to_list() == [int(lengths[ids].max()) for step in shares for ids in step]
    assert run.env()["data"]["train_source"] == str(trace)


def test_ranks_on_a_trace_of_two_columns_run_what_both_were_planned_for(launch: Launch, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lengths, patches = rng.integers(2, 60, 60), rng.choice([0, 0, 30, 200], 60)
    pl.DataFrame({"length": lengths, "patches": patches}).write_csv(tmp_path / "two.csv")
    wanted = (
        *(*STEPS[:-1], "schedule.policy=prefix", "schedule.exchange=gather", "schedule.second_weight=0.5"),
        *("workload.dataset=lengths", f"workload.data_path={tmp_path / 'two.csv'}", "workload.second_column=patches"),
    )
    run = launch(*wanted)

    problem = build_problem(load_config(None, list(wanted)), lengths, 2, 1, second=patches)
    found = rows_of(run)["local_batch"].to_list()
    knows, blind = (
        [count for step in range(3) for count in Planner("prefix", each).plan(step).local_batches]
        for each in (problem, replace(problem, second=None))
    )
    assert found == knows != blind
