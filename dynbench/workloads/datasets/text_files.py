"""Texts in files, labelled or alone: tab-separated, CSV, JSON Lines, Parquet, one JSON array of articles.

Tab-separated: a header line, then one sample per line; quotes and backslashes are plain text. CSV: separated by commas,
semicolons, bars or tabs, as RFC 4180 quotes them. Where no labels are learnt, JSON Lines and Parquet are read as a
stream, and articles, `{"id", "title", "text"}`, always are: a file of any size takes little memory.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import ijson
import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError, first_line, nearest
from dynbench.plugins import options_of
from dynbench.plugins.datasets import FileOptions, TextFileOptions
from dynbench.workloads.datasets import base

EXPECTED_TSV = "expected a header line with tab-separated column names, then one sample per line"
EXPECTED_CSV = "expected a header line with separated column names, then one sample per line, quoted where needed"
EXPECTED_JSONL = "expected one JSON object per line"
EXPECTED_PARQUET = "expected a Parquet file with a column of texts"
EXPECTED_JSON = 'expected an array of objects {"id", "title", "text"}'
TITLE = "title"
"""Key or column of what stands above a text, on a line of its own."""
KEYS = ("id", TITLE, "text")
"""Of an article."""
ODD_LINE = "The lines before it have what is missing: correct this line, or leave it out."
USUAL_TEXT = TextFileOptions.model_fields["text_column"].default
USUAL_NAMES = {
    "text_column": ("sentence", "text", "review", "content", "body", "comment", "document", "tweet"),
    "label_column": ("label", "labels", "sentiment", "class", "category", "target", "rating", "stars", "polarity"),
}
"""What files call the columns of either setting, in lower case."""
NO_HEADER = "The first line must name the columns, like sentence and label; this one holds a number."
DELIMITERS = ",;\t|"
LONGEST_FIELD = 2**24
"""Characters of a field of CSV; a quote that is never closed is found there, if not at the file's end."""
ROWS = 2048
"""Rows of Parquet in memory at a time."""
CHUNK = 2**16
"""Bytes of an array of articles parsed at a time."""
MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which JSON does not know."""

Pick = Callable[[str, Sequence[str], str], Sequence[str]]
"""The columns to read, given file and line, the columns there are, and what to do where one is missing."""
Rows = Iterator[tuple[str, Sequence[object]]]
"""File and place of each row, and its values in the columns picked."""


def load(settings: Workload) -> base.Splits:
    """The samples of `data_path` and `eval_path`, with the classes of the training file; or texts still to be read.

    Raises:
        DataError: a file that cannot be used; the message names file and line. What is wrong within a stream is raised
            where it is read.
    """
    options, name = options_of(settings, FileOptions), settings.dataset
    named = {"workload.data_path": options.data_path, "workload.eval_path": options.eval_path}
    paths = {key: Path(path).expanduser() for key, path in named.items() if path is not None}
    if name == "json" or (name in STREAMED and not base.has_classes(settings)):
        return base.Splits(*(stream_file(path, key, settings, name) for key, path in paths.items()))
    files = [(path, *_labelled(key, path, settings)) for key, path in paths.items()]
    source, _, labels, places = files[0]
    classes = base.classes_of(labels, places.__getitem__)
    names = base.class_names(classes)
    return base.Splits(
        *(
            base.TextSplit(texts, base.class_indices(labels, where.__getitem__, classes, str(source)), str(path), names)
            for path, texts, labels, where in files
        )
    )


def _labelled(key: str, path: Path, settings: Workload) -> tuple[list[str], list[base.Label], list[str]]:
    """Texts and labels of a file, and file and place of each; `key` is the setting that names the file."""
    options, texts, labels, places = options_of(settings, TextFileOptions), list[str](), list[base.Label](), list[str]()
    columns = {"text_column": options.text_column, "label_column": options.label_column}

    def pick(where: str, found: Sequence[str], advice: str) -> Sequence[str]:
        for column in columns.values():
            if found.count(column) > 1:
                raise DataError(f"{where}: column {column!r} occurs {found.count(column)} times; expected once")
        if missing := {name: column for name, column in columns.items() if column not in found}:
            raise _missing(where, missing, found, advice)
        return list(columns.values())

    with base.reading(key, path):
        for where, (text, label) in READERS[settings.dataset](path, settings, pick):
            texts.append(base.text_of(where, options.text_column, text))
            labels.append(base.read_label(where, label))
            places.append(where)
    return texts, labels, places


def stream_file(path: Path, key: str, settings: Workload, reader: str) -> base.CorpusSplit:
    """The texts of one file, still to be read.

    Args:
        path: the file.
        key: dotted configuration key that named it, for messages.
        settings: the `workload` section.
        reader: of `READERS`.

    Raises:
        DataError: it is not there.
    """
    with base.reading(key, path):
        found = path.stat()
    column = options_of(settings, TextFileOptions).text_column
    place = f"{path.resolve()}{'' if column == USUAL_TEXT else f' {column}'}"
    state = (place, found.st_size, found.st_mtime_ns)
    return base.CorpusSplit(partial(_texts, path, key, settings, reader), str(path), state)


def _texts(path: Path, key: str, settings: Workload, reader: str) -> Iterator[str]:
    """The texts of a file, in its order, below their titles where its rows have them.

    They are in the column that the settings name; where that is the usual one, `text` will do.
    """
    wanted = options_of(settings, TextFileOptions).text_column
    accepted = [wanted, "text"] if wanted == USUAL_TEXT else [wanted]

    def pick(where: str, found: Sequence[str], advice: str) -> Sequence[str]:
        column = next((column for column in accepted if column in found), None)
        if column is None:
            raise _missing(where, {"text_column": accepted[0]}, found, advice)
        accepted[:] = [column]  # of the rows that follow too
        return [column, TITLE] if TITLE in found and column != TITLE else [column]

    with base.reading(key, path):
        for where, (text, *title) in READERS[reader](path, settings, pick):
            body = base.text_of(where, accepted[0], text)
            yield body if title in ([], [None]) else f"{base.text_of(where, TITLE, title[0])}\n{body}"


def read_tsv(path: Path, settings: Workload, pick: Pick) -> Rows:
    """The rows of a tab-separated file; empty lines are skipped.

    Raises:
        DataError: empty file, missing column, a row of the wrong width.
    """
    lines = base.numbered(base.read_lines(path, EXPECTED_TSV))
    number, header = next(lines)
    rows = ((line, row.split("\t")) for line, row in lines)
    return _table(path, number, header.split("\t"), rows, pick, base.looks_like(header, "tsv"))


def read_csv(path: Path, settings: Workload, pick: Pick) -> Rows:
    """The rows of a file with separators and quotes; empty lines are skipped.

    The separator is the one that parts the header into the columns asked for, else into the most columns. Spaces around
    the names of columns are none of theirs.

    Raises:
        DataError: as `read_tsv`, or bad quotes.
    """
    text, options = base.read_text(path, EXPECTED_CSV), options_of(settings, TextFileOptions)

    def header(delimiter: str) -> tuple[int, list[str]]:
        number, columns = next(_csv_rows(path, text, delimiter), (1, []))
        return number, [column.strip() for column in columns]

    def fit(delimiter: str) -> tuple[bool, int]:
        columns = header(delimiter)[1]
        return {options.text_column, options.label_column} <= set(columns), len(columns)

    delimiter = max(DELIMITERS, key=fit)
    rows = _csv_rows(path, text, delimiter)
    next(rows, None)
    line = text.lstrip().partition("\n")[0]
    return _table(path, *header(delimiter), rows, pick, base.looks_like(line, "csv") if line[:1] in "{[" else "")


def _csv_rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Number of each row's first line, and its fields."""
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}:{number}: {error}; {EXPECTED_CSV}",
                'Put such a field in quotes, and write a quote within it twice: "a ""good"" film".',
            ) from error
        if len(fields) > 1 or any(field.strip(" ") for field in fields):
            yield number, fields


