from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from dynbench.config.schema import Workload
from dynbench.workloads.cache import cache_folder, cache_key, load_or_build
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.datasets.base import TextSplit


def tiny() -> TokenisedData:
    return TokenisedData.from_samples([[1, 2, 3], [4]], np.array([1, 0]))


def never() -> TokenisedData:
    raise AssertionError("built although stored")


def test_the_second_load_comes_from_disk(tmp_path):
    built = load_or_build(tmp_path, "key", tiny)
    stored = load_or_build(tmp_path, "key", never)
    assert stored.fingerprint == built.fingerprint
    assert stored.lengths.tolist() == [3, 1]


def test_what_truncation_took_is_stored_with_the_samples(tmp_path):
    def cut() -> TokenisedData:
        return tiny().truncate(2)

    stored = [load_or_build(tmp_path, "key", build) for build in (cut, never)]
    assert [data.describe() for data in stored] == [cut().describe()] * 2
    assert stored[1].removed.tolist() == [1, 0]


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "other data", "other counts", "older"])
def test_a_broken_file_is_rebuilt_with_a_warning(tmp_path, caplog, damage):
    load_or_build(tmp_path, "key", tiny)
    path = tmp_path / "key.npz"
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "garbage":
        path.write_bytes(b"x" * 100)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        data = tiny()
        arrays = {"tokens": data.tokens, "offsets": data.offsets, "labels": data.labels, "removed": np.zeros(2, int)}
        changes = {"other data": {"tokens": data.tokens + 1}, "other counts": {"removed": np.zeros(3, int)}}
        if damage == "older":
            del arrays["removed"]
        np.savez(path, **(arrays | changes.get(damage, {})), fingerprint=data.fingerprint)
    assert load_or_build(tmp_path, "key", tiny).fingerprint == tiny().fingerprint
    assert "tokenising again" in caplog.text
    caplog.clear()
    load_or_build(tmp_path, "key", never)
    assert not caplog.records


def test_a_folder_that_cannot_be_written_only_warns(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert load_or_build(blocked, "key", tiny).fingerprint == tiny().fingerprint
    assert "workload.cache_dir" in caplog.text


def _build_slowly_and_count(folder: Path) -> None:
    def build() -> TokenisedData:
        with (folder / "built").open("a") as file:
            file.write("x")
        time.sleep(0.2)
        return tiny()

    assert load_or_build(folder / "cache", "key", build).fingerprint == tiny().fingerprint


def test_ranks_that_load_at_once_build_once(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_build_slowly_and_count, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "built").read_text() == "x"


def test_a_failed_build_leaves_nothing_behind(tmp_path):
    with pytest.raises(AssertionError):
        load_or_build(tmp_path, "key", never)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_the_key_follows_content_tokenizer_and_length():
    def key(texts=("ab", "c"), labels=(0, 1), tokenizer="t", max_length=8, source="here") -> str:
        return cache_key(TextSplit(texts, np.array(labels, dtype=np.int64), source), tokenizer, max_length)

    changed = [key(texts=("a", "bc")), key(labels=(1, 0)), key(tokenizer="u"), key(max_length=9)]
    assert len({key(), *changed}) == 5
    assert key(source="elsewhere") == key()


def test_the_folder_is_the_named_one_else_the_users(monkeypatch, tmp_path):
    assert cache_folder(Workload(cache_dir=str(tmp_path))) == tmp_path
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "named"))
    assert cache_folder(Workload()) == tmp_path / "named"
    monkeypatch.delenv("DYNBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(Workload()) == tmp_path / "xdg" / "dynbench"
