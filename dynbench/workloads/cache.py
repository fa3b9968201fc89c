"""Tokenised data on disk, one .npz per key, safe when several ranks load at once."""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dynbench.config.schema import Workload
from dynbench.runs.atomic import replacing
from dynbench.runs.lock import locked
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.datasets.base import TextSplit

logger = logging.getLogger(__name__)

LAYOUT_VERSION = 2
"""Part of the key; raised when the arrays or the tokenising change their meaning."""


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