def _table(
    path: Path, line: int, columns: Sequence[str], rows: Iterator[tuple[int, Sequence[str]]], pick: Pick, advice: str
) -> Rows:
    """The rows of a table.

    Args:
        path: the file.
        line: of the header.
        columns: its fields.
        rows: number of each row's first line, and its fields.
        pick: the columns to read.
        advice: what to do where they are missing because the file is of another kind; may be empty.

    Raises:
        DataError: missing column, a row of the wrong width, no rows.
    """
    unnamed = NO_HEADER if any(column.strip().isdecimal() for column in columns) else ""
    places = [columns.index(column) for column in pick(f"{path}:{line}", columns, advice or unnamed)]
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}:{line}: no rows after the header; expected one sample per line")
    for number, fields in chain([first], rows):
        if len(fields) != len(columns):
            seen = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise DataError(
                f"{path}:{number}: {seen}; expected {len(columns)}, as in the header",
                "A text with the separator or a line break in it must be in quotes, which --dataset csv reads.",
            )
        yield f"{path}:{number}", [fields[place] for place in places]


def read_jsonl(path: Path, settings: Workload, pick: Pick) -> Rows:
    """The objects of a JSON Lines file, read one by one; empty lines are skipped.

    Raises:
        DataError: empty file, a line that is no object, a missing key.
    """
    advice = ""
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            line = base.decoded(content, path, number, EXPECTED_JSONL).rstrip("\r\n")
            if line.strip(" "):
                where = f"{path}:{number}"
                row = _object(where, line, "" if advice else base.looks_like(line, "jsonl"))
                yield where, [row[column] for column in pick(where, list(row), advice)]
                advice = ODD_LINE
    if not advice:
        raise DataError(f"{path}:1: the file is empty; {EXPECTED_JSONL}")


