"""Files of samples, and tables in them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError, nearest
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.base import Splits, TextSplit
from dynbench.workloads.datasets.labels import Label, class_indices, class_names, classes_of, read_label
from dynbench.workloads.datasets.lines import is_unicode, quoted

ODD_LINE = "The lines before it have what is missing: correct this line, or leave it out."
SHOWN_COLUMNS = 8
USUAL_NAMES = {
    "text_column": ("sentence", "text", "review", "content", "body", "comment", "document", "tweet"),
    "label_column": ("label", "labels", "sentiment", "class", "category", "target", "rating", "stars", "polarity"),
}
"""What files call the columns of either setting, in lower case."""
NO_HEADER = "The first line must name the columns, like sentence and label; this one holds a number."


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
        if not isinstance(text, str):
            kind = "null" if text is None else type(text).__name__
            raise DataError(f"{where}: {text_column!r} is {kind}; expected a string")
        if not is_unicode(text):
            raise DataError(f"{where}: {text_column!r} holds half a surrogate pair; expected Unicode text")
        self.labels.append(read_label(where, label))
        self.texts.append(text)
        self.lines.append(line)


Parse = Callable[[Path, str, Workload], FileRows]
"""Reads one file: `parse(path, key, settings)`, the key that named it for messages. At least one sample."""


def load_files(settings: Workload, parse: Parse) -> Splits:
    """The splits of `data_path` and `eval_path`, with the classes of the training file.

    Raises:
        DataError: a file that cannot be used.
    """
    files = options_of(settings, TextFileOptions)
    assert files.data_path is not None, "config/rules.py"
    train = parse(Path(files.data_path).expanduser(), "workload.data_path", settings)
    classes = classes_of(train.labels, train.where)
    evaluation = None
    if files.eval_path is not None:
        rows = parse(Path(files.eval_path).expanduser(), "workload.eval_path", settings)
        evaluation = _split(rows, classes, train.path)
    return Splits(_split(train, classes, train.path), evaluation)


def _split(rows: FileRows, classes: Sequence[Label], source: Path) -> TextSplit:
    labels = class_indices(rows.labels, rows.where, classes, str(source))
    return TextSplit(rows.texts, labels, str(rows.path), class_names(classes))


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
    shown = ", ".join(quoted(name) for name in found[:SHOWN_COLUMNS]) + (", …" if len(found) > SHOWN_COLUMNS else "")
    said = f"{where}: no column {asked!r} (workload.text_column); found {shown or 'none'}"
    raise DataError(said, ODD_LINE if before else _meant({"text_column": asked}, found))


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
    missing = {key: column for key, column in asked.items() if column not in found}
    if not missing:
        return
    said = " and ".join(f"no column {column!r} (workload.{key})" for key, column in missing.items())
    shown = ", ".join(quoted(name) for name in found[:SHOWN_COLUMNS]) + (", …" if len(found) > SHOWN_COLUMNS else "")
    raise DataError(f"{where}: {said}; found {shown or 'none'}", advice or _meant(missing, found))


def _meant(missing: Mapping[str, str], found: Sequence[str]) -> str:
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


def table_rows(
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
