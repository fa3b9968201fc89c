"""Tokenised texts on disk, in shards: written once, over all cores, and gone on with after whatever ended the writing.

A folder holds `record.json` and, for each shard, `00000.ids.npy` (uint16 or uint32), `00000.offsets.npy` (int64,
text i is `ids[offsets[i]:offsets[i + 1]]`) and `00000.removed.npy` (int64, tokens cut off each text). Which texts make
a shard follows from the texts alone, so that shards that are made again have the same bytes. The record lists those
that are finished and is replaced whole.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynbench.errors import DataError
from dynbench.runs.atomic import locked, replacing, write_json
from dynbench.workloads.cache import RECORD, Progress, shards_lock
from dynbench.workloads.data import IntArray, digest_of, offsets_of
from dynbench.workloads.datasets.base import excerpt

logger = logging.getLogger(__name__)

SHARD_CHARACTERS = 2**22
"""A shard ends with the text that reaches as many; a minute's work on one core at most."""
CHUNK_CHARACTERS = 2**17
"""Characters that the tokenizer is given at a time: what it returns takes a hundred times as many bytes."""
AT_ONCE = 2
"""Shards in work. The library itself spreads a chunk over the cores; meanwhile the others' ids become arrays."""
ARRAYS = ("ids", "offsets", "removed")

Encode = Callable[[Sequence[str]], Iterable[tuple[Sequence[int], int]]]
"""Token ids of each text, and how many were cut off; called by several threads at once."""


@dataclass(frozen=True)
class Texts:
    """What is tokenised.

    Args:
        read: the texts, in order, anew at each call.
        encode: makes token ids of them.
        dtype: of the ids stored.
        characters: of all texts together, for the progress.
        source: for messages.
        may_be_empty: a text may come to no token at all.
    """

    read: Callable[[], Iterator[str]]
    encode: Encode
    dtype: type[np.unsignedinteger]
    characters: int
    source: str
    may_be_empty: bool


@dataclass(frozen=True)
class Shards:
    """All shards of a folder, in order; the ids stay on disk.

    Args:
        ids: token ids of each shard, mapped.
        offsets, removed: as in the files, mapped too.
        digest: of all arrays.
    """

    ids: list[NDArray[np.integer]]
    offsets: list[NDArray[np.integer]]
    removed: list[NDArray[np.integer]]
    digest: str

    @property
    def lengths(self) -> IntArray:
        """Tokens of each text of all shards, shape [N]."""
        return np.concatenate([np.diff(offsets) for offsets in self.offsets])


_CHECKED: ContextVar[bool] = ContextVar("_CHECKED", default=False)


@contextmanager
def already_checked() -> Iterator[None]:
    """Inside it finished shards are taken to hold what their record says: another process here has just read them."""
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def load_or_tokenise(folder: Path, facts: Mapping[str, object], texts: Texts) -> Shards:
    """The shards of a folder, those that are missing, damaged or of something else made first.

    One process writes while others wait for it. What is found to be of no use is warned about.

    Args:
        folder: of these shards alone.
        facts: what the shards depend on, ready for JSON; a folder of other facts is written anew.
        texts: what is tokenised.

    Raises:
        DataError: what reading the texts raises; a text without a token.
        OSError: the folder cannot be written.
    """
    found = _Folder(folder, facts)
    if found.complete:
        return found.shards()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(shards_lock(folder)):
        found = _Folder(folder, facts)
        found.log_state()
        if not found.complete:
            found.write_missing(texts)
        return found.shards()


