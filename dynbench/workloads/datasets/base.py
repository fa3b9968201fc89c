"""What a dataset hands over, the classes of its labels, and how text files are read and quoted in messages.

A dataset gives texts still to be tokenised, token ids, lengths to generate token ids for, or images. The classes are
the different labels of the training file in order: integers by value, words by their characters. Every rank and every
later use of the same file comes to the same classes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dynbench.errors import DataError
from dynbench.plugins import DATASETS, WORKLOADS
from dynbench.workloads.data import IntArray, TokenisedData, digest_of

if TYPE_CHECKING:  # a plug-in may import this while settings are still being defined
    from PIL import Image

    from dynbench.config.schema import Workload


@dataclass(frozen=True)
class TextSplit:
    """Labelled texts in the order of their source.

    Args:
        texts: N texts.
        labels: class of each text, counted from 0, int64 [N].
        source: where they come from, for messages and records.
        classes: what the source calls each class; empty where it counts them from 0.
    """

    texts: Sequence[str]
    labels: IntArray
    source: str
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def read(self) -> Iterator[str]:
        """The texts in order, as those of a `CorpusSplit` are read."""
        return iter(self.texts)

    @property
    def state(self) -> Sequence[str]:
        """Source and digest of the texts."""
        texts = (f"{len(text)} {text}".encode("utf-8", "surrogatepass") for text in self.texts)
        return (f"{self.source} {digest_of(*texts)}",)


@dataclass(frozen=True)
class TokenSplit:
    """Samples that are token ids from the start, in BERT's numbering of the special tokens.

    Args:
        data: the samples, not yet truncated.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        source: where they come from, for messages and records.
    """

    data: TokenisedData
    vocab_size: int
    pad_id: int
    source: str

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class LengthSplit:
    """Samples of which only the lengths are known; tokens are generated once it is known how many are kept.

    Args:
        lengths: tokens of each sample, not yet truncated, int64 [N].
        generate: samples of the lengths given, tokens and labels depending on nothing but each sample's index.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        source: where the lengths come from, for messages and records.
        second: a second number of each sample, int64 [N]; None where there is none.
    """

    lengths: IntArray
    generate: Callable[[IntArray], TokenisedData]
    vocab_size: int
    pad_id: int
    source: str
    second: IntArray | None = None

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class CorpusSplit:
    """Texts without labels, as many as a disk holds: they are read anew as often as they are needed.

    Args:
        read: the texts from the first one on, in the order of their source; raises what is wrong with it on the way.
        source: where they come from, for messages and records.
        state: what changes whenever the source does, at hand without reading it; ready for JSON.
        texts: their number, where that is known; else they are read to be counted.
    """

    read: Callable[[], Iterator[str]]
    source: str
    state: Sequence[int | str]
    texts: int | None = None

    @cached_property
    def _counted(self) -> int:
        return sum(1 for _ in self.read())

    def __len__(self) -> int:
        return self._counted if self.texts is None else self.texts


@dataclass(frozen=True)
class ImageSplit:
    """Labelled images in the order of their source.

    Args:
        images: image `i`, for i below N; raises DataError where it cannot be read.
        labels: class of each image, counted from 0, int64 [N].
        source: where they come from, for messages and records.
        digest: of what the images are: of files, of their names and sizes, and of what is in them once they were read.
        classes: what the source calls each class; empty where it counts them from 0.
        files: their paths, where each is a file.
    """

    images: Callable[[int], Image.Image]
    labels: IntArray
    source: str
    digest: str
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


Split = TextSplit | TokenSplit | LengthSplit | CorpusSplit | ImageSplit


@dataclass(frozen=True)
class Splits:
    """Training samples, and evaluation samples where the source has its own."""

    train: Split
    eval: Split | None = None


Label = int | str
"""An integer, or a word."""
Where = Callable[[int], str]

MOST_CLASSES = 1000
LONGEST_LABEL = 100
"""Characters of a word; longer ones are texts."""
EXPECTED = "expected an integer or a word for its class"
NO_CLASS = (
    "It looks like a text, an id or a regression target: name the column of classes with --label-column, or put such "
    "targets into bins first."
)

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_label(where: str, value: object) -> Label:
    """The label that a value means: `1`, `"1"` and `1.0` are the same integer, `true` is a word.

    Args:
        where: file and line, for messages.
        value: a field of a table, or a value of JSON.

    Raises:
        DataError: no label, a fraction, a list or an object, or a word that is longer than any name of a class.
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str() if value.strip():
            text = value.strip()
            if _INTEGER.fullmatch(text):
                return int(text.partition(".")[0])
            if is_unicode(text) and len(text) <= LONGEST_LABEL and not _NUMBER.fullmatch(text):
                return text
        case None | str():
            raise DataError(f"{where}: no label; {EXPECTED}", "Leave out the samples without a label.")
    raise DataError(f"{where}: label {excerpt(value)}; {EXPECTED}", NO_CLASS)


