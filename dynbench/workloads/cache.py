"""Data cached between runs: where, what is there, and the progress of what takes long to make.

Tokenised texts lie in folders of shards (`token_shards.py`). What a pass over texts or image files found is a JSON
file, of use while its source stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dynbench.config.schema import Workload
from dynbench.runs.atomic import locked, write_json
from dynbench.workloads.datasets.base import CorpusSplit, TextSplit, reading

logger = logging.getLogger(__name__)

RECORD = "record.json"
"""Of a folder of shards: what they are made of, and which are finished."""
_FILES = re.compile(r"[0-9a-f]{32}\.npz|.+\.contents\.json|wikipedia-.+\.json|images-.+\.json")
"""Names of cached files, those of earlier versions too; nothing else in the folder is looked at."""


def cache_folder(settings: Workload) -> Path:
    """`workload.cache_dir`, else `$DYNBENCH_CACHE`, else dynbench's part of the user's cache folder."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir).expanduser()
    if named := os.environ.get("DYNBENCH_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynbench"


@dataclass(frozen=True)
class CacheEntry:
    """A file, or a folder of shards, in the cache.

    Args:
        path: of the file or folder.
        size: bytes.
        used: when it was last read or written, seconds since the epoch.
    """

    path: Path
    size: int
    used: float

    def remove(self) -> None:
        """Delete it; a process that is writing it is waited for, one that reads it goes on.

        Raises:
            OSError: it cannot be removed.
        """
        is_folder = self.path.is_dir()
        with locked(shards_lock(self.path) if is_folder else self.path.with_suffix(".lock")):
            if is_folder:
                (self.path / RECORD).unlink(missing_ok=True)  # first: shards that no record lists are of no use
                shutil.rmtree(self.path)
            else:
                self.path.unlink(missing_ok=True)


def cache_entries(folder: Path) -> list[CacheEntry]:
    """What a cache folder holds, last used first; empty where there is none."""
    return sorted(_entries(folder), key=lambda entry: -entry.used)


def _entries(folder: Path) -> Iterator[CacheEntry]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and shards_lock(path).is_file():
            record = path / RECORD
            used = (record if record.exists() else path).stat().st_mtime
            yield CacheEntry(path, sum(file.stat().st_size for file in path.iterdir()), used)
        elif path.is_file() and _FILES.fullmatch(path.name):
            found = path.stat()
            yield CacheEntry(path, found.st_size, max(found.st_mtime, found.st_atime))


def shards_lock(folder: Path) -> Path:
    """The lock that a writer of shards holds; it tells our folders from others."""
    return folder.with_name(f"{folder.name}.lock")


def warn_not_cached(what: str, folder: Path, error: OSError) -> None:
    """Warn that every run will have to do the same work again."""
    logger.warning("%s cannot be cached in %s (%s); name a writable folder in workload.cache_dir", what, folder, error)


def load_or_make(path: Path, state: object, what: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is cached in a file for this state of its source, else `make()`, which is cached.

    One process makes it while others wait for the file. A folder that cannot be written is warned about.

    Args:
        path: of the file.
        state: changes whenever the source does; ready for JSON.
        what: is cached, for messages.
        make: makes it, ready for JSON; `load_cached` takes it back as keyword arguments. What it raises is raised.
    """
    if (found := load_cached(path, state, what)) is not None:
        return found
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path.with_suffix(".lock")))
        except OSError as error:
            warn_not_cached(what, path.parent, error)
            return make()
        found = load_cached(path, state, what)
        if found is None:
            found = make()
            try:
                write_json(path, {"state": state, "contents": found})
            except OSError as error:
                warn_not_cached(what, path.parent, error)
    return found


def load_cached(path: Path, state: object, what: str) -> dict[str, Any] | None:
    """What is cached in a file; None where it was made of another state of its source, or is damaged."""
    try:
        cached = json.loads(path.read_text(encoding="utf-8"))
        if cached["state"] == state:
            return dict(cached["contents"])
        logger.info("%s: made of another state of its source; made again", path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s); %s made again", path, error, what)
    return None


@dataclass(frozen=True)
class Contents:
    """What a pass over texts found.

    Args:
        texts: their number.
        characters: of all texts.
        digest: of all, in their order.
    """

    texts: int
    characters: int
    digest: str


def contents_of(folder: Path, split: TextSplit | CorpusSplit) -> Contents:
    """What an earlier pass over the texts found, else what one finds now.

    Args:
        folder: of the cache.
        split: whose texts.

    Raises:
        DataError: what reading the texts raises.
    """
    path = _contents_file(folder, split)
    return Contents(**load_or_make(path, list(split.state), f"counts of {split.source}", lambda: _read_through(split)))


def cached_contents(folder: Path, split: TextSplit | CorpusSplit) -> Contents | None:
    """What an earlier pass over the texts found, which met no mistake; None where they have changed since."""
    cached = load_cached(_contents_file(folder, split), list(split.state), f"counts of {split.source}")
    return None if cached is None else Contents(**cached)


def texts_of(split: TextSplit | CorpusSplit) -> Iterator[str]:
    """The texts in order.

    Raises:
        DataError: what reading them raises; an `OSError` as one that names the source.
    """
    with reading("workload.dataset", split.source):
        yield from split.read()


def stem(split: TextSplit | CorpusSplit) -> str:
    """A name for the source: the readable part of it, and a digest of the whole."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "_", Path(split.source).stem)[:40]
    return f"{name}-{hashlib.blake2b(str(split.state[0]).encode(), digest_size=4).hexdigest()}"


def _contents_file(folder: Path, split: TextSplit | CorpusSplit) -> Path:
    return folder / f"{stem(split)}.contents.json"


def _read_through(split: TextSplit | CorpusSplit) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    number = characters = 0
    progress = Progress(f"reading {split.source}", None, "characters")
    for text in texts_of(split):
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
        number += 1
        characters += len(text)
        progress.add(len(text))
    progress.end()
    return asdict(Contents(number, characters, digest.hexdigest()))


progress_logger = logging.getLogger(f"{__name__}.progress")
FIRST_S = 2.0
"""What takes no longer is not reported."""
EVERY_S = 5.0


class Progress:
    """Logs now and then how much is done, how fast it goes and how long the rest will take.

    Args:
        what: is being done.
        total: of it, in `unit`; None where nobody knows.
        unit: what is counted, in the plural.
    """

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = self._skipped = 0
        self._begin = time.monotonic()
        self._next = self._begin + FIRST_S
        self._logged = False

    def add(self, amount: int) -> None:
        """So much more is done."""
        self._done += amount
        now = time.monotonic()
        if now >= self._next:
            self._next, self._logged = now + EVERY_S, True
            progress_logger.info("%s", self._line(now))

    def skip(self, amount: int) -> None:
        """So much more was done before, and says nothing about the rate."""
        self._skipped += amount

    def end(self) -> None:
        """All is done; logged where anything was."""
        if self._logged:
            taken = time.monotonic() - self._begin
            progress_logger.info("%s: %s %s in %.1f s", self._what, f"{self._done:,}", self._unit, taken)

    def _line(self, now: float) -> str:
        rate = self._done / (now - self._begin)
        line = f"{self._what}: {rate / 1e6:.2f} M {self._unit}/s"
        done = self._done + self._skipped
        if self._total is None:
            return f"{line}, {done / 1e6:.0f} M so far"
        return f"{line}, {done / max(1, self._total):.0%}, {max(0.0, (self._total - done) / rate):.0f} s left"
