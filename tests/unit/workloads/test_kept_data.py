"""The cache of tokenised data: what it holds is listed, what is old goes, what is not ours stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dynbench.cli import health
from dynbench.cli.main import main
from dynbench.cli.options import Settings
from dynbench.config.layers import load_config
from dynbench.workloads.cache import kept_data
from dynbench.workloads.registry import build_workload
from dynbench.workloads.token_shards import RECORD

DAY = 86_400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of texts as samples of two lengths and as labelled ones, and files of somebody else."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DYNBENCH_CACHE", str(folder))
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"sentence": f"number {i}", "label": i % 2}) + "\n" for i in range(40)))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "number"]) + "\n")
    common = ["train.global_batch=4", "workload.dataset=jsonl", f"workload.data_path={texts}"]
    for length in (16, 24):
        language = ["workload.name=causal_lm", "workload.size=tiny", f"workload.max_length={length}"]
        build_workload(load_config(None, [*common, *language]))
    build_workload(load_config(None, [*common, f"workload.tokenizer={vocabulary}"]))
    (folder / "images-0123.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    (folder / "thesis").mkdir()
    (folder / "thesis" / RECORD).write_text("{}")
    return folder


def test_everything_of_ours_is_listed_and_nothing_else(cache: Path) -> None:
    found = kept_data(cache)
    ours = {path for path in cache.iterdir() if path.suffix != ".lock"} - {cache / "notes.txt", cache / "thesis"}
    assert {kept.path for kept in found} == ours and len([kept for kept in found if kept.path.is_dir()]) == 4
    shards = next(kept for kept in found if kept.path.is_dir())
    assert shards.size == sum(file.stat().st_size for file in shards.path.iterdir()) > 100
    assert kept_data(cache / "nowhere") == []


def test_what_is_old_is_removed_and_what_is_used_is_not_old(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_ago = time.time() - 40 * DAY
    for kept in kept_data(cache):
        for path in (kept.path, kept.path / RECORD) if kept.path.is_dir() else (kept.path,):
            os.utime(path, (long_ago, long_ago))
    texts = cache.parent / "texts.jsonl"
    settings = ["workload.name=causal_lm", "workload.size=tiny", "workload.max_length=24", "train.global_batch=4"]
    build_workload(load_config(None, [*settings, "workload.dataset=jsonl", f"workload.data_path={texts}"]))

    assert main(["data", "cache", "--older-than", "30d", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = {entry["name"] for entry in listed["entries"]}
    assert sum("-16-" in name for name in names) == 2 and not any("-24-" in name for name in names)
    assert listed["bytes"] == sum(entry["bytes"] for entry in listed["entries"]) and not listed["removed"]
    before = {kept.path.name for kept in kept_data(cache)}
    assert main(["data", "cache", "--older-than", "30d", "--remove"]) == 0
    assert "removed" in capsys.readouterr().out
    assert {kept.path.name for kept in kept_data(cache)} == before - names != set()
    assert main(["data", "cache", "--remove", "-q"]) == 0
    assert kept_data(cache) == []
    assert (cache / "notes.txt").exists() and (cache / "thesis" / RECORD).exists()
    assert main(["data", "cache"]) == 0
    assert capsys.readouterr().out.endswith(f"0 B in {cache}\n")


def test_the_doctor_says_how_to_make_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert health.data_cache(Settings()).ok
    monkeypatch.setattr(health.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    found = health.data_cache(Settings())
    assert not found.ok and "data cache --older-than" in found.hint
