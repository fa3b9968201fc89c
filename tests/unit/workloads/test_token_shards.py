"""Shards of tokens: the same bytes however often the writing ended, and nothing of use is made again."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dynbench.errors import DataError
from dynbench.workloads import token_shards
from dynbench.workloads.token_shards import ARRAYS, RECORD, Texts, already_checked, load_or_tokenise

TEXTS = ["a" * (index % 7 + 1) + str(index) for index in range(40)]
FACTS = {"layout": 1, "tokenizer": "letters"}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 30)
    monkeypatch.setattr(token_shards, "CHUNK_CHARACTERS", 12)


class Letters:
    """Tokenises by character, at most five; remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Iterator[tuple[list[int], int]]:
        self.seen += texts
        return (([ord(letter) for letter in text[:5]], max(0, len(text) - 5)) for text in texts)


def texts_of(texts: Sequence[str] = TEXTS, encode: Letters | None = None) -> Texts:
    return Texts(lambda: iter(texts), encode or Letters(), np.uint16, sum(map(len, texts)), "here", False)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def finished(folder: Path) -> int:
    """Shards that the record lists."""
    entries = json.loads((folder / RECORD).read_text())["shards"]
    return sum(entry is not None for entry in entries)


def test_the_shards_hold_every_text_in_order(tmp_path):
    shards = load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    assert len(shards.ids) > 5
    assert {array.dtype for array in shards.ids} == {np.dtype(np.uint16)}
    assert all(isinstance(array, np.memmap) for array in shards.ids)
    found = [
        "".join(map(chr, ids[begin:end]))
        for ids, offsets in zip(shards.ids, shards.offsets, strict=True)
        for begin, end in pairwise(offsets)
    ]
    assert found == [text[:5] for text in TEXTS]
    assert np.concatenate(shards.removed).tolist() == [max(0, len(text) - 5) for text in TEXTS]


def test_what_is_finished_is_only_read(tmp_path):
    encode = Letters()
    first = load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=encode))
    assert sorted(encode.seen) == sorted(TEXTS)
    again = load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=encode))
    assert (len(encode.seen), again.digest) == (len(TEXTS), first.digest)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_what_was_interrupted_is_gone_on_with_and_has_the_same_bytes(tmp_path, stop, caplog):
    load_or_tokenise(tmp_path / "whole", FACTS, texts_of())
    whole = files(tmp_path / "whole")

    class Fails(Letters):
        def __call__(self, texts: Sequence[str]) -> Iterator[tuple[list[int], int]]:
            if any(text.endswith(str(stop * 7)) for text in texts):
                raise KeyboardInterrupt
            return super().__call__(texts)

    with pytest.raises(KeyboardInterrupt):
        load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=Fails()))
    done = finished(tmp_path / "a") if (tmp_path / "a" / RECORD).exists() else 0
    (tmp_path / "a" / ".00003.ids.npy.0123.tmp").write_bytes(b"of a writer that was killed")
    encode = Letters()
    with caplog.at_level(logging.INFO):
        load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=encode))
    assert files(tmp_path / "a") == whole
    assert len(encode.seen) < len(TEXTS) or not done
    assert (f"{done} shards" in caplog.text) == (done > 0)


DAMAGES = {
    "a byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "empty": lambda path: path.write_bytes(b""),
    "no array": lambda path: path.write_bytes(b"x" * 200),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_alone_is_made_again_with_a_warning(tmp_path, array, damage, caplog):
    load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    whole = files(tmp_path / "a")
    DAMAGES[damage](tmp_path / "a" / f"00002.{array}.npy")
    encode = Letters()
    load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=encode))
    assert files(tmp_path / "a") == whole
    assert 0 < len(encode.seen) < 10
    assert "shard 2 cannot be used" in caplog.text


def test_what_another_has_checked_is_not_read_again(tmp_path, monkeypatch):
    first = load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    read: list[object] = []
    with already_checked(), monkeypatch.context() as patch:
        patch.setattr(token_shards, "_digest", read.append)
        assert load_or_tokenise(tmp_path / "a", FACTS, texts_of()).digest == first.digest
    assert not read
    DAMAGES["cut"](tmp_path / "a" / "00002.ids.npy")
    encode = Letters()
    with already_checked():
        load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=encode))
    assert encode.seen, "what is plainly broken is noticed all the same"


