"""A run folder from a stranger: what leads out of it, or has no end, is not read; what it names stays below it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dynbench.cli.main import main
from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.errors import RecordError
from dynbench.runs.atomic import load_json
from dynbench.runs.lookup import check_own_files
from dynbench.runs.names import is_part
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.workloads.own_code import FILE, own_code_settings, remember_run

PLANTED: dict[str, Callable[[Path], object]] = {
    "a link to a file outside": lambda run: (run / "env.json").symlink_to(run.parent.parent / "precious"),
    "a link to a folder outside": lambda run: (run / "figures").symlink_to(run.parent.parent),
    "a link by a relative path": lambda run: (run / "ranks" / "rank_0.csv").symlink_to("../../../precious"),
    "a link to itself": lambda run: (run / "config.yaml").symlink_to("config.yaml"),
    "a link to what is above it": lambda run: (run / "ranks" / "again").symlink_to(".."),
    "a link to nothing": lambda run: (run / "eval.csv").symlink_to("nothing"),
    "a link to a device": lambda run: (run / "config.yaml").symlink_to("/dev/zero"),
    "a pipe": lambda run: os.mkfifo(run / "config.yaml"),
    "a pipe further down": lambda run: os.mkfifo(run / "ranks" / "rank_0.csv"),
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "precious").write_text("{}")
    return RunStore(tmp_path / "results").create("train", "static", "mine")


@pytest.mark.parametrize("kind", PLANTED)
def test_it_is_named_by_every_command_that_reads_runs(
    run: Run, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED[kind](run.path)
    monkeypatch.setenv("DYNBENCH_RESULTS", str(run.path.parent))
    before = sorted(run.path.parent.parent.rglob("*"))
    with pytest.raises(RecordError, match="so the run is not read"):
        check_own_files(run.path)
    for words in (
        ("analyze", "mine"),
        ("report", "mine"),
        ("runs", "show", "mine"),
        ("runs", "export", "mine", "-o", str(run.path.parent / "out.zip")),
        ("data", "lengths", "mine"),
        ("solve", "--from-run", "mine"),
        ("eval", "mine"),
        ("tensorboard", "mine"),
        ("compare", "--resume", "mine"),
        ("train", "--dry-run", "--set", "probe.run=mine"),
    ):
        assert main([*words, "--json"]) == 2
        assert "so the run is not read" in json.loads(capsys.readouterr().out)["error"]["message"], words
    assert main(["runs", "ls", "--json"]) == 0
    assert sorted(run.path.parent.parent.rglob("*")) == before
    assert main(["runs", "rm", "mine", "--yes", "--force"]) == 0
    assert (run.path.parent.parent / "precious").read_text() == "{}", "what a link leads to stays"


def test_links_within_the_folder_are_its_own(run: Run) -> None:
    (run.path / "model").mkdir()
    (run.path / "model" / "last").mkdir()
    (run.path / "model" / "best").symlink_to("last")
    check_own_files(run.path)


@pytest.mark.parametrize("text", ["..", ".", "", "a/b", "/etc", "../x", "a\0b", "a\nb", "\x1b[31m"])
def test_an_id_that_leads_elsewhere_is_none(text: str) -> None:
    assert not is_part(text)


@pytest.mark.parametrize("text", ["20261120-145312-dynamic-k3f9", "a copy (1)", "ä"])
def test_an_id_of_a_copied_folder_is_one(text: str) -> None:
    assert is_part(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "<script>"}, "name: '<script>' is not allowed as a name"),
        ({"name": "../../x"}, "is not allowed as a name"),
        ({"name": "\x1b[31mred"}, "is not allowed as a name"),
        ({"created": "yesterday"}, "created: "),
        ({"started": "2026-01-01T00:00:00"}, "names no time zone"),
    ],
)
def test_a_record_of_another_form_is_refused(run: Run, change: dict[str, str], said: str) -> None:
    run.record_file.write_text(json.dumps(json.loads(run.record_file.read_text()) | change))
    with pytest.raises(RecordError) as caught:
        run.record()
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested"),
        ("[" * 40 + "]" * 40, "nested"),
        ('{"a": ' * 40 + "1" + "}" * 40, "nested"),
        ('{"a": "x\\u0000y"}', "null characters"),
        ('{"a": "\\ud800"}', "surrogates"),
        ("9" * 5000, "digits"),
    ],
)
def test_json_that_no_record_holds(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        load_json(path)


def test_text_that_only_looks_so_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"argv": ["\\u0000", "\U0001f600"]}))
    assert load_json(path) == {"argv": ["\\u0000", "\U0001f600"]}


def test_what_a_comparison_names_stays_below_the_results(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(run.path.parent)
    entry = store.create("analyze", "comparison", "both")
    outside = run.path.parent.parent / "elsewhere"
    run.path.rename(outside)
    record = {"runs": [{"id": "../elsewhere"}], "arms": [{"name": "a", "runs": ["../elsewhere"]}], "comparisons": []}
    (entry.path / "comparison.json").write_text(json.dumps(record))
    (entry.path / "cells.json").write_text(json.dumps({"recipe": "r", "cells": [{"settings": {}, "comparison": ".."}]}))
    for words in (("analyze", "both"), ("report", "both")):
        assert main([*words, "--json", "--results", str(store.root)]) == 2
        assert "is no id of a run" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert main(["runs", "show", "both", "--results", str(store.root)]) == 0
    assert "is no id of a run" in capsys.readouterr().err
    assert not (outside / "merged_metrics.parquet").exists()


@pytest.fixture
def beside(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose registry is where commands look, which are run beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNBENCH_RESULTS", str(run.path.parent))
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    return run


def test_code_that_a_run_names_is_not_run_to_read_it(
    beside: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = beside
    (run.path / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\nclass Evil: pass\n")
    code = f"workload.name={run.path / 'evil.py'}:Evil"
    run.config_file.write_text(dump_config(load_config(None, [code, "train.steps=1"])))
    (run.path / "model" / "last").mkdir(parents=True)
    (run.path / "model" / "last" / "config.json").write_text("{}")
    run.env_file.write_text("{}")
    for words in (
        ("analyze", "mine"),
        ("report", "mine"),
        ("runs", "show", "mine"),
        ("data", "lengths", "mine"),
        ("solve", "--from-run", "mine"),
        ("eval", "mine"),
        ("generate", "mine", "--prompt", "a"),
        ("doctor", "quickstart"),
    ):
        main([*words])
        assert not (tmp_path / "pwned").exists(), words
    assert "is not run because a run names it" in capsys.readouterr().err


def test_code_of_a_run_that_the_user_made_here_is_run_to_evaluate_it(
    beside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = beside
    code = tmp_path / "own_here.py"
    code.write_text("raise RuntimeError('it was run')\nclass Own(dict): pass\n")
    config = load_config(None, ["workload.name=own_here.py:Own", "train.steps=1"])
    pinned = config.workload.model_copy(update=own_code_settings(config.workload))
    run.config_file.write_text(dump_config(config.model_copy(update={"workload": pinned})))
    (run.path / "model" / "last").mkdir(parents=True)
    (run.path / "model" / "last" / "config.json").write_text("{}")
    run.env_file.write_text("{}")

    def evaluated() -> str:
        assert main(["eval", "mine"]) in (2, 3)
        return capsys.readouterr().err

    remember_run("another-run", pinned)
    assert "is not run because a run names it: the run was not made here" in evaluated()
    remember_run(run.id, pinned)
    assert "it was run" in evaluated()
    code.write_text("raise RuntimeError('another was run')\nclass Own(dict): pass\n")
    assert "it has changed since" in evaluated()
    changed = pinned.model_copy(update=own_code_settings(config.workload))
    run.config_file.write_text(dump_config(config.model_copy(update={"workload": changed})))
    assert "the run was not made here" in evaluated()
    (tmp_path / "cache" / FILE).write_bytes(b"\xff")
    assert "the run was not made here" in evaluated()


def test_where_a_run_kept_its_data_nothing_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "a b\t0\nb\t1\n" * 10)
    settings = ["dataset=tsv", f"data_path={tmp_path / 'train.tsv'}", f"tokenizer={tmp_path / 'vocab.txt'}"]
    settings += [f"cache_dir={tmp_path / 'theirs'}"]
    config = load_config(None, [*(f"workload.{each}" for each in settings), "train.global_batch=4"])
    run.config_file.write_text(dump_config(config))
    run.env_file.write_text("{}")
    lengths = run.path.parent / "lengths.csv"
    assert main(["data", "lengths", "mine", "--results", str(run.path.parent), "-o", str(lengths)]) == 0
    assert lengths.read_text().startswith("length\n") and not (tmp_path / "theirs").exists()
