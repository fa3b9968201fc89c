"""A run folder from a stranger: what leads out of it, or has no end, is not read; what it names stays below it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.errors import RecordError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, check_own_files
from dynbench.workloads.own_code import FILE, own_code_settings, remember_run

PLANTED: dict[str, tuple[str, str | None]] = {
    "a link to a file outside": ("env.json", "../../precious"),
    "a link to a folder outside": ("figures", "../.."),
    "a link from further down": ("ranks/rank_0.csv", "../../../precious"),
    "a link to itself": ("config.yaml", "config.yaml"),
    "a link to what is above it": ("ranks/again", ".."),
    "a link to nothing": ("eval.csv", "nothing"),
    "a link to a device": ("config.yaml", "/dev/zero"),
    "a pipe": ("config.yaml", None),
    "a pipe further down": ("ranks/rank_0.csv", None),
}
"""A file of the run folder, and what it leads to."""


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose registry is where commands look, which are run beside it."""
    (tmp_path / "precious").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNBENCH_RESULTS", str(run.path.parent))
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    return run


COMMANDS = (
    *(("analyze", "mine"), ("report", "mine"), ("runs", "show", "mine"), ("runs", "export", "mine", "-o", "out.zip")),
    *(("data", "lengths", "mine"), ("solve", "--from-run", "mine"), ("eval", "mine"), ("tensorboard", "mine")),
    *(("compare", "--resume", "mine"), ("train", "--dry-run", "--set", "probe.run=mine")),
)
TRIED = ("a link to a file outside", "a pipe")
"""What every command meets: one by one the others are found by the same look."""


@pytest.mark.parametrize("kind", PLANTED)
def test_it_is_named_by_every_command_that_reads_runs(run: Run, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    here, model = run.path.parent.parent, run.path / "model"
    (model / "last").mkdir(parents=True)
    (model / "best").symlink_to("last")
    check_own_files(run.path)  # links within the folder are its own
    name, target = PLANTED[kind]
    if target is None:
        os.mkfifo(run.path / name)
    else:
        (run.path / name).symlink_to(target)
    before = sorted(here.rglob("*"))
    with pytest.raises(RecordError, match="so the run is not read"):
        check_own_files(run.path)
    for words in COMMANDS if kind in TRIED else COMMANDS[:1]:
        assert main([*words, "--json"]) == 2
        assert "so the run is not read" in json.loads(capsys.readouterr().out)["error"]["message"], words
    assert main(["runs", "ls", "--json"]) == 0
    assert sorted(here.rglob("*")) == before
    assert main(["runs", "rm", "mine", "--yes", "--force"]) == 0
    assert (here / "precious").read_text() == "{}", "what a link leads to stays"


def test_what_a_comparison_names_is_below_the_results(
    store: RunStore, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = store.create("analyze", "comparison", "both")
    outside = run.path.parent.parent / "elsewhere"
    run.path.rename(outside)
    record = {"runs": [{"id": "../elsewhere"}], "arms": [{"name": "a", "runs": ["../elsewhere"]}], "comparisons": []}
    (entry.path / "comparison.json").write_text(json.dumps(record))
    (entry.path / "cells.json").write_text(json.dumps({"recipe": "r", "cells": [{"settings": {}, "comparison": ".."}]}))
    for words in (("analyze", "both"), ("report", "both")):
        assert main([*words, "--json"]) == 2
        assert "is no id of a run" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert main(["runs", "show", "both"]) == 0
    assert "is no id of a run" in capsys.readouterr().err
    assert not (outside / "merged_metrics.parquet").exists()


def keeps_model(run: Run, **code: object) -> None:
    """The run has a saved model of a workload from a file."""
    run.config_file.write_text(dump_config(load_config(None, ["train.steps=1"]).model_copy(update=code)))
    (run.path / "model" / "last").mkdir(parents=True, exist_ok=True)
    (run.path / "model" / "last" / "config.json").write_text("{}")
    run.env_file.write_text("{}")


def test_code_that_a_run_names_is_not_run(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By commands that read no rows; the others are in unit/experiment/test_own_workload.py."""
    (run.path / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\nclass Evil: pass\n")
    keeps_model(run, workload=load_config(None, [f"workload.name={run.path / 'evil.py'}:Evil"]).workload)
    for words in ("data lengths mine", "eval mine", "generate mine --prompt a", "doctor quickstart"):
        main(words.split())
        assert not (tmp_path / "pwned").exists(), words
    assert "is not run because a run names it" in capsys.readouterr().err


def test_code_of_a_run_that_was_made_here_is_run(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tmp_path / "own_here.py"
    code.write_text("raise RuntimeError('it was run')\nclass Own(dict): pass\n")
    own = load_config(None, ["workload.name=own_here.py:Own"]).workload
    pinned = own.model_copy(update=own_code_settings(own))
    keeps_model(run, workload=pinned)

    def evaluated() -> str:
        assert main(["eval", "mine"]) in (2, 3)
        return capsys.readouterr().err

    remember_run("another-run", pinned)
    assert "is not run because a run names it: the run was not made here" in evaluated()
    remember_run(run.id, pinned)
    assert "it was run" in evaluated()
    code.write_text("raise RuntimeError('another was run')\nclass Own(dict): pass\n")
    assert "it has changed since" in evaluated()
    keeps_model(run, workload=pinned.model_copy(update=own_code_settings(own)))
    assert "the run was not made here" in evaluated()
    (tmp_path / "cache" / FILE).write_bytes(b"\xff")
    assert "the run was not made here" in evaluated()


def test_where_a_run_kept_its_data_nothing_is_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "a b\t0\nb\t1\n" * 10)
    files = {"data_path": "train.tsv", "tokenizer": "vocab.txt", "cache_dir": "theirs"}
    settings = [f"workload.{key}={tmp_path / name}" for key, name in files.items()]
    run.config_file.write_text(
        dump_config(load_config(None, ["workload.dataset=tsv", "train.global_batch=4", *settings]))
    )
    run.env_file.write_text("{}")
    lengths = run.path.parent / "lengths.csv"
    assert main(["data", "lengths", "mine", "-o", str(lengths)]) == 0
    assert lengths.read_text().startswith("length\n") and not (tmp_path / "theirs").exists()