FOREIGN = json.dumps({"facts": FACTS, "shards": [{}, {"texts": None, "tokens": [], "digest": 3}], "finished": True})


@pytest.mark.parametrize("record", ["", "{", "[]", "{}", '{"facts": 1, "shards": 2, "finished": true}', "null"])
def test_a_broken_record_is_replaced_with_a_warning(tmp_path, record, caplog):
    load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    whole = files(tmp_path / "a")
    (tmp_path / "a" / RECORD).write_text(record)
    load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    assert files(tmp_path / "a") == whole
    assert "the record does not fit" in caplog.text


def test_a_record_without_what_is_to_be_known_of_a_shard_is_replaced_with_a_warning(tmp_path, caplog):
    load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    whole = files(tmp_path / "a")
    (tmp_path / "a" / RECORD).write_text(FOREIGN)
    load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    assert files(tmp_path / "a") == whole
    assert "shard 0 cannot be used" in caplog.text and "shard 1 cannot be used" in caplog.text


def test_shards_of_something_else_are_made_anew_with_a_warning(tmp_path, caplog):
    load_or_tokenise(tmp_path / "a", FACTS, texts_of())
    load_or_tokenise(tmp_path / "b", FACTS, texts_of(TEXTS[:9]))
    encode = Letters()
    load_or_tokenise(tmp_path / "a", FACTS | {"tokenizer": "other"}, texts_of(TEXTS[:9], encode))
    assert sorted(encode.seen) == sorted(TEXTS[:9])
    assert "tokenizer differ" in caplog.text
    ours, fresh = files(tmp_path / "a"), files(tmp_path / "b")
    assert {name: ours[name] for name in ours if name != RECORD} == {
        name: fresh[name] for name in fresh if name != RECORD
    }


def test_a_text_without_a_token_is_named_with_its_number(tmp_path):
    with pytest.raises(DataError, match=r"here: the text '' of sample 23 has no token"):
        load_or_tokenise(tmp_path / "a", FACTS, texts_of([*TEXTS[:22], "", "x"]))
    load_or_tokenise(tmp_path / "b", FACTS, replace(texts_of(["", ""]), may_be_empty=True))


def test_a_mistake_in_the_source_is_raised_as_it_is(tmp_path):
    def read() -> Iterator[str]:
        yield from TEXTS[:30]
        raise DataError("line 31")

    with pytest.raises(DataError, match="line 31"):
        load_or_tokenise(tmp_path / "a", FACTS, replace(texts_of(), read=read))


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_token_shards as t
from dynbench.workloads import token_shards
token_shards.SHARD_CHARACTERS, token_shards.CHUNK_CHARACTERS = 30, 12

class Killed(t.Letters):
    def __call__(self, texts):
        if any(text.endswith("30") for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(texts)

token_shards.load_or_tokenise(Path(sys.argv[1]), t.FACTS, t.texts_of(encode=Killed()))
"""


def test_a_killed_writer_leaves_what_another_goes_on_with(tmp_path):
    load_or_tokenise(tmp_path / "whole", FACTS, texts_of())
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(Path(__file__).parent)]
    assert subprocess.run(arguments).returncode == -9
    done = finished(tmp_path / "a")
    encode = Letters()
    load_or_tokenise(tmp_path / "a", FACTS, texts_of(encode=encode))
    assert done > 0
    assert files(tmp_path / "a") == files(tmp_path / "whole")
    assert len(encode.seen) < len(TEXTS)


WAITS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_token_shards as t
from dynbench.workloads import token_shards
token_shards.SHARD_CHARACTERS, token_shards.CHUNK_CHARACTERS = 30, 12
encode = t.Letters()
token_shards.load_or_tokenise(Path(sys.argv[1]), t.FACTS, t.texts_of(encode=encode))
print(len(encode.seen))
"""


@pytest.mark.slow
def test_of_several_at_once_one_writes(tmp_path):
    arguments = [sys.executable, "-c", WAITS, str(tmp_path / "a"), str(Path(__file__).parent)]
    started = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(int(process.communicate()[0]) for process in started) == [0, 0, len(TEXTS)]
