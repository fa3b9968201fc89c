"""Texts without labels, read from files as a stream: what the formats share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions, TextFileOptions
from dynbench.workloads.datasets.base import CorpusSplit, Splits
from dynbench.workloads.datasets.lines import is_unicode

Read = Callable[[Path, Workload], Iterator[str]]
"""The texts of one file, in its order; raises `DataError` and `OSError` on the way."""

TITLE = "title"
"""Key or column of what stands above a text, on a line of its own."""


def has_classes(settings: Workload) -> bool:
    """Whether the workload learns labels; without, files are read for their texts alone."""
    return settings.runs_own_code or WORKLOADS[settings.name].classes


def stream_files(settings: Workload, read: Read) -> Splits:
    """The texts of `data_path` and `eval_path`, still to be read.

    Raises:
        DataError: a file that is not there.
    """
    files = options_of(settings, FileOptions)
    assert files.data_path is not None, "config/rules.py"
    train = stream_file(Path(files.data_path).expanduser(), "workload.data_path", settings, read)
    if files.eval_path is None:
        return Splits(train)
    return Splits(train, stream_file(Path(files.eval_path).expanduser(), "workload.eval_path", settings, read))


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
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{key}: {path}: {error.strerror}") from error
    column = options_of(settings, TextFileOptions).text_column
    default = TextFileOptions.model_fields["text_column"].default
    place = f"{path.resolve()}{'' if column == default else f' {column}'}"
    state = (place, found.st_size, found.st_mtime_ns)
    return CorpusSplit(partial(_texts, path, key, settings, read), str(path), state)


def _texts(path: Path, key: str, settings: Workload, read: Read) -> Iterator[str]:
    try:
        yield from read(path, settings)
    except OSError as error:
        raise DataError(f"{key}: {path}: {error.strerror or error}") from error


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
    for key, value in ((text_key, text), (TITLE, "" if title is None else title)):
        if not isinstance(value, str):
            kind = "null" if value is None else type(value).__name__
            raise DataError(f"{where}: {key!r} is {kind}; expected a string")
        if not is_unicode(value):
            raise DataError(f"{where}: {key!r} holds half a surrogate pair; expected Unicode text")
    return str(text) if title is None else f"{title}\n{text}"
