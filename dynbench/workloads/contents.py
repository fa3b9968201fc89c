"""What a pass over texts without labels tells: kept in the cache, and of use while the texts stay as they are."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from dynbench.runs.atomic import write_json
from dynbench.workloads.datasets.base import CorpusSplit
from dynbench.workloads.pace import Pace

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """What a pass over the texts tells.

    Args:
        texts: their number.
        characters: of all together.
        digest: of all, in their order.
    """

    texts: int
    characters: int
    digest: str


def contents_of(folder: Path, split: CorpusSplit) -> Contents:
    """What is kept of an earlier pass, else what one tells now, which is kept.

    Args:
        folder: of the cache.
        split: whose texts.

    Raises:
        DataError: what reading the texts raises.
    """
    if (kept := kept_contents(folder, split)) is not None:
        return kept
    found, path = _read_through(split), _file(folder, split)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"state": list(split.state), "contents": asdict(found)})
    except OSError as error:
        logger.debug("%s: %s", path, error)  # the shards cannot be written either, which is warned about
    return found


def kept_contents(folder: Path, split: CorpusSplit) -> Contents | None:
    """What an earlier pass over the texts told, which found no mistake; None where they have changed since."""
    path = _file(folder, split)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["state"] == list(split.state):
            return Contents(**kept["contents"])
        logger.info("%s has changed since it was last read; reading it again", split.source)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s); reading %s again", path, error, split.source)
    return None


def stem(split: CorpusSplit) -> str:
    """A name for the source: the readable part of it, and a digest of the whole."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "_", Path(split.source).stem)[:40]
    return f"{name}-{hashlib.blake2b(str(split.state[0]).encode(), digest_size=4).hexdigest()}"


def _file(folder: Path, split: CorpusSplit) -> Path:
    return folder / f"{stem(split)}.contents.json"


def _read_through(split: CorpusSplit) -> Contents:
    digest = hashlib.blake2b(digest_size=16)
    number = characters = 0
    pace = Pace(f"reading {split.source}", None, "characters")
    for text in split.read():
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
        number += 1
        characters += len(text)
        pace.add(len(text))
    pace.end()
    return Contents(number, characters, digest.hexdigest())
