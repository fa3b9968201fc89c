"""The cache: shards have the same bytes however often the writing ended; what is listed, and what is removed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads import token_shards
from dynbench.workloads.cache import RECORD, cache_entries, cache_folder
from dynbench.workloads.registry import build_workload
from dynbench.workloads.token_shards import ARRAYS, Texts, already_checked, load_or_tokenise

TEXTS = ["a" * (index % 7 + 1) + str(index) for index in range(40)]
FORK = multiprocessing.get_context("fork")
FACTS = {"layout": 1, "tokenizer": "letters"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of few texts."""
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 30)
    monkeypatch.setattr(token_shards, "CHUNK_CHARACTERS", 12)


class Letters:
    """Tokenises by character, at most five; remembers what it was given, and is killed at a text that ends so."""

    def __init__(self, stop: str = "none") -> None:
        self.seen: list[str] = []
        self.stop = stop

    def __call__(self, texts: Sequence[str]) -> Iterator[tuple[list[int], int]]:
        if any(text.endswith(self.stop) for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += texts
        return (([ord(letter) for letter in text[:5]], max(0, len(text) - 5)) for text in texts)


def texts_of(texts: Sequence[str] = TEXTS, encode: Letters | None = None) -> Texts:
    return Texts(lambda: iter(texts), encode or Letters(), np.uint16, sum(map(len, texts)), "here", False)


def written(folder: Path, texts: Sequence[str] = TEXTS, facts: Mapping[str, object] = FACTS) -> list[str]:
    """The texts that were tokenised for a folder of shards."""
    encode = Letters()
    load_or_tokenise(folder, facts, texts_of(texts, encode))
    return encode.seen


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of shards in the folder `a`."""
    written(tmp_path / "a")
    return files(tmp_path / "a")


def test_the_shards_hold_every_text_in_order_and_are_only_read_again(tmp_path):
    shards = load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    assert len(shards.ids) > 5
    assert {(type(array), array.dtype) for array in shards.ids} == {(np.memmap, np.dtype(np.uint16))}
    found = [
        "".join(map(chr, ids[begin:end]))
        for ids, offsets in zip(shards.ids, shards.offsets, strict=True)
        for begin, end in pairwise(offsets)
    ]
    assert found == [text[:5] for text in TEXTS]
    assert shards.lengths.tolist() == list(map(len, found))
    assert np.concatenate(shards.removed).tolist() == [max(0, len(text) - 5) for text in TEXTS]
    assert written(tmp_path / "a") == []
    assert load_or_tokenise(tmp_path / "a", FACTS, texts_of()).digest == shards.digest


DAMAGES = {
    "a byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "empty": lambda path: path.write_bytes(b""),
    "no array": lambda path: path.write_bytes(b"x" * 200),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_alone_is_made_again_with_a_warning(tmp_path, whole, array, damage, caplog):
    DAMAGES[damage](tmp_path / "a" / f"00002.{array}.npy")
    assert 0 < len(written(tmp_path / "a")) < 10 and "shard 2 cannot be used" in caplog.text
    assert files(tmp_path / "a") == whole


def test_what_is_plainly_broken_is_noticed_where_another_has_checked(tmp_path, whole):
    DAMAGES["cut"](tmp_path / "a" / "00002.ids.npy")
    with already_checked():
        assert written(tmp_path / "a")


FOREIGN = json.dumps({"facts": FACTS, "shards": [{}, {"texts": None, "tokens": [], "digest": 3}], "finished": True})


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"facts": 1, "shards": 2, "finished": true}', FOREIGN])
def test_a_broken_record_is_replaced_with_a_warning(tmp_path, whole, record, caplog):
    (tmp_path / "a" / RECORD).write_text(record)
    written(tmp_path / "a")
    assert files(tmp_path / "a") == whole
    assert ("shard 1 cannot be used" if record == FOREIGN else "the record does not fit") in caplog.text


def test_shards_of_something_else_are_made_anew_with_a_warning(tmp_path, whole, caplog):
    for folder in "ba":
        assert sorted(written(tmp_path / folder, TEXTS[:9], FACTS | {"tokenizer": "other"})) == sorted(TEXTS[:9])
    assert "tokenizer differ" in caplog.text
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_what_is_wrong_with_a_text_is_raised_with_its_number(tmp_path):
    with pytest.raises(DataError, match=r"here: the text '' of sample 23 has no token"):
        written(tmp_path / "a", [*TEXTS[:22], "", "x"])
    load_or_tokenise(tmp_path / "b", FACTS, replace(texts_of(["", ""]), may_be_empty=True))


def test_a_killed_writer_leaves_what_another_continues(tmp_path, whole, caplog):
    process = FORK.Process(target=load_or_tokenise, args=(tmp_path / "b", FACTS, texts_of(encode=Letters("30"))))
    process.start()
    process.join()
    record = json.loads((tmp_path / "b" / RECORD).read_text())
    done = sum(entry is not None for entry in record["shards"])
    (tmp_path / "b" / ".00003.ids.npy.0123.tmp").write_bytes(b"of a writer that was killed")
    with caplog.at_level(logging.INFO):
        more = written(tmp_path / "b")
    assert process.exitcode == -signal.SIGKILL
    assert done > 0 and len(more) < len(TEXTS) and f"{done} shards" in caplog.text
    assert files(tmp_path / "b") == whole


def test_of_several_at_once_one_writes(tmp_path):
    with FORK.Pool(3, initializer=FORK.Barrier(3).wait) as pool:
        each = pool.map(written, [tmp_path / "a"] * 3, chunksize=1)
    assert sorted(map(len, each)) == [0, 0, len(TEXTS)]


def test_the_folder_is_the_named_one_else_the_users(monkeypatch, tmp_path):
    assert cache_folder(Workload(cache_dir=str(tmp_path))) == tmp_path
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "named"))
    assert cache_folder(Workload()) == tmp_path / "named"
    monkeypatch.delenv("DYNBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(Workload()) == tmp_path / "xdg" / "dynbench"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of texts as samples of two lengths, and files of somebody else."""
    folder, texts = tmp_path / "cache", tmp_path / "texts.jsonl"
    monkeypatch.setenv("DYNBENCH_CACHE", str(folder))
    texts.write_text("".join(json.dumps({"sentence": f"number {i}", "label": i % 2}) + "\n" for i in range(40)))
    tokenise(tmp_path, 16)
    tokenise(tmp_path, 24)
    (folder / "images-0123.json").write_text("{}")
    (folder / f"{'0' * 32}.npz").write_text("of an earlier version")
    (folder / "notes.txt").write_text("mine")
    (folder / "thesis").mkdir()
    (folder / "thesis" / RECORD).write_text("{}")
    return folder


def tokenise(folder: Path, length: int) -> None:
    settings = ["name=causal_lm", "size=tiny", "dataset=jsonl", f"data_path={folder / 'texts.jsonl'}"]
    given = [f"workload.{each}" for each in (*settings, f"max_length={length}")]
    build_workload(load_config(None, [*given, "train.global_batch=4"]))


def test_everything_of_ours_is_listed_and_nothing_else(cache):
    found = cache_entries(cache)
    ours = {path for path in cache.iterdir() if path.suffix != ".lock"} - {cache / "notes.txt", cache / "thesis"}
    assert {entry.path for entry in found} == ours and len([entry for entry in found if entry.path.is_dir()]) == 4
    shards = next(entry for entry in found if entry.path.is_dir())
    assert shards.size == sum(file.stat().st_size for file in shards.path.iterdir()) > 100
    assert cache_entries(cache / "nowhere") == []


def test_what_is_old_is_removed_and_what_is_used_is_not_old(cache, capsys):
    long_ago = time.time() - 40 * 86_400
    for entry in cache_entries(cache):
        for path in (entry.path, entry.path / RECORD) if entry.path.is_dir() else (entry.path,):
            os.utime(path, (long_ago, long_ago))
    tokenise(cache.parent, 24)
    assert main(["data", "cache", "--older-than", "30d", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = {entry["name"] for entry in listed["entries"]}
    assert [sum(f"-{length}-" in name for name in names) for length in (16, 24)] == [2, 0]
    assert listed["bytes"] == sum(entry["bytes"] for entry in listed["entries"]) and not listed["removed"]
    before = {entry.path.name for entry in cache_entries(cache)}
    assert main(["data", "cache", "--older-than", "30d", "--remove"]) == 0
    assert {entry.path.name for entry in cache_entries(cache)} == before - names != set()
    assert main(["data", "cache", "--remove", "-q"]) == 0
    assert cache_entries(cache) == []
    assert (cache / "notes.txt").exists() and (cache / "thesis" / RECORD).exists()
