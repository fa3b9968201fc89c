"""Texts in files, labelled or alone: tab-separated, CSV, JSON Lines, Parquet.

Tab-separated: a header line, then one sample per line; quotes and backslashes are plain text. CSV: separated by commas,
semicolons, bars or tabs, as RFC 4180 quotes them. JSON Lines and Parquet are read as a stream where no labels are
learnt.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError, first_line, nearest
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.articles import TITLE, article, named_files, stream_files
from dynbench.workloads.datasets.base import (
    Label,
    Splits,
    TextSplit,
    class_indices,
    class_names,
    classes_of,
    has_classes,
    read_label,
)
from dynbench.workloads.datasets.lines import (
    decoded,
    listed,
    looks_like,
    numbered,
    quoted,
    read_lines,
    read_text,
    reading,
    text_of,
)

EXPECTED_TSV = "expected a header line with tab-separated column names, then one sample per line"
EXPECTED_CSV = "expected a header line with separated column names, then one sample per line, quoted where needed"
EXPECTED_JSONL = "expected one JSON object per line"
EXPECTED_PARQUET = "expected a Parquet file with a column of texts"
ODD_LINE = "The lines before it have what is missing: correct this line, or leave it out."
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


@dataclass
class FileRows:
    """The samples of one file as it writes them.

    Args:
        path: the file.
        texts, labels, lines: of each sample, the last its line from 1.
    """

    path: Path
    texts: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def where(self, index: int) -> str:
        """File and line of a sample."""
        return f"{self.path}:{self.lines[index]}"

    def add(self, line: int, text: object, label: object, text_column: str) -> None:
        """One more sample.

        Raises:
            DataError: a text that is none, or a label that cannot be one.
        """
        where = f"{self.path}:{line}"
        self.texts.append(text_of(where, text_column, text))
        self.labels.append(read_label(where, label))
        self.lines.append(line)

    def split(self, classes: Sequence[Label], source: Path) -> TextSplit:
        """The samples with the classes of the training file `source`."""
        labels = class_indices(self.labels, self.where, classes, str(source))
        return TextSplit(self.texts, labels, str(self.path), class_names(classes))


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`, with the classes of the training file.

    Without classes, JSON Lines and Parquet are texts that are still to be read.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    name = settings.dataset
    if name in STREAMED and not has_classes(settings):
        return stream_files(settings, STREAMED[name])
    found = []
    for key, path in named_files(settings):
        if path is not None:
            with reading(key, path):
                found.append(PARSED[name](path, settings))
    classes = classes_of(found[0].labels, found[0].where)
    return Splits(*(rows.split(classes, found[0].path) for rows in found))


def parse_tsv(path: Path, settings: Workload) -> FileRows:
    """The labelled texts of a tab-separated file, in its order; empty lines are skipped.

    Raises:
        DataError: empty file, missing column, a row of the wrong width, a label that cannot be one.
    """
    lines = numbered(read_lines(path, EXPECTED_TSV))
    number, header = next(lines)
    rows = ((line, row.split("\t")) for line, row in lines)
    return _table(path, (number, header.split("\t")), rows, settings, looks_like(header, "tsv"))


def parse_csv(path: Path, settings: Workload) -> FileRows:
    """The labelled texts of a file with separators and quotes, in its order; empty lines are skipped.

    The separator is the one that parts the header into the columns asked for, else into the most columns.

    Raises:
        DataError: as `parse_tsv`, or bad quotes.
    """
    text, asked = read_text(path, EXPECTED_CSV), options_of(settings, TextFileOptions)

    def fit(delimiter: str) -> tuple[bool, int]:
        columns = _header(path, text, delimiter)[1]
        return {asked.text_column, asked.label_column} <= set(columns), len(columns)

    delimiter = max(DELIMITERS, key=fit)
    rows = _csv_rows(path, text, delimiter)
    next(rows, None)
    line = text.lstrip().partition("\n")[0]
    advice = looks_like(line, "csv") if line[:1] in "{[" else ""
    return _table(path, _header(path, text, delimiter), rows, settings, advice)


def _header(path: Path, text: str, delimiter: str) -> tuple[int, list[str]]:
    """Line and columns of the first row; spaces around the names of columns are none of theirs."""
    number, columns = next(_csv_rows(path, text, delimiter), (1, []))
    return number, [column.strip() for column in columns]


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
    path: Path,
    header: tuple[int, Sequence[str]],
    rows: Iterable[tuple[int, Sequence[str]]],
    settings: Workload,
    advice: str,
) -> FileRows:
    """The samples of a table.

    Args:
        path: the file.
        header: number of the header's line, and its columns.
        rows: number of each row's first line, and its fields.
        settings: the columns to read.
        advice: what to do where the columns are missing because the file is of another kind; may be empty.

    Raises:
        DataError: missing column, a row of the wrong width, no rows, a label that cannot be one.
    """
    line, columns = header
    unnamed = NO_HEADER if any(column.strip().isdecimal() for column in columns) else ""
    check_columns(f"{path}:{line}", settings, columns, advice or unnamed)
    asked = options_of(settings, TextFileOptions)
    text_index, label_index = columns.index(asked.text_column), columns.index(asked.label_column)
    found = FileRows(path)
    for number, fields in rows:
        if len(fields) != len(columns):
            seen = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise DataError(
                f"{path}:{number}: {seen}; expected {len(columns)}, as in the header",
                "A text with the separator or a line break in it must be in quotes, which --dataset csv reads.",
            )
        found.add(number, fields[text_index], fields[label_index], asked.text_column)
    if not found.texts:
        raise DataError(f"{path}:{line}: no rows after the header; expected one sample per line")
    return found


def parse_jsonl(path: Path, settings: Workload) -> FileRows:
    """The labelled texts of a JSON Lines file, in its order; empty lines are skipped.

    Raises:
        DataError: empty file, a line that is no object, a missing key, a text or label of another type.
    """
    found, asked = FileRows(path), options_of(settings, TextFileOptions)
    for number, row in _objects(path):
        check_columns(f"{path}:{number}", settings, list(row), ODD_LINE if found.texts else "")
        found.add(number, row[asked.text_column], row[asked.label_column], asked.text_column)
    return found


def read_jsonl(path: Path, settings: Workload) -> Iterator[str]:
    """The texts of a JSON Lines file, in its order, below their titles where its objects have them.

    Raises:
        DataError: as `parse_jsonl`, but for labels.
    """
    column = ""
    for number, row in _objects(path):
        where = f"{path}:{number}"
        column = text_column(where, settings, list(row), column)
        yield article(where, row[column], row.get(TITLE) if column != TITLE else None, column)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of a JSON Lines file with their lines, read one by one."""
    first = True
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            line = decoded(content, path, number, EXPECTED_JSONL).rstrip("\r\n")
            if line.strip(" "):
                yield number, _object(f"{path}:{number}", line, looks_like(line, "jsonl") if first else "")
                first = False
    if first:
        raise DataError(f"{path}:1: the file is empty; {EXPECTED_JSONL}")