def _object(where: str, line: str, advice: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise DataError(
            f"{where}: {what} at character {error.pos + 1} of {base.excerpt(line)}; {EXPECTED_JSONL}", advice
        ) from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise DataError(f"{where}: {error}; {EXPECTED_JSONL}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: {type(row).__name__}; {EXPECTED_JSONL}", advice)
    return row


def read_parquet(path: Path, settings: Workload, pick: Pick) -> Rows:
    """The rows of a Parquet file, `ROWS` in memory at a time.

    Raises:
        DataError: no Parquet file, a missing column, no rows.
    """
    import polars as pl

    begin = 0
    try:
        scanned = pl.scan_parquet(path, glob=False)
        columns = pick(f"{path}:1", scanned.collect_schema().names(), "")
        while len(batch := scanned.select(columns).slice(begin, ROWS).collect()):
            yield from ((f"{path}: row {row}", values) for row, values in enumerate(batch.iter_rows(), begin + 1))
            begin += ROWS
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        place = f": row {begin + 1}" if begin else ""
        raise DataError(f"{path}{place}: {first_line(error)}; {EXPECTED_PARQUET}") from error
    if begin == 0:
        raise DataError(f"{path}: no rows; {EXPECTED_PARQUET}")


def read_json(path: Path, settings: Workload, pick: Pick) -> Rows:
    """Text and title of the articles of an array, read one by one.

    Raises:
        DataError: no array of articles, JSON that is broken, two of one id; the message names the item.
    """
    number, seen, columns = 0, array("q"), pick(str(path), KEYS, "")
    with path.open("rb") as file:
        begin = _begin(path, file)
        try:
            for number, item in enumerate(ijson.items(file, "item", use_float=True, buf_size=CHUNK), 1):
                where = f"{path}: item {number}"
                _check_article(where, item)
                seen.append(hash(str(item["id"])))
                yield where, [item[column] for column in columns]
        except ijson.JSONError as error:
            raise DataError(f"{path}: item {number + 1}: {_reason(error)}; {EXPECTED_JSON}") from error
    if not seen:
        raise DataError(f"{path}: the array is empty; {EXPECTED_JSON}")
    if len(np.unique(np.frombuffer(seen, dtype=np.int64))) < len(seen):
        _name_repeated(path, begin)


def _begin(path: Path, file: IO[bytes]) -> int:
    """Where the array begins, in bytes; the file is left there."""
    head = file.read(CHUNK)
    begin = len(MARK) if head.startswith(MARK) else 0
    content = head[begin:].lstrip(b" \t\r\n")
    if not content:
        raise DataError(f"{path}:1: the file is empty; {EXPECTED_JSON}")
    if content[:1] != b"[":
        line = content.partition(b"\n")[0].decode(errors="backslashreplace")
        advice = base.why_no_text(head, path, unknown="") or base.looks_like(line, "json")
        raise DataError(f"{path}: begins with {base.excerpt(line)}; {EXPECTED_JSON}", advice)
    file.seek(begin)
    return begin


def _check_article(where: str, item: Any) -> None:
    if not isinstance(item, dict):
        raise DataError(f"{where}: {'null' if item is None else type(item).__name__}; {EXPECTED_JSON}")
    missing = [repr(key) for key in KEYS if key not in item]
    if missing:
        raise DataError(
            f"{where}: no {' and no '.join(missing)}; found {base.listed(list(item)) or 'no key'}; {EXPECTED_JSON}"
        )
    if isinstance(item["id"], bool) or not isinstance(item["id"], str | int):
        raise DataError(f"{where}: 'id' is {base.excerpt(item['id'])}; expected a string or an integer")
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
                    f"{path}: item {number}: id {base.excerpt(name)} is that of item {first} too; expected each once"
                )


READERS: dict[str, Callable[[Path, Workload, Pick], Rows]] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "json": read_json,
}
"""Data set to what reads the rows of a file in its order, at least one."""
STREAMED = ("jsonl", "parquet")
"""Those of which texts alone are read as a stream."""


def _missing(where: str, missing: Mapping[str, str], found: Sequence[str], advice: str) -> DataError:
    """An error for missing columns, by the setting that names them."""
    missed = " and ".join(f"no column {column!r} (workload.{key})" for key, column in missing.items())
    return DataError(f"{where}: {missed}; found {base.listed(found) or 'none'}", advice or _suggestion(missing, found))


def _suggestion(missing: Mapping[str, str], found: Sequence[str]) -> str:
    """The flags to give; what else is usual for a text is no label, and the other way round."""
    free = list(filter(str.isprintable, found))
    near_flags, open_ = [], []
    for key, column in missing.items():
        flag = f"--{key.replace('_', '-')}"
        other = {name for names in USUAL_NAMES if names != key for name in USUAL_NAMES[names]}
        own = [name for name in free if name.casefold() not in other]
        usual = (name for known in USUAL_NAMES[key] for name in own if name.casefold() == known)
        near = nearest(column, own) or next(usual, "")
        if near:
            free.remove(near)
            near_flags.append(f"{flag} {shlex.quote(near)}")
        else:
            open_.append(flag)
    meant = f"Did you mean {' '.join(near_flags)}?" if near_flags else ""
    rest = f"Name {('the other' if near_flags else 'it') if len(open_) == 1 else 'them'} with {' and '.join(open_)}."
    return f"{meant} {rest if open_ else ''}".strip()
