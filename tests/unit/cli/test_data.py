"""`dynbench data`."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe
from dynbench.config.schema import dump_config
from dynbench.experiment.trace_sources import training_trace
from dynbench.lengths import READERS, read_trace
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

ODD = "--set train.global_batch=13 --set launch.launcher=virtual --set launch.world_size=3"
PLAN = "--policy static --steps 1 --world-size 2 --global-batch 8"
SUBSET = ("workload.subset=90", "workload.max_length=12")


def trained(store: RunStore, fingerprint: str | None = None) -> Run:
    """A run's records, as `train` leaves them."""
    run = store.create("train", "static", name="runA")
    write_text(run.config_file, dump_config(load_config(None, ["train.seed=4", *SUBSET])))
    write_json(run.env_file, {} if fingerprint is None else {"data": {"fingerprint": fingerprint}})
    return run


@pytest.mark.parametrize("suffix", READERS)
def test_a_run_gives_the_lengths_that_it_trained_on(store, cli, suffix):
    config = trained(store).config()
    lines = cli(f"data lengths runA -o x{suffix}").lines
    assert read_trace(Path(f"x{suffix}")).tolist() == training_trace(config).lengths.tolist()
    assert lines[0] == f"x{suffix}" and lines[1].startswith("90 lengths")
    assert lines[2] == f"next  dynbench train --dataset lengths --data-path x{suffix} --max-length 12"


def test_a_data_set_gives_the_lengths_that_would_be_trained_on(store, cli):
    printed = cli("data lengths --subset 90 --max-length 12 --seed 4 --json").json
    written = pl.read_parquet("lengths.parquet")
    assert written.columns == ["length"] and printed["max_length"] == printed["lengths"]["max"] == 12
    assert written["length"].to_list() == training_trace(trained(store).config()).lengths.tolist()


@pytest.mark.parametrize(
    ("file", "command"), [("x.csv", "data lengths -o x.csv"), ("mine.yaml", "recipes cp quickstart mine.yaml")]
)
def test_a_file_is_overwritten_only_when_forced(store, cli, file, command):
    Path(file).write_text("mine")
    assert f"{file}: exists already" in cli(command, code=2).err
    assert Path(file).read_text() == "mine"
    cli(f"{command} --force")
    if file == "x.csv":
        assert len(read_trace(Path(file))) == 8192
    else:
        assert Path(file).read_bytes() == find_recipe("quickstart").read_bytes()


def test_other_data_than_a_run_trained_on_are_refused(store, cli):
    trained(store, fingerprint="another")
    assert "is no longer the data that it trained on" in cli("data lengths runA", code=2).err
    assert not Path("lengths.parquet").exists()


@pytest.mark.parametrize("command", ["data lengths -o x.csv", f"solve embedded --no-figures {PLAN}"])
def test_lengths_need_no_batch_that_ranks_could_train_on(store, cli, command):
    cli(f"{command} --subset 50 {ODD}")
