"""Lengths of samples: distributions that ship with dynbench, the padded length of a batch, and trace files.

The distributions are facts about public corpora, without their text: WordPiece tokens (bert-base-uncased), with the two
special tokens, untruncated, over the training split.

A trace file holds one length per sample: Parquet, CSV or JSONL with a column `length` (or one column), text with a
number on each line, or a one-dimensional .npy array. A second number per sample is read alike, from another column. A
mistake is reported with file, row and value.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynbench.errors import DataError, first_line

if TYPE_CHECKING:
    import polars as pl

IntArray = NDArray[np.int64]


SHIPPED: dict[str, IntArray] = {
    name: np.repeat(np.arange(entry["shortest"], entry["shortest"] + len(entry["counts"])), entry["counts"])
    for name, entry in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}
"""Corpus to the lengths of its samples, ascending, tokens: sst2, GLUE SST-2, 67,349 sentences; gsm8k, GSM8K, 7,473
questions with their answers."""


def padded_lengths(lengths: ArrayLike, multiple: int, positions: int | None) -> NDArray[np.int64]:
    """Lengths rounded up to a multiple, but never above what the model takes, tokens; same shape.

    Args:
        lengths: of the longest sample of each batch, tokens, at most `positions`.
        multiple: `workload.pad_to_multiple_of`, tokens.
        positions: longest padded sample that the model takes, tokens; None for any.
    """
    rounded = -(-np.asarray(lengths, dtype=np.int64) // multiple) * multiple
    return rounded if positions is None else np.minimum(rounded, positions)


def padded_width(lengths: NDArray[np.int64], multiple: int, positions: int | None) -> int:
    """Length to which one batch of these samples is padded, tokens; arguments as `padded_lengths`."""
    return int(padded_lengths(lengths.max(), multiple, positions))


LONGEST_LENGTH = 2**31 - 1
"""Lengths above this are taken for a mistake, tokens."""
_COLUMN = "length"


def encode_trace(lengths: IntArray, path: Path) -> bytes:
    """What a trace file of that name holds: the lengths in their order and nothing else.

    Raises:
        DataError: unknown suffix.
    """
    suffix = trace_suffix(path)
    content = io.BytesIO()
    if suffix == ".npy":
        np.save(content, lengths)
        return content.getvalue()
    import polars as pl

    frame = pl.DataFrame({_COLUMN: lengths})
    if suffix == ".parquet":
        frame.write_parquet(content)
    elif suffix == ".jsonl":
        frame.write_ndjson(content)
    else:
        frame.write_csv(content, include_header=suffix == ".csv")
    return content.getvalue()


def trace_suffix(path: Path) -> str:
    """The key of `READERS` that a file's name ends in.

    Raises:
        DataError: none of them.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise DataError(f"{path}: unknown trace format {path.suffix!r}", f"Known: {', '.join(READERS)}.")
    return suffix


def read_trace(path: Path, column: str | None = None) -> IntArray:
    """The lengths of a trace file in its order, tokens, shape [N], at least one.

    Args:
        path: the file; its name ends in one of `READERS`.
        column: column that holds the lengths; None takes `length`, or the only column.

    Raises:
        DataError: it cannot be read, or a length is missing, not a whole number or not positive; names file, row
            (counted from 1, header left out) and value.
    """
    return _read(path, Wanted(column))


def read_second(path: Path, column: str) -> IntArray:
    """A second number of every sample in the same order, from 0 on, shape [N]; arguments and errors as `read_trace`."""
    return _read(path, Wanted(column, least=0, what=column))


@dataclass(frozen=True)
class Wanted:
    """A column of a trace file.

    Args:
        column: its name; None takes `length`, or the only column.
        least: of its values.
        what: what messages call them.
    """

    column: str | None = None
    least: int = 1
    what: str = "length"

    @property
    def hint(self) -> str:
        """What helps where there is no such column."""
        if self.least:
            return "Name the column of the lengths: solve --column, else --length-column."
        return "Name another column of the file with --second-column, or leave it out."


def _read(path: Path, wanted: Wanted) -> IntArray:
    values = READERS[trace_suffix(path)](path, wanted)
    if not len(values):
        raise DataError(f"{path}: the trace is empty", "A trace holds one length per sample.")
    return values


def check_lengths(values: NDArray[np.generic], source: str, wanted: Wanted) -> IntArray:
    """Values as int64, shape [N], or an error that names source, row and value.

    Raises:
        DataError: not one-dimensional numbers, or a value that is missing, not whole, too small or absurdly large.
    """
    if values.ndim != 1:
        raise DataError(f"{source}: shape {values.shape} where one length per sample is expected", "Flatten it.")
    if values.dtype == np.bool_ or not np.issubdtype(values.dtype, np.number) or np.iscomplexobj(values):
        raise DataError(f"{source}: {values.dtype} values where whole numbers are expected", "Store lengths in tokens.")
    numbers: NDArray[np.float64] | IntArray = (
        values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values.astype(np.float64)
    )
    with np.errstate(invalid="ignore"):
        good = (numbers >= wanted.least) & (numbers <= LONGEST_LENGTH) & (numbers == np.floor(numbers))
    if not good.all():
        row = int(np.argmin(good))
        raise _bad_row(source, row + 1, values[row].item(), wanted)
    return numbers.astype(np.int64)