class _Folder:
    """The shards of a folder that can be used."""

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        self._path, self._facts = path, facts
        self._useless: list[str] = []
        self._entries: dict[int, dict[str, object]] = {}
        entries, finished = self._listed()
        for number, entry in enumerate(entries):
            if entry is None:
                continue
            try:
                arrays = self._arrays(number)
                if (len(arrays["removed"]), len(arrays["ids"])) != (entry["texts"], entry["tokens"]):
                    raise ValueError("its arrays do not have the lengths of the record")
                if not _CHECKED.get() and self._digest_of(number) != entry["digest"]:
                    raise ValueError("its arrays do not have the digest of the record")
                self._entries[number] = entry
            except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
                self._useless.append(f"shard {number} cannot be used ({error})")
        self.complete = finished and len(self._entries) == len(entries) > 0

    def _listed(self) -> tuple[list[dict[str, object] | None], bool]:
        """What the record says of each shard, None of those not finished, and whether there are no more."""
        try:
            record = json.loads((self._path / RECORD).read_text(encoding="utf-8"))
            entries, facts = [entry and dict(entry) for entry in record["shards"]], record["facts"]
            if facts != self._facts:
                keys = ", ".join(key for key in self._facts if facts.get(key) != self._facts[key])
                raise ValueError(f"they were made of something else: {keys} differ")
            return entries, bool(record["finished"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._useless.append(f"the record does not fit ({error})")
        return [], False

    def log_state(self) -> None:
        """Warn of what is made again, and say what is continued."""
        for what in self._useless:
            logger.warning("tokenised texts in %s: %s; tokenising again", self._path, what)
        if self._entries and not self.complete:
            logger.info(
                "%d shards in %s are finished already; going on with the others", len(self._entries), self._path
            )

    def write_missing(self, texts: Texts) -> None:
        """Tokenise the texts of all shards that are not here, `AT_ONCE` at a time, and list each when it is written."""
        for stray in self._path.glob(".*.tmp"):  # of a writer that was killed
            stray.unlink()
        progress = Progress(f"tokenising {texts.source}", texts.characters, "characters")
        working: deque[tuple[int, int, Future[dict[str, object]]]] = deque()

        def finish() -> None:
            number, characters, entry = working.popleft()
            self._entries[number] = entry.result()
            self._write_record(finished=False)
            progress.add(characters)

        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tokenise")
        try:
            total = first = 0
            for number, group in enumerate(_cut(texts.read(), SHARD_CHARACTERS)):
                characters, total = sum(map(len, group)), number + 1
                if number in self._entries and self._entries[number]["texts"] == len(group):
                    progress.skip(characters)
                else:
                    if len(working) == AT_ONCE:
                        finish()
                    working.append((number, characters, pool.submit(self._make, number, first, group, texts)))
                first += len(group)
            while working:
                finish()
        finally:
            pool.shutdown(cancel_futures=True)
        for path in self._path.glob("*.npy"):
            if int(path.name.partition(".")[0]) >= total:  # of a source that was longer
                path.unlink()
        for number in [number for number in self._entries if number >= total]:
            del self._entries[number]
        self._write_record(finished=True)
        progress.end()

    def _make(self, number: int, first: int, group: Sequence[str], texts: Texts) -> dict[str, object]:
        """One shard written; what the record will say of it. `first` is the number of its first text, from 0."""
        parts: list[NDArray[np.unsignedinteger]] = []
        removed: list[int] = []
        for chunk in _cut(group, CHUNK_CHARACTERS):
            for ids, cut in texts.encode(chunk):
                if not ids and not texts.may_be_empty:
                    text, place = group[len(parts)], first + len(parts) + 1
                    raise DataError(
                        f"{texts.source}: the text {excerpt(text)} of sample {place} has no token",
                        "Leave such texts out: the tokenizer adds no special tokens.",
                    )
                parts.append(np.array(ids, dtype=texts.dtype))
                removed.append(cut)
        arrays = {
            "ids": np.concatenate(parts),
            "offsets": offsets_of(np.array([len(ids) for ids in parts])),
            "removed": np.array(removed, dtype=np.int64),
        }
        for name, array in arrays.items():
            with replacing(self._file(number, name)) as file:
                np.save(file, array, allow_pickle=False)
        return {"texts": len(group), "tokens": len(arrays["ids"]), "digest": _digest(arrays)}

    def _write_record(self, *, finished: bool) -> None:
        entries = [self._entries.get(number) for number in range(max(self._entries, default=-1) + 1)]
        write_json(self._path / RECORD, {"facts": self._facts, "finished": finished, "shards": entries})

    def _digest_of(self, number: int) -> str:
        """Of a shard that is read, not mapped: what is mapped and looked at stays in this process's memory."""
        return _digest({name: np.load(self._file(number, name), allow_pickle=False) for name in ARRAYS})

    def _arrays(self, number: int) -> dict[str, NDArray[np.integer]]:
        """Of a shard, mapped."""
        return {name: np.load(self._file(number, name), mmap_mode="r", allow_pickle=False) for name in ARRAYS}

    def _file(self, number: int, name: str) -> Path:
        return self._path / f"{number:05d}.{name}.npy"

    def shards(self) -> Shards:
        """All of them, in order."""
        with suppress(OSError):
            os.utime(self._path / RECORD)  # when they were last of use
        found = [self._arrays(number) for number in range(len(self._entries))]
        digest = digest_of(*(str(self._entries[number]["digest"]).encode() for number in range(len(found))))
        ids, offsets, removed = ([arrays[name] for arrays in found] for name in ARRAYS)
        return Shards(ids, offsets, removed, digest)


def _digest(arrays: Mapping[str, NDArray[np.integer]]) -> str:
    headed = ((f"{arrays[name].dtype} {len(arrays[name])} ".encode(), arrays[name]) for name in ARRAYS)
    return digest_of(*(part for pair in headed for part in pair))


def _cut(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Consecutive texts; each list but the last ends with the text that reaches so many characters."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group
