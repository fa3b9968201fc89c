"""One JSON array of articles, `{"id", "title", "text"}` each, read as a stream: any size of file, little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import ijson
import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets.articles import TITLE, article, stream_files
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.lines import looks_like, quoted, why_no_text

KEYS = ("id", TITLE, "text")
EXPECTED = 'expected an array of objects {"id", "title", "text"}'
CHUNK = 2**16
"""Bytes parsed at a time."""
MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which JSON does not know."""


def load(settings: Workload) -> Splits:
    """The articles of `data_path` and `eval_path`, still to be read.

    Raises:
        DataError: a file that is not there; what is wrong within it is raised where it is read.
    """
    return stream_files(settings, read)


def read(path: Path, settings: Workload) -> Iterator[str]:
    """The articles of one file, in its order: a title, a line feed, a text.

    Raises:
        DataError: no array of articles, JSON that is broken, two of one id; the message names item and byte.
    """
    number, seen = 0, array("q")
    with path.open("rb") as file:
        begin = _begin(path, file)
        try:
            for number, item in enumerate(ijson.items(file, "item", use_float=True, buf_size=CHUNK), 1):
                where = f"{path}: item {number}"
                _check(where, item)
                seen.append(hash(str(item["id"])))
                yield article(where, item["text"], item[TITLE], "text")
        except ijson.JSONError as error:
            place = f"item {number + 1}, byte {_broken_at(path, begin):,}"
            raise DataError(f"{path}: {place}: {_reason(error)}; {EXPECTED}") from error
    if not seen:
        raise DataError(f"{path}: the array is empty; {EXPECTED}")
    if len(np.unique(np.frombuffer(seen, dtype=np.int64))) < len(seen):
        _name_repeated(path, begin)


def _begin(path: Path, file: IO[bytes]) -> int:
    """Where the array begins, in bytes; the file is left there."""
    head = file.read(CHUNK)
    begin = len(MARK) if head.startswith(MARK) else 0
    content = head[begin:].lstrip(b" \t\r\n")
    if not content:
        raise DataError(f"{path}:1: the file is empty; {EXPECTED}")
    if content[:1] != b"[":
        line = content.partition(b"\n")[0].decode(errors="backslashreplace")
        advice = why_no_text(head, path, unknown="") or looks_like(line, "json")
        raise DataError(f"{path}: begins with {quoted(line)}; {EXPECTED}", advice)
    file.seek(begin)
    return begin


def _check(where: str, item: Any) -> None:
    if not isinstance(item, dict):
        raise DataError(f"{where}: {'null' if item is None else type(item).__name__}; {EXPECTED}")
    missing = [repr(key) for key in KEYS if key not in item]
    if missing:
        shown = ", ".join(map(quoted, list(item)[:8]))
        raise DataError(f"{where}: no {' and no '.join(missing)}; found {shown or 'no key'}; {EXPECTED}")
    if isinstance(item["id"], bool) or not isinstance(item["id"], str | int):
        raise DataError(f"{where}: 'id' is {quoted(item['id'])}; expected a string or an integer")
    if item[TITLE] is None:
        raise DataError(f"{where}: {TITLE!r} is null; expected a string")


def _reason(error: ijson.JSONError) -> str:
    """The first line of what the parser says, which is bytes where the text around is no UTF-8."""
    said = error.args[0] if error.args else ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return text.partition("\n")[0].strip().removesuffix(".") or type(error).__name__


def _name_repeated(path: Path, begin: int) -> None:
    """Raise the first id that an earlier article has; different ids of one hash are none."""
    places: dict[str, int] = {}
    with path.open("rb") as file:
        file.seek(begin)
        for number, name in enumerate(ijson.items(file, "item.id", buf_size=CHUNK), 1):
            first = places.setdefault(str(name), number)
            if first != number:
                raise DataError(
                    f"{path}: item {number}: id {quoted(name)} is that of item {first} too; expected each once"
                )


class _Nowhere:
    """Takes the parser's events."""

    def send(self, event: object) -> None:
        """Forget it."""


def _broken_at(path: Path, begin: int) -> int:
    """The byte at which the parser gives up, from 0: by chunks, then by the bytes of the one that it fails in."""
    return _fails_in(path, begin, _fails_in(path, begin, begin, CHUNK), 1)


def _fails_in(path: Path, begin: int, coarse_until: int, step: int) -> int:
    """First byte of the piece that the parser fails in; pieces are of `step` bytes from `coarse_until` on."""
    parser, position = ijson.basic_parse_coro(_Nowhere()), begin
    with path.open("rb") as file:
        file.seek(begin)
        while piece := file.read(CHUNK if position < coarse_until else step):
            try:
                parser.send(piece)
            except ijson.JSONError:
                return position
            position += len(piece)
    return position
