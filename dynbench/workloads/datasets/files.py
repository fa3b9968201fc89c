"""What the file formats share: which files, and what a label is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError, did_you_mean
from dynbench.workloads.datasets.base import Splits, TextSplit

MAX_LABEL = 65_535
"""Larger labels are taken for ids or hashes: the model would get one output for each."""


def load_files(settings: Workload, parse: Callable[[Path, str, Workload], TextSplit]) -> Splits:
    """The splits of `data_path` and `eval_path`, each read by `parse(path, key, settings)`.

    Raises:
        DataError: a file that cannot be used.
    """
    assert settings.data_path is not None, "config/rules.py"
    train = parse(Path(settings.data_path).expanduser(), "workload.data_path", settings)
    if settings.eval_path is None:
        return Splits(train)
    return Splits(train, parse(Path(settings.eval_path).expanduser(), "workload.eval_path", settings))


def missing_column(where: str, key: str, column: str, found: list[str]) -> DataError:
    """The error for a file without the column that `workload.<key>` names."""
    columns = ", ".join(repr(name) for name in found)
    option = "--" + key.replace("_", "-")
    near = did_you_mean(column, found)
    return DataError(
        f"{where}: no column {column!r} (workload.{key}); found {columns}", f"{near} Name it with {option}.".strip()
    )


def check_label(where: str, value: object) -> int:
    """The label itself, once it is known to be one.

    Raises:
        DataError: not an integer from 0 to `MAX_LABEL`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LABEL:
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        raise DataError(f"{where}: label {shown}; expected an integer from 0 to {MAX_LABEL}")
    return value
