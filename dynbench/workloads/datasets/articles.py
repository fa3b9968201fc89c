"""Texts without labels, read from files as a stream: what the formats share, and one JSON array of articles.

An article is `{"id", "title", "text"}`; a file of any size takes little memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import ijson
import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import FileOptions, TextFileOptions
from dynbench.workloads.datasets.base import CorpusSplit, Splits
from dynbench.workloads.datasets.lines import listed, looks_like, quoted, reading, text_of, why_no_text

Read = Callable[[Path, Workload], Iterator[str]]
"""The texts of one file, in its order; raises `DataError` and `OSError` on the way."""

TITLE = "title"
"""Key or column of what stands above a text, on a line of its own."""


def stream_files(settings: Workload, read: Read) -> Splits:
    """The texts of `data_path` and `eval_path`, still to be read.

    Raises:
        DataError: a file that is not there.
    """
    train, evaluation = (
        None if path is None else stream_file(path, key, settings, read) for key, path in named_files(settings)
    )
    assert train is not None, "config/rules.py"
    return Splits(train, evaluation)


def named_files(settings: Workload) -> tuple[tuple[str, Path | None], tuple[str, Path | None]]:
    """Dotted key and path of the training file, and of the evaluation file, None where none is named."""
    files = options_of(settings, FileOptions)
    train, evaluation = (
        None if path is None else Path(path).expanduser() for path in (files.data_path, files.eval_path)
    )
    return ("workload.data_path", train), ("workload.eval_path", evaluation)


def stream_file(path: Path, key: str, settings: Workload, read: Read) -> CorpusSplit:
    """The texts of one file, still to be read.

    Args:
        path: the file.
        key: dotted configuration key that named it, for messages.
        settings: the `workload` section.
        read: reads the format.

    Raises:
        DataError: it is not there.
    """
    with reading(key, path):
        found = path.stat()
    column = options_of(settings, TextFileOptions).text_column
    default = TextFileOptions.model_fields["text_column"].default
    place = f"{path.resolve()}{'' if column == default else f' {column}'}"
    state = (place, found.st_size, found.st_mtime_ns)
    return CorpusSplit(partial(_texts, path, key, settings, read), str(path), state)


def _texts(path: Path, key: str, settings: Workload, read: Read) -> Iterator[str]:
    with reading(key, path):
        yield from read(path, settings)


def article(where: str, text: object, title: object | None, text_key: str) -> str:
    """The text of a sample, below its title where it has one.

    Args:
        where: file and place in it, for messages.
        text: what stands under `text_key`.
        title: what stands under `TITLE`; None where there is no such key.
        text_key: for messages.

    Raises:
        DataError: one of them is no string, or none that a tokenizer takes.
    """
    body = text_of(where, text_key, text)
    return body if title is None else f"{text_of(where, TITLE, title)}\n{body}"


KEYS = ("id", TITLE, "text")
EXPECTED = 'expected an array of objects {"id", "title", "text"}'
CHUNK = 2**16
"""Bytes parsed at a time."""
MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which JSON does not know."""


def load_json(settings: Workload) -> Splits:
    """The articles of `data_path` and `eval_path`, still to be read.

    Raises:
        DataError: a file that is not there; what is wrong within it is raised where it is read.
    """
    return stream_files(settings, read_json)


def read_json(path: Path, settings: Workload) -> Iterator[str]:
    """The articles of one file, in its order: a title, a line feed, a text.

    Raises:
        DataError: no array of articles, JSON that is broken, two of one id; the message names the item.
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
            raise DataError(f"{path}: item {number + 1}: {_reason(error)}; {EXPECTED}") from error
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
        raise DataError(f"{where}: no {' and no '.join(missing)}; found {listed(list(item)) or 'no key'}; {EXPECTED}")
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