def _bad_row(source: str, row: int, value: object, wanted: Wanted) -> DataError:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    missing = value is None or value == "" or value != value
    shown = "missing" if missing else repr(value)
    return DataError(
        f"{source}: row {row}: {wanted.what} {shown}, expected a whole number{' of tokens' * wanted.least} "
        f"from {wanted.least} to {LONGEST_LENGTH}",
        "Rows are counted from 1, a header left out. Correct or drop the row.",
    )


def _read_npy(path: Path, wanted: Wanted) -> IntArray:
    if not wanted.least:
        raise DataError(f"{path}: an array has no column {wanted.column!r}", "Store both columns as CSV or Parquet.")
    try:
        values = np.load(path, allow_pickle=False)
    except Exception as error:  # what numpy raises for files that hold none, or say that they hold more than fits
        raise DataError(f"{path}: not a readable .npy array of numbers", "Save it with numpy.save.") from error
    if not isinstance(values, np.ndarray):
        raise DataError(f"{path}: holds several arrays", "Save one array with numpy.save.")
    return check_lengths(values, str(path), wanted)


def _read_parquet(path: Path, wanted: Wanted) -> IntArray:
    import polars as pl

    try:
        frame = pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # polars panics at some damage
        raise DataError(f"{path}: not a readable parquet file ({first_line(error)})", "Check the file.") from error
    return _from_frame(frame, path, wanted)


def _read_csv(path: Path, wanted: Wanted) -> IntArray:
    import polars as pl

    try:
        with path.open("rb") as file:
            header = file.readline(65536).strip()
        # A file of bare numbers has no header to lose.
        bare = header.replace(b"-", b"").replace(b".", b"").isdigit()
        frame = pl.read_csv(path, infer_schema=False, has_header=not bare, glob=False)
    except pl.exceptions.NoDataError:
        raise DataError(f"{path}: the trace is empty", "A trace holds one length per sample.") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: not a readable CSV file ({first_line(error)})", "Check the file.") from error
    return _from_frame(frame, path, wanted)


def _read_jsonl(path: Path, wanted: Wanted) -> IntArray:
    """Objects with a key of the column's name, or bare numbers, one a line."""
    values: list[float] = []
    row, name = 0, wanted.column
    try:
        with path.open(encoding="utf-8") as lines:
            for row, line in enumerate(filter(str.strip, lines), 1):
                value = json.loads(line)
                if isinstance(value, dict):
                    name = name or _pick_column(list(value), path, wanted)
                    if name not in value:
                        raise DataError(f"{path}: row {row}: no field {name!r}; it has {', '.join(value)}", wanted.hint)
                    value = value[name]
                elif not wanted.least:
                    raise DataError(f"{path}: row {row}: no field {name!r} of a bare number", wanted.hint)
                if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LONGEST_LENGTH:
                    raise _bad_row(str(path), row, value, wanted)
                values.append(value)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable text file ({first_line(error)})", "Check the file.") from error
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number too long"
        raise DataError(f"{path}: row {row}: not JSON ({reason})", "One JSON object a line.") from error
    return check_lengths(np.asarray(values), str(path), wanted)


def _from_frame(frame: pl.DataFrame, path: Path, wanted: Wanted) -> IntArray:
    import polars as pl

    name = wanted.column or _pick_column(frame.columns, path, wanted)
    if name not in frame.columns:
        raise DataError(f"{path}: no column {name!r}; it has {', '.join(frame.columns)}", wanted.hint)
    values = frame[name]
    if values.dtype == pl.String:
        numbers = values.str.strip_chars().cast(pl.Float64, strict=False)
        unreadable = numbers.is_null()
    else:
        if not values.dtype.is_numeric():
            raise DataError(f"{path}: column {name!r} holds {values.dtype}, not whole numbers", "Store tokens.")
        numbers, unreadable = values, values.is_null()
    if unreadable.any():
        row = unreadable.arg_max() or 0
        raise _bad_row(str(path), row + 1, values[row], wanted)
    return check_lengths(numbers.to_numpy(), str(path), wanted)


def _pick_column(columns: Sequence[str], path: Path, wanted: Wanted) -> str:
    if _COLUMN in columns:
        return _COLUMN
    if len(columns) == 1:
        return columns[0]
    raise DataError(f"{path}: no column {_COLUMN!r}; it has {', '.join(columns)}", wanted.hint)


READERS: dict[str, Callable[[Path, Wanted], IntArray]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".txt": _read_csv,
    ".npy": _read_npy,
}
"""File suffix to reader(path, wanted)."""
