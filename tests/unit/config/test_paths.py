"""Files and folders that a configuration names are looked up where they are given, all of them at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.config.conftest import refused

from dynbench.config.layers import load_config
from dynbench.plugins import DATASETS

FILE_DATASETS = [name for name, entry in DATASETS.items() if entry.of_files and not entry.folder]
HUB_NAMES = ["distilbert-base-uncased", "google/bert_uncased_L-2_H-128_A-2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, a vocabulary and a model in it, as the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("data/train.tsv", "data/dev.tsv", "vocab.txt", "model/config.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("content")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def problems(*overrides: str, dataset: str = "tsv") -> list[str]:
    given = [f"workload.dataset={dataset}", "workload.data_path=data/train.tsv"]
    given += [] if DATASETS[dataset].classes else ["workload.name=causal_lm"]
    given += ["workload.tokenizer=vocab.txt"] if DATASETS[dataset].of_texts else []
    return refused(load_config, None, [*given, *overrides], paths=True)


@pytest.mark.parametrize("dataset", FILE_DATASETS)
def test_every_data_set_of_files_is_looked_up(dataset, here):
    assert problems(dataset=dataset) == []
    said = problems("workload.data_path=data/trian.tsv", "workload.eval_path=data", dataset=dataset)
    assert said == [
        f"--set workload.data_path: 'data/trian.tsv' does not exist: there is no 'trian.tsv' in {here / 'data'}. "
        "Did you mean 'data/train.tsv'?",
        "--set workload.eval_path: 'data' is a folder; expected a file, it holds 'dev.tsv', 'train.tsv'",
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tokenizer", "vocba.txt", "Did you mean 'vocab.txt'?"),
        ("tokenizer", "./modle", "Did you mean 'model'?"),
        ("tokenizer", "model/config.json", "is a file; expected a folder, perhaps 'model', or a hub name"),
        ("tokenizer", "empty", "is an empty folder"),
        ("model", "./modle", "Did you mean 'model'?"),
        ("model", "some/where/model", "does not exist: there is no 'some'"),
        ("model", "~nobody-of-that-name/model", "cannot be used as a path"),
        ("data_path", "dta/train.tsv", "there is no 'dta' in HERE. Did you mean 'data/train.tsv'?"),
        ("data_path", "HERE/dtaa/other.tsv", "there is no 'dtaa' in HERE. Did you mean 'HERE/data'?"),
        ("data_path", "pipe", "is a pipe or a device"),
        ("data_path", "~nobody-of-that-name/train.tsv", "cannot be used as a path"),
        ("data_path", "x" * 5000, "cannot be used as a path: File name too long"),
        ("data_path", "vocab.txt/train.tsv", "cannot be used as a path: Not a directory"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_key(key, value, said, here):
    """Of a path, the first part that is wrong is mended."""
    value, said = (text.replace("HERE", str(here)) for text in (value, said))
    (problem,) = problems("workload.weights=pretrained", "workload.model=model", f"workload.{key}={value}")
    assert problem.startswith(f"--set workload.{key}: {value!r} ") and said in problem


@pytest.mark.parametrize("name", [*HUB_NAMES, "model", "./model", "model/"])
def test_hub_names_and_folders_pass(name):
    assert not problems(f"workload.model={name}", f"workload.tokenizer={name}", "workload.weights=pretrained")


def test_what_training_does_not_read_is_not_looked_up():
    assert not problems("workload.model=./nowhere")
    assert problems("workload.model=./nowhere", "workload.tokenizer=null")
    assert load_config(None, ["workload.model=./nowhere"], paths=True).workload.model == "./nowhere"
