"""Labels as files write them, and the classes that they mean.

The classes are the different labels of the training file in order: integers by value, words by their characters. Every
rank and every later use of the same file comes to the same classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dynbench.errors import DataError
from dynbench.workloads.data import IntArray
from dynbench.workloads.datasets.base import ImageSplit, Split, Splits, TextSplit
from dynbench.workloads.datasets.lines import is_unicode, quoted

Label = int | str
"""An integer, or a word."""
Where = Callable[[int], str]

MOST_CLASSES = 1000
SHOWN_CLASSES = 8
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
    raise DataError(f"{where}: label {quoted(value)}; {EXPECTED}", NO_CLASS)


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
                f"{where(index)}: label {quoted(label)} beside {quoted(labels[0])} of {where(0)}; expected integers "
                "only, or words only"
            )
        found.add(label)
        if len(found) > MOST_CLASSES:
            many = f"makes {len(found):,} different ones; expected at most {MOST_CLASSES:,} classes"
            raise DataError(f"{where(index)}: label {quoted(label)} {many}", NO_CLASS)
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
            shown = ", ".join(quoted(known) for known in classes[:SHOWN_CLASSES])
            more = ", …" if len(classes) > SHOWN_CLASSES else ""
            raise DataError(f"{where(position)}: label {quoted(label)}; expected one of {source}: {shown}{more}")
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
            shown = ", ".join(map(quoted, names[:SHOWN_CLASSES])) + (", …" if len(names) > SHOWN_CLASSES else "")
            raise DataError(
                f"{split.source}: class {quoted(unknown[0])}; expected one of {model}: {shown}",
                "Name data of the classes that it was trained for (--dataset, --data-path).",
            )
        of_model = np.array([numbers.get(name, -1) for name in own], dtype=np.int64)
        return replace(split, labels=of_model[split.labels], classes=tuple(names))

    return Splits(numbered(splits.train), None if splits.eval is None else numbered(splits.eval))