def classes_of(labels: Sequence[Label], where: Where) -> list[Label]:
    """The different labels in order.

    Args:
        labels: of the training samples, at least one.
        where: file and line of each, by position.

    Raises:
        DataError: integers and words side by side, or more labels than there are classes of anything.
    """
    found: set[Label] = set()
    for index, label in enumerate(labels):
        if isinstance(label, str) != isinstance(labels[0], str):
            raise DataError(
                f"{where(index)}: label {excerpt(label)} beside {excerpt(labels[0])} of {where(0)}; expected integers "
                "only, or words only"
            )
        found.add(label)
        if len(found) > MOST_CLASSES:
            many = f"makes {len(found):,} different ones; expected at most {MOST_CLASSES:,} classes"
            raise DataError(f"{where(index)}: label {excerpt(label)} {many}", NO_CLASS)
    return sorted(found, key=lambda label: (0, label) if isinstance(label, str) else (label, ""))


def class_indices(labels: Sequence[Label], where: Where, classes: Sequence[Label], source: str) -> IntArray:
    """The class of each label, counted from 0, int64 [N].

    Args:
        labels: of the samples of one file.
        where: file and line of each, by position.
        classes: the labels of the training file, in order.
        source: that file.

    Raises:
        DataError: a label that the training file does not have.
    """
    index = {label: position for position, label in enumerate(classes)}
    for position, label in enumerate(labels):
        if label not in index:
            raise DataError(f"{where(position)}: label {excerpt(label)}; expected one of {source}: {listed(classes)}")
    return np.fromiter((index[label] for label in labels), np.int64, len(labels))


def class_names(classes: Sequence[Label]) -> tuple[str, ...]:
    """The labels by class as words; empty where each is its class's number already."""
    return () if list(classes) == list(range(len(classes))) else tuple(str(label) for label in classes)


def numbered_as(splits: Splits, names: Sequence[str], model: str) -> Splits:
    """The splits with the classes of a model: those of texts and images get its numbers, by their names.

    An integer without such a name is a number of the model's, unless all its names are integers themselves.

    Args:
        splits: as the data set numbers its classes.
        names: the model's classes in order.
        model: its name, for messages.

    Raises:
        DataError: a sample of a class that the model does not tell.
    """
    numbers = {name: number for number, name in enumerate(names)}
    if not all(map(_INTEGER.fullmatch, names)):
        numbers = {str(number): number for number in range(len(names))} | numbers

    def numbered(split: Split) -> Split:
        if not isinstance(split, TextSplit | ImageSplit):
            return split
        own = split.classes or tuple(map(str, range(int(split.labels.max()) + 1)))
        unknown = [own[label] for label in np.unique(split.labels) if own[label] not in numbers]
        if unknown:
            raise DataError(
                f"{split.source}: class {excerpt(unknown[0])}; expected one of {model}: {listed(names)}",
                "Name data of the classes that it was trained for (--dataset, --data-path).",
            )
        of_model = np.array([numbers.get(name, -1) for name in own], dtype=np.int64)
        return replace(split, labels=of_model[split.labels], classes=tuple(names))

    return Splits(numbered(splits.train), None if splits.eval is None else numbered(splits.eval))


def has_classes(settings: Workload) -> bool:
    """Whether the workload learns labels; without, files are read for their texts alone."""
    return settings.runs_own_code or WORKLOADS[settings.name].classes


def load_dataset(settings: Workload, classes: Sequence[str] = ()) -> Splits:
    """The samples of `workload.dataset`.

    Args:
        settings: the configuration's `workload` section.
        classes: those of a trained model in order, whose numbers the samples get by name; none keeps the data's own.

    Raises:
        DataError: a file that cannot be used, or a class that the model does not tell.
        HubError: hub data that are neither cached nor reachable.
    """
    splits: Splits = DATASETS.find(settings.dataset).load()(settings)
    return numbered_as(splits, classes, settings.model) if classes else splits


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
