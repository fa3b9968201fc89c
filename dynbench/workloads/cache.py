"""Data kept between runs."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbench.config.schema import Workload
from dynbench.runs.atomic import locked, replacing
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.datasets.base import TextSplit
from dynbench.workloads.token_shards import RECORD

_FILES = re.compile(r"[0-9a-f]{32}\.npz|.+\.contents\.json|wikipedia-.+\.json|images-.+\.json")
"""Names of what we keep in single files; nothing else in the folder is looked at."""
LAYOUT_VERSION = 2
"""Part of the key; raised when the arrays or the tokenising change their meaning."""


@dataclass(frozen=True)
class KeptData:
    """One thing in the cache.

    Args:
        path: a file, or a folder of shards.
        size: bytes.
        used: when it was last read or written, seconds since the epoch.
    """

    path: Path
    size: int
    used: float

    def remove(self) -> None:
        """Take it off the disk; whoever writes it is waited for, whoever reads it goes on.

        Raises:
            OSError: it cannot be removed.
        """
        is_folder = self.path.is_dir()
        with locked(_lock_of(self.path) if is_folder else self.path.with_suffix(".lock")):
            if is_folder:
                (self.path / RECORD).unlink(missing_ok=True)  # first: shards that no record lists are of no use
                shutil.rmtree(self.path)
            else:
                self.path.unlink(missing_ok=True)


def kept_data(folder: Path) -> list[KeptData]:
    """What a cache folder holds, used last first; empty where there is none."""
    return sorted(_found(folder), key=lambda kept: -kept.used)


def _found(folder: Path) -> Iterator[KeptData]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and _lock_of(path).is_file():
            record = path / RECORD
            used = (record if record.exists() else path).stat().st_mtime
            yield KeptData(path, sum(file.stat().st_size for file in path.iterdir()), used)
        elif path.is_file() and _FILES.fullmatch(path.name):
            found = path.stat()
            yield KeptData(path, found.st_size, max(found.st_mtime, found.st_atime))


def _lock_of(folder: Path) -> Path:
    """What a writer of shards holds; it tells our folders from others."""
    return folder.with_name(f"{folder.name}.lock")


logger = logging.getLogger(__name__)


def cache_folder(settings: Workload) -> Path:
    """`workload.cache_dir`, else `$DYNBENCH_CACHE`, else dynbench's part of the user's cache folder."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir).expanduser()
    if named := os.environ.get("DYNBENCH_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynbench"


def cache_key(split: TextSplit, tokenizer_digest: str, max_length: int) -> str:
    """Digest of everything that the tokenised arrays depend on: the texts and labels themselves, not their path."""
    digest = hashlib.blake2b(f"{LAYOUT_VERSION} {tokenizer_digest} {max_length}".encode(), digest_size=16)
    digest.update(np.fromiter((len(text) for text in split.texts), np.int64, len(split.texts)).tobytes())
    digest.update("".join(split.texts).encode("utf-8", "surrogatepass"))
    digest.update(split.labels.tobytes())
    return digest.hexdigest()


def load_or_build(folder: Path, key: str, build: Callable[[], TokenisedData]) -> TokenisedData:
    """The data stored under `key`, or `build()`, stored for the next time.

    One process builds while the others wait for its file. A broken file is rebuilt with a warning; a folder that
    cannot be written costs only the time of tokenising again, and is warned about.
    """
    path = folder / f"{key}.npz"
    stored = _read(path)
    if stored is not None:
        return stored
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            stored = _read(path)
            if stored is None:
                stored = build()
                _write(path, stored)
            return stored
    except OSError as error:
        logger.warning(
            "tokenised data cannot be cached in %s (%s); name a writable folder in workload.cache_dir", folder, error
        )
        return stored if stored is not None else build()


def _read(path: Path) -> TokenisedData | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            data = TokenisedData.from_arrays(*(arrays[name] for name in ("tokens", "offsets", "labels", "removed")))
            if data.fingerprint != str(arrays["fingerprint"]):
                raise ValueError("the arrays do not have the fingerprint stored with them")
    except FileNotFoundError:
        return None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        logger.warning("cached data %s cannot be read (%s); tokenising again", path, error)
        return None
    return data


def _write(path: Path, data: TokenisedData) -> None:
    with replacing(path) as file:
        np.savez(
            file,
            tokens=data.tokens,
            offsets=data.offsets,
            labels=data.labels,
            removed=np.zeros(len(data), np.int64) if data.removed is None else data.removed,
            fingerprint=np.str_(data.fingerprint),
        )
