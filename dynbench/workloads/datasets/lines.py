"""Lines of text files, compressed or not."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dynbench.errors import DataError

_MAGIC = {
    b"PAR1": "It looks like Parquet: use --dataset parquet.",
    b"\x1f\x8b": "It looks gzipped; unpack it: gunzip -k {file}.",
    b"PK\x03\x04": "It looks like a zip archive or a spreadsheet; unpack it, or export it as CSV (--dataset csv).",
    b"\xff\xfe": "It looks like UTF-16; save it as UTF-8: iconv -f UTF-16 -t UTF-8 {file}.",
    b"\xfe\xff": "It looks like UTF-16; save it as UTF-8: iconv -f UTF-16 -t UTF-8 {file}.",
}
"""First bytes of a file to what to do about it."""
_DELIMITERS = {"\t": ("tab-separated", "tsv"), ",": ("comma-separated", "csv"), ";": ("semicolon-separated", "csv")}
SHOWN = 60
"""Longest piece of a file in a message, characters."""
SHOWN_NAMES = 8


def why_no_text(content: bytes, path: Path, unknown: str = "Save it as UTF-8.") -> str:
    """What to do about a file that is no UTF-8 text; `unknown` where nothing tells what else it is."""
    for magic, advice in _MAGIC.items():
        if content.startswith(magic):
            return advice.format(file=shlex.quote(str(path)))
    return unknown


def looks_like(line: str, reader: str) -> str:
    """What the first line of a file looks like, with the data set that reads it; empty where that is the reader.

    Args:
        line: the first line that holds something.
        reader: the data set that is to read it.
    """
    start = line.strip()
    if start.startswith("{") and reader != "jsonl":
        return "It looks like JSON Lines: use --dataset jsonl."
    if start.startswith("[") or start == "{":
        return (
            "It looks like one JSON document over all lines: write one object per line, like jq -c '.[]' does; an "
            "array of articles without labels is read by --dataset json."
        )
    for delimiter, (words, dataset) in _DELIMITERS.items():
        if delimiter in line:
            return "" if dataset == reader else f"It looks {words}: use --dataset {dataset}."
    return ""


@contextmanager
def reading(key: str, path: Path | str) -> Iterator[None]:
    """Inside it a file or another source is read: an `OSError` names it and the dotted key that chose it.

    Raises:
        DataError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{key}: {path}: {error.strerror or error}") from error


def decoded(content: bytes, path: Path, line: int, expected: str) -> str:
    """UTF-8 text that begins on a line of a file, counted from 1; a byte order mark on the first one is dropped.

    Raises:
        DataError: it is not UTF-8; `expected` says what the file should hold.
    """
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        byte = content[error.start]
        raise DataError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8 text; {expected}", why_no_text(content, path)
        ) from error


def read_text(path: Path, expected: str) -> str:
    """The content of a UTF-8 file without its byte order mark.

    Args:
        path: the file.
        expected: what the file should hold, for messages.

    Raises:
        DataError: empty, or not UTF-8.
        OSError: it cannot be read.
    """
    text = decoded(path.read_bytes(), path, 1, expected)
    if not text.strip(" \r\n"):
        raise DataError(f"{path}:1: the file is empty; {expected}")
    return text


def read_lines(path: Path, expected: str) -> list[str]:
    """The lines of a UTF-8 file without their ends; a byte order mark and empty lines at the end are dropped.

    Only line feeds (with or without a carriage return) end a line: other separators belong to the text.

    Raises:
        DataError, OSError: as `read_text`.
    """
    lines = [line.removesuffix("\r") for line in read_text(path, expected).split("\n")]
    while not lines[-1]:
        lines.pop()
    return lines


def numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that hold something, each with its number from 1."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip(" "))


def excerpt(text: object) -> str:
    """A piece of a file as a message shows it, on one line and not too long."""
    shown = repr(text)
    return shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 3]}..."


def listed(names: Sequence[object]) -> str:
    """The first of some names, quoted."""
    return ", ".join(map(excerpt, names[:SHOWN_NAMES])) + (", …" if len(names) > SHOWN_NAMES else "")


def text_of(where: str, key: str, value: object) -> str:
    """A text as a file has it.

    Args:
        where: file and place in it, for messages.
        key: column or key of the text, for messages.
        value: what stands there.

    Raises:
        DataError: no string, or none that a tokenizer takes.
    """
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise DataError(f"{where}: {key!r} is {kind}; expected a string")
    if not is_unicode(value):
        raise DataError(f"{where}: {key!r} holds half a surrogate pair; expected Unicode text")
    return value


def is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON can spell as escapes and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
