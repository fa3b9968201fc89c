"""The cache: shards have the same bytes however often the writing ended; what is listed, and what is removed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unit.workloads.conftest import DAMAGES

from dynbench.cli.main import main
from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads import token_shards
from dynbench.workloads.cache import RECORD, cache_entries, cache_folder, contents_of
from dynbench.workloads.datasets.base import CorpusSplit
from dynbench.workloads.token_shards import ARRAYS, Texts, already_checked, load_or_tokenise

TEXTS = ["a" * (index % 7 + 1) + str(index) for index in range(40)]
FORK = multiprocessing.get_context("fork")
FACTS = {"layout": 1, "tokenizer": "letters"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of few texts."""
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 30)
    monkeypatch.setattr(token_shards, "CHUNK_CHARACTERS", 12)


def texts_of(texts: Sequence[str] = TEXTS, seen: Callable[[Sequence[str]], object] = len, stop: str = "none") -> Texts:
    """Tokenised by character, at most five; `seen` is told of them, and the writer is killed at one that ends so."""

    def encode(some: Sequence[str]) -> Iterator[tuple[list[int], int]]:
        if any(text.endswith(stop) for text in some):
            os.kill(os.getpid(), signal.SIGKILL)
        seen(some)
        return (([ord(letter) for letter in text[:5]], max(0, len(text) - 5)) for text in some)

    return Texts(lambda: iter(texts), encode, np.uint16, sum(map(len, texts)), "here", False)


def written(folder: Path, texts: Sequence[str] = TEXTS, facts: Mapping[str, object] = FACTS) -> list[str]:
    """The texts that were tokenised for a folder of shards."""
    seen: list[str] = []
    load_or_tokenise(folder, facts, texts_of(texts, seen.extend))
    return seen


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of shards in the folder `a`."""
    written(tmp_path / "a")
    return files(tmp_path / "a")


OF_SHARDS = DAMAGES | {
    "a byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("damage", OF_SHARDS)
def test_a_damaged_shard_alone_is_made_again_with_a_warning(tmp_path, whole, array, damage, caplog):
    OF_SHARDS[damage](tmp_path / "a" / f"00002.{array}.npy")
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
    process = FORK.Process(target=load_or_tokenise, args=(tmp_path / "b", FACTS, texts_of(stop="30")))
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


def test_of_several_at_once_one_writes_what_all_map(tmp_path):
    with FORK.Pool(3, initializer=FORK.Barrier(3).wait) as pool:
        each = pool.map(written, [tmp_path / "a"] * 3, chunksize=1)
    assert sorted(map(len, each)) == [0, 0, len(TEXTS)]
    shards = load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    assert len(shards.ids) > 5
    assert {(type(array), array.dtype) for array in shards.ids} == {(np.memmap, np.dtype(np.uint16))}
    assert shards.lengths.tolist() == [min(5, len(text)) for text in TEXTS]
    assert np.concatenate(shards.removed).tolist() == [max(0, len(text) - 5) for text in TEXTS]


def test_the_folder_is_the_users_where_none_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("DYNBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(Workload()) == tmp_path / "dynbench"
    assert cache_folder(Workload(cache_dir="named")) == Path("named")


@pytest.fixture
def cache() -> Path:
    """Shards, a count of texts, two files more and what is somebody else's, all of it from long ago."""
    folder, long_ago = cache_folder(Workload()), time.time() - 40 * 86_400
    contents_of(folder, CorpusSplit(lambda: iter(TEXTS), "here", ("here", 0)))
    for name in ("old", "used"):
        written(folder / name)
    (folder / "thesis").mkdir()
    for name in ("images-0123.json", f"{'0' * 32}.npz", "notes.txt", f"thesis/{RECORD}"):
        (folder / name).write_text("{}")
    for path in folder.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    return folder


def test_all_of_ours_and_nothing_else_is_listed_and_removed_once_it_is_old(cache, capsys):
    def names() -> set[str]:
        return {entry.path.name for entry in cache_entries(cache)}

    (count,) = cache.glob("*.contents.json")
    old = {"old", count.name, "images-0123.json", f"{'0' * 32}.npz"}
    assert written(cache / "used") == [] and names() == old | {"used"}
    assert main(["data", "cache", "--older-than", "30d", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    sizes = {entry["name"]: entry["bytes"] for entry in listed["entries"]}
    assert sizes.keys() == old and sizes["old"] == sum(file.stat().st_size for file in (cache / "old").iterdir())
    assert listed["bytes"] == sum(sizes.values()) and not listed["removed"]
    assert main(["data", "cache", "--older-than", "30d", "--remove"]) == 0
    assert names() == {"used"}
    assert main(["data", "cache", "--remove", "-q"]) == 0
    assert names() == set() and (cache / "notes.txt").exists() and (cache / "thesis" / RECORD).exists()
