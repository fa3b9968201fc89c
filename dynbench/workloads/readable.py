"""Image files that cannot be read: found before training begins, counted, named and left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.workloads import ImageOptions
from dynbench.runs.atomic import locked, write_json
from dynbench.runs.provenance import usable_cores
from dynbench.workloads.cache import cache_folder
from dynbench.workloads.contents import logger
from dynbench.workloads.datasets.base import ImageSplit
from dynbench.workloads.datasets.image_folder import Files
from dynbench.workloads.decoding import eight_bits
from dynbench.workloads.hub import first_line
from dynbench.workloads.pace import Pace

NAMED = 5
"""Unreadable files that a message names."""
DRAFT = (64, 64)
"""Pixels to which a JPEG is reduced while it is decoded to its end, which takes a fraction of the time."""


def without_unreadable(split: ImageSplit, settings: Workload) -> tuple[ImageSplit, tuple[str, ...]]:
    """The split without the files that cannot be decoded, and their paths; one of no files as it is.

    Every file is read and decoded once; what is found is kept beside tokenised data as long as names, sizes and times
    stay. The digest becomes one of what is in the files too.

    Raises:
        DataError: they are more than `workload.max_unreadable` of all, or there is nothing else.
    """
    if not split.files:
        return split, ()
    seen = _looked_up(split, settings)
    split, broken = replace(split, digest=f"{split.digest} {seen.contents}"), seen.unreadable
    if not broken:
        return split, ()
    most = options_of(settings, ImageOptions).max_unreadable
    named = "; ".join(f"{split.files[index]} ({why})" for index, why in list(broken.items())[:NAMED])
    more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    said = f"{len(broken)} of {len(split)} images of {split.source} cannot be read: {named}{more}"
    if len(broken) > most * len(split):
        raise DataError(
            f"{said}; workload.max_unreadable allows {most:.0%} of them",
            "Bring the files back or take them out; or allow more, --set workload.max_unreadable=0.5.",
        )
    logger.warning("%s; they are left out (workload.max_unreadable: up to %s of all)", said, f"{most:.0%}")
    kept = np.setdiff1d(np.arange(len(split)), list(broken))
    files = tuple(split.files[index] for index in kept)
    digest = f"{split.digest} without {sorted(broken)}"
    left = replace(split, images=Files(files), labels=split.labels[kept], files=files, digest=digest)
    return left, tuple(split.files[index] for index in broken)


@dataclass(frozen=True)
class Seen:
    """What looking through files found.

    Args:
        unreadable: number of each unreadable file to why.
        contents: digest of what is in all of them, in their order.
    """

    unreadable: Mapping[int, str]
    contents: str


def _looked_up(split: ImageSplit, settings: Workload) -> Seen:
    """What is in the files, as found before, or now."""
    path = cache_folder(settings) / f"images-{_state(split)}.json"
    known = _read(path, len(split))
    if known is not None:
        return known
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            known = _read(path, len(split))
            if known is None:
                known = _look(split)
                unreadable = {str(key): why for key, why in known.unreadable.items()}
                write_json(path, {"images": len(split), "contents": known.contents, "unreadable": unreadable})
            return known
    except OSError as error:
        logger.warning(
            "which images can be read cannot be kept in %s (%s), so that every run reads all of them first; name a "
            "writable folder in workload.cache_dir",
            path.parent,
            error,
        )
        return known if known is not None else _look(split)


def _state(split: ImageSplit) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in split.files:
        found = Path(file).stat()
        digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read(path: Path, number: int) -> Seen | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = {int(key): str(why) for key, why in kept["unreadable"].items()}
        if kept["images"] != number or not all(0 <= key < number for key in found):
            raise ValueError("it is of other images")
        return Seen(found, str(kept["contents"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read (%s); looking through the images again", path, error)
        return None


def _look(split: ImageSplit) -> Seen:
    contents = hashlib.blake2b(digest_size=16)
    sizes = [Path(file).stat().st_size for file in split.files]
    pace, found = Pace(f"looking through {split.source}", sum(sizes), "bytes"), {}
    with ThreadPoolExecutor(usable_cores(), "looking") as pool:
        for index, (digest, why) in enumerate(pool.map(looked_at, split.files)):
            contents.update(digest)
            if why:
                found[index] = why
            pace.add(sizes[index])
    pace.end()
    return Seen(found, contents.hexdigest())


def looked_at(path: str) -> tuple[bytes, str]:
    """Digest of what is in an image file, and why it cannot be decoded to its end; empty where it can."""
    digest = b""
    try:
        content = Path(path).read_bytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        with Image.open(BytesIO(content)) as image:
            image.draft("RGB", DRAFT)
            eight_bits(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged files fail in ways of their own
        return digest, first_line(error)
    return digest, ""