def _object(where: str, line: str, advice: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise DataError(
            f"{where}: {what} at character {error.pos + 1} of {quoted(line)}; {EXPECTED_JSONL}", advice
        ) from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise DataError(f"{where}: {error}; {EXPECTED_JSONL}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: {type(row).__name__}; {EXPECTED_JSONL}", advice)
    return row


def parse_parquet(path: Path, settings: Workload) -> FileRows:
    """The labelled texts of a Parquet file, in its order.

    Raises:
        DataError: no Parquet file, a missing column, no rows, a text or label that is none.
    """
    asked, found = options_of(settings, TextFileOptions), FileRows(path)

    def chosen(columns: list[str]) -> tuple[str, str]:
        check_columns(f"{path}:1", settings, columns)
        return asked.text_column, asked.label_column

    for row, (text, label) in enumerate(_parquet_rows(path, chosen), 1):
        found.add(row, text, label, asked.text_column)
    return found


def read_parquet(path: Path, settings: Workload) -> Iterator[str]:
    """The texts of a Parquet file, in its order, below their titles where it has a column of them.

    Raises:
        DataError: no Parquet file, a missing column, no rows, a text that is none.
    """
    column = ""

    def chosen(columns: list[str]) -> tuple[str, ...]:
        nonlocal column
        column = text_column(f"{path}:1", settings, columns)
        return (column, TITLE) if TITLE in columns and column != TITLE else (column,)

    for row, (text, *title) in enumerate(_parquet_rows(path, chosen), 1):
        yield article(f"{path}: row {row}", text, title[0] if title else None, column)


def _parquet_rows(path: Path, chosen: Callable[[list[str]], Sequence[str]]) -> Iterator[tuple[object, ...]]:
    """The columns that `chosen` picks of all that a file has, row by row, `ROWS` at a time."""
    import polars as pl

    begin = 0
    try:
        scanned = pl.scan_parquet(path, glob=False)
        columns = chosen(scanned.collect_schema().names())
        while len(batch := scanned.select(columns).slice(begin, ROWS).collect()):
            yield from batch.iter_rows()
            begin += ROWS
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        place = f": row {begin + 1}" if begin else ""
        raise DataError(f"{path}{place}: {first_line(error)}; {EXPECTED_PARQUET}") from error
    if begin == 0:
        raise DataError(f"{path}: no rows; {EXPECTED_PARQUET}")


PARSED: dict[str, Callable[[Path, Workload], FileRows]] = {
    "tsv": parse_tsv,
    "csv": parse_csv,
    "jsonl": parse_jsonl,
    "parquet": parse_parquet,
}
"""Data set to what reads the labelled texts of a file; at least one sample."""
STREAMED = {"jsonl": read_jsonl, "parquet": read_parquet}
"""Data set to what reads the texts of a file as a stream."""


def text_column(where: str, settings: Workload, found: Sequence[str], before: str = "") -> str:
    """The column of texts to read where no labels are: the one asked for, `text` where nothing else was.

    Args:
        where: file and line, or object in it.
        settings: the column asked for.
        found: the columns that there are.
        before: what was read above; empty on the first line.

    Raises:
        DataError: it is not there.
    """
    usual = TextFileOptions.model_fields["text_column"].default
    asked = before or options_of(settings, TextFileOptions).text_column
    for column in (asked,) if before or asked != usual else (asked, "text"):
        if column in found:
            return column
    raise _missing(where, {"text_column": asked}, found, ODD_LINE if before else "")


def check_columns(where: str, settings: Workload, found: Sequence[str], advice: str = "") -> None:
    """Refuse a file, or an object in it, without the columns that are to be read.

    Args:
        where: file and line.
        settings: the columns asked for.
        found: the columns that there are.
        advice: what to do, where the file looks like another kind of file.

    Raises:
        DataError: a column is missing, or there twice.
    """
    columns = options_of(settings, TextFileOptions)
    asked = {"text_column": columns.text_column, "label_column": columns.label_column}
    for column in asked.values():
        if found.count(column) > 1:
            raise DataError(f"{where}: column {column!r} occurs {found.count(column)} times; expected once")
    if missing := {key: column for key, column in asked.items() if column not in found}:
        raise _missing(where, missing, found, advice)


def _missing(where: str, missing: Mapping[str, str], found: Sequence[str], advice: str) -> DataError:
    """An error for missing columns, by the setting that names them."""
    said = " and ".join(f"no column {column!r} (workload.{key})" for key, column in missing.items())
    return DataError(f"{where}: {said}; found {listed(found) or 'none'}", advice or _suggestion(missing, found))


def _suggestion(missing: Mapping[str, str], found: Sequence[str]) -> str:
    """The flags to give; what else is usual for a text is no label, and the other way round."""
    free = list(filter(str.isprintable, found))
    said, open_ = [], []
    for key, column in missing.items():
        flag = f"--{key.replace('_', '-')}"
        other = {name for names in USUAL_NAMES if names != key for name in USUAL_NAMES[names]}
        own = [name for name in free if name.casefold() not in other]
        usual = (name for known in USUAL_NAMES[key] for name in own if name.casefold() == known)
        near = nearest(column, own) or next(usual, "")
        if near:
            free.remove(near)
            said.append(f"{flag} {shlex.quote(near)}")
        else:
            open_.append(flag)
    asked = f"Did you mean {' '.join(said)}?" if said else ""
    rest = f"Name {('the other' if said else 'it') if len(open_) == 1 else 'them'} with {' and '.join(open_)}."
    return f"{asked} {rest if open_ else ''}".strip()
