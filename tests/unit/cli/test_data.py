"""`dynbench data`."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe
from dynbench.config.schema import dump_config
from dynbench.experiment.trace_sources import training_trace
from dynbench.lengths import READERS, read_trace
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]
SUBSET = ("workload.subset=90", "workload.max_length=12")


@pytest.fixture
def store(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(store.root.parent)
    return store


def trained(store: RunStore, fingerprint: str | None = None) -> Run:
    """A run's records, as `train` leaves them."""
    run = store.create("train", "static", name="runA")
    write_text(run.config_file, dump_config(load_config(None, ["train.seed=4", *SUBSET])))
    write_json(run.env_file, {} if fingerprint is None else {"data": {"fingerprint": fingerprint}})
    return run


def refused(capsys: Output, *arguments: str) -> str:
    assert main(["data", "lengths", *arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["command"] == "data lengths"
    return f"{error['error']['message']} {error['error']['hint']}"


@pytest.mark.parametrize("suffix", READERS)
def test_a_run_gives_the_lengths_that_it_trained_on(store: RunStore, capsys: Output, suffix: str) -> None:
    config = trained(store).config()
    assert main(["data", "lengths", "runA", "-o", f"x{suffix}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert read_trace(Path(f"x{suffix}")).tolist() == training_trace(config).lengths.tolist()
    assert lines[0] == f"x{suffix}"
    assert lines[1].startswith("90 lengths in the order of the data (training data of runA)")
    assert lines[2] == f"next  dynbench train --dataset lengths --data-path x{suffix} --max-length 12"


def test_a_data_set_gives_the_lengths_that_would_be_trained_on(store: RunStore, capsys: Output) -> None:
    assert main(["data", "lengths", "--subset", "90", "--max-length", "12", "--seed", "4", "--json"]) == 0
    printed, written = json.loads(capsys.readouterr().out), pl.read_parquet("lengths.parquet")
    assert written.columns == ["length"] and printed["max_length"] == printed["lengths"]["max"] == 12
    assert written["length"].to_list() == training_trace(trained(store).config()).lengths.tolist()


def test_a_file_is_overwritten_only_when_forced(store: RunStore, capsys: Output) -> None:
    Path("x.csv").write_text("mine")
    assert "x.csv: exists already" in refused(capsys, "-o", "x.csv")
    assert Path("x.csv").read_text() == "mine"
    assert main(["data", "lengths", "-o", "x.csv", "--force"]) == 0
    assert len(read_trace(Path("x.csv"))) == 8192


def test_a_recipe_is_copied_over_a_file_only_when_forced(store: RunStore, capsys: Output) -> None:
    Path("mine.yaml").write_text("mine")
    copy = ["recipes", "cp", "quickstart", "mine.yaml"]
    assert main(copy) == 2
    assert "mine.yaml: exists already" in capsys.readouterr().err and Path("mine.yaml").read_text() == "mine"
    assert main([*copy, "--force"]) == 0
    assert Path("mine.yaml").read_bytes() == find_recipe("quickstart").read_bytes()


def test_a_file_that_cannot_be_written_leaves_nothing(store: RunStore, capsys: Output) -> None:
    assert "unknown trace format '.xls'" in refused(capsys, "-o", "x.xls", "--dataset", "tsv", "--data-path", "absent")
    assert "absent/x.csv: cannot be written" in refused(capsys, "-o", "absent/x.csv")
    assert list(Path().iterdir()) == []


def test_a_run_of_other_data_is_refused(store: RunStore, capsys: Output) -> None:
    trained(store, fingerprint="another")
    assert "is no longer the data that it trained on" in refused(capsys, "runA")
    store.create("solve", "solve", name="offline")
    assert "offline: a run of `solve` has no data set" in refused(capsys, "offline")
    assert not Path("lengths.parquet").exists()


@pytest.mark.parametrize(
    "given",
    [
        ["--set", "train.global_batch=64"],
        ["--set", "train.global_batch=13", "--set", "launch.launcher=virtual", "--set", "launch.world_size=3"],
    ],
)
@pytest.mark.parametrize(
    "command",
    [["data", "lengths", "-o", "x.csv"], ["solve", "embedded", "--policy", "static", "--steps", "1", "--no-figures"]],
)
def test_lengths_need_no_batch_that_ranks_could_train_on(
    store: RunStore, capsys: Output, command: list[str], given: list[str]
) -> None:
    sizes = ["--world-size", "2", "--global-batch", "8"] if command[0] == "solve" else []
    assert main([*command, *sizes, "--subset", "50", *given]) == 0, capsys.readouterr().err
