"""What a rank writes: a row for every step, which `train` and `analyze` share, the times of calls, its lengths.

Rows say how long a step's calls took, `calls` files when each was under way, which separates waiting from transfer.
Times are wall-clock milliseconds, memory is MB (1e6 bytes). `ranks/columns.json` says of each column beyond those of
every run what it holds; runs that declare nothing have no such file.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dynbench.errors import RecordError
from dynbench.runs.atomic import load_json, write_json

if TYPE_CHECKING:
    from dynbench.runs.run import Run

_log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
HASH_STEP = np.uint64(0x9E3779B97F4A7C15)
"""Of splitmix64: what its states are apart."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One rank's view of one optimizer step; field order is column order."""

    step: int
    """Optimizer step, counted from 0, warm-up included."""
    rank: int
    """The rank, from 0."""
    warmup: int
    """1 while warming up, else 0."""
    policy: str
    """Name of the policy."""
    local_batch: int
    """Samples of this rank in this step."""
    micro_batches: int
    """Micro-batches of this rank in this step."""
    max_seq_len_in_batch: int
    """Longest padded length over the rank's micro-batches, of packed rows the longest sample; tokens."""
    real_tokens: int
    """Tokens of this rank's samples without padding."""
    padded_tokens: int
    """Sum over the rank's micro-batches of samples times padded length; of packed rows their real tokens."""
    real_tokens2: int
    """Sum over this rank's samples of the length squared; tokens squared."""
    padded_tokens2: int
    """Sum over the rank's micro-batches of samples times the padded length squared, of packed rows as real_tokens2;
    tokens squared."""
    plan_ms: float
    """Making the plan."""
    data_ms: float
    """Making the batch from it."""
    forward_ms: float
    """Forward passes, the loss included."""
    backward_ms: float
    """Ends when the rank's last gradient is ready."""
    sync_ms: float
    """From there until all gradients are synchronised: transfer plus wait."""
    optimizer_ms: float
    """The optimizer's step."""
    compute_ms: float
    """forward_ms + backward_ms."""
    step_time_ms: float
    """The whole step: plan, data, compute, sync, optimizer and what is between them."""
    peak_mem_mb: float | None
    """Largest memory in the step: allocated on a GPU, resident on a CPU; empty where it cannot be told apart from that
    of other arms in the process."""
    reserved_mem_mb: float | None
    """Memory that the allocator holds on a GPU; resident at the step's end on a CPU; empty likewise."""
    loss: float
    """Mean loss over this rank's samples, each counting its weight; 0 where they weigh nothing."""
    work_hash: int
    """This rank's part of the step's hash, see `work_hash`; unsigned 64 bit."""
    skipped: int
    """1 when the loss scaler skipped the optimizer step, else 0."""
    weight: float
    """What this rank's samples count in the loss together: their number, or their target tokens."""
    layout: str = "padded"
    """Of the micro-batches: padded, or packed."""


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(StepRow))
_row_values = attrgetter(*COLUMNS)
LATER = ("real_tokens2", "padded_tokens2", "weight", "layout")
"""Columns that rows of earlier versions lack."""
MAY_BE_EMPTY = ("peak_mem_mb", "reserved_mem_mb")
"""Columns without which a row is whole."""


def work_hash(sample_ids: np.ndarray, lengths: np.ndarray) -> int:
    """Sum over samples of hash(id, length), modulo 2**64: the same whoever computes them, in any order.

    Args:
        sample_ids: shape [n], integers.
        lengths: shape [n], tokens after truncation, before padding.
    """
    with np.errstate(over="ignore"):
        bits = sample_ids.astype(np.uint64) * HASH_STEP + lengths.astype(np.uint64)
        return int(mixed(bits).sum(dtype=np.uint64))


def mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, section 4); every bit depends on all."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


PROFILE_SCHEMA_VERSION = 1
COMMUNICATION, COMPUTE = "communication", "compute"
"""Operations of a row that are none of the wire: all of these together, and what computes."""
BY_ITSELF = "past the wire"
"""Communication that no operation of the wire began."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """An operation in a phase, per step."""

    phase: str
    """forward, backward (up to the gradients' meeting), optimizer, or other."""
    operation: str
    """Of the wire; `communication` for all of them, `past the wire` for what it did not begin, or `compute`."""
    calls: float
    """How often it was under way."""
    ms: float
    """Time in which it was, overlapping ones once."""
    share: float
    """Of the step."""


@dataclass(frozen=True, slots=True)
class RankProfile:
    """A rank's profiled steps."""

    rank: int
    """The rank."""
    first_step: int
    """The first one profiled."""
    steps: int
    """Their number."""
    step_ms: float
    """How long a step was, profiled."""
    rows: list[ProfileRow]
    """What its time went to."""


# Further columns ------------------------------------------------------------------------------------------------------

COLUMNS_FILE = "columns.json"
COLUMNS_SCHEMA_VERSION = 1
ColumnType = Literal["integer", "number", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    type: ColumnType
    unit: str
    """Empty for counts and names."""
    description: str


TURN = Column(
    "turn",
    "integer",
    "",
    "Number of the turn within the launch: steps of one turn follow each other without a break of the clock, and where "
    "several arms share a launch, the turn before belongs to the arm that ran before this one.",
)
"""Of every run."""

COMM_COLUMNS: tuple[Column, ...] = (
    Column(
        "comm_ms",
        "number",
        "ms",
        "Time of the step in which at least one collective of the strategy was under way, from its call on this rank "
        "to its completion, waiting for other ranks included.",
    ),
    Column("comm_sum_ms", "number", "ms", "Sum over collectives of the same; those that overlap count each."),
    Column(
        "hidden_comm_ms", "number", "ms", "What of comm_ms went on beside other work, not in the time to synchronise."
    ),
    Column("collectives", "integer", "", "Collectives, sends and receives of the strategy that were completed."),
    Column("sync_forward_ms", "number", "ms", "What of sync_ms the forward passes waited, which do not have it."),
    Column("sync_backward_ms", "number", "ms", "What of sync_ms the backward passes waited, which do not have it."),
    Column("sync_optimizer_ms", "number", "ms", "What of sync_ms the optimizer's step waited, which does not have it."),
    Column("bytes_raw", "integer", "B", "What the strategy gave this rank's wire, before anything was compressed."),
    Column("bytes_wire", "integer", "B", "What this rank sent, from the sizes sent and each collective's formula."),
    Column(
        *("gradient_bytes_raw", "integer", "B"),
        "What of gradients, or of the changes of steps apart, this rank would have sent as they are; by the formulas.",
    ),
    Column("gradient_bytes_wire", "integer", "B", "What it sent of them."),
    Column("bytes_uncompressed", "integer", "B", "What this rank would have sent, had nothing been compressed."),
    Column(
        "bytes_sent",
        "integer",
        "B",
        "What this process sent over its TCP connections, as the kernel counts it; empty where that is not known.",
    ),
)
"""Of every run on real ranks."""

REPEATED = Column(
    "repeated_micro_batches",
    "integer",
    "",
    "Micro-batches that this rank ran again with weight 0, because every forward pass talks to all ranks.",
)
"""Of strategies whose every forward pass talks."""


GRAD_NORM = Column(
    "grad_norm",
    "number",
    "",
    "2-norm of the whole mean gradient, over all its parameters and shards, before it was clipped.",
)
CLIPPED = Column("clipped", "integer", "", "1 when that was above train.max_grad_norm, and scaled down to it, else 0.")
"""With these, of runs with a `train.max_grad_norm`."""


CORRECT = Column(
    "correct", "integer", "samples", "Training samples of this rank that its model told right in the step."
)
"""Of workloads that count them while they train."""


COMPRESSES = Column("compresses", "integer", "", "0 in steps that compress.start_step leaves as they are, else 1.")
"""Of runs that compress; those steps count in no ratio."""
GRAD_REL_ERROR = Column(
    "grad_rel_error",
    "number",
    "",
    "2-norm of the difference of the mean gradient from the uncompressed one, over its norm, of all shards together; "
    "of steps in which it was measured (compress.error_every).",
)
"""Of the same; where it was measured more was sent than is counted."""
GRAD_MAX_ERROR = Column(
    "grad_rel_error_max",
    "number",
    "",
    "Largest difference of an element of it, over the largest element of the uncompressed one; likewise.",
)


def write_columns(folder: Path, columns: Sequence[Column]) -> None:
    """Declare the columns of the rank files in `folder`.

    Raises:
        ValueError: a name twice, or one of the columns of every run.
    """
    names = [*COLUMNS, *(column.name for column in columns)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"columns declared twice: {', '.join(sorted(twice))}")
    write_json(folder / COLUMNS_FILE, {"schema_version": COLUMNS_SCHEMA_VERSION, "columns": columns})


def read_columns(folder: Path) -> dict[str, Column]:
    """The declared columns by name; empty where none are, and where the file cannot be read, which is warned of."""
    path = folder / COLUMNS_FILE
    try:
        content = load_json(path)
        return {entry["name"]: Column(**{key: entry[key] for key in Column.__slots__}) for entry in content["columns"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be read (%s); its columns are taken as numbers without a unit", path, error)
        return {}


# Files of rows --------------------------------------------------------------------------------------------------------

MOST_CALLS = 500_000
"""Kept of a rank, about 30 MB; the steps after that have none."""
EVERYONE = -1
"""The peer of what all ranks take part in."""


class LineFile:
    """Appends lines to a CSV file that opens with a header.

    What is appended together is one `os.write`, so a killed process leaves whole lines, and at most one torn line when
    the disk is full.

    Args:
        path: the file; lines are appended when it exists.
        columns: of the header.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        header = _lines([columns])
        if path.exists() and path.stat().st_size > 0:
            with path.open("rb") as file:
                present = file.readline()
            if present != header:
                raise ValueError(f"{path} has other columns: {present.decode(errors='replace').strip()}")
            header = b""
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._append(header)

    def append(self, *rows: Iterable[object]) -> None:
        """Append a line for each row.

        Raises:
            OSError: the disk is full.
        """
        self._append(_lines(rows))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            error.filename = str(self._path)
            raise


class RowWriter(LineFile):
    """Appends rows to the file of a rank.

    Args:
        path: the file; rows are appended when it exists.
        extra: columns after those of `StepRow`, in order.
        also: called with every row and its extra columns, once it is written.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(
        self,
        path: Path,
        extra: Sequence[str] = (),
        also: Callable[[StepRow, Mapping[str, object]], None] = lambda row, extra: None,
    ) -> None:
        self.columns = (*COLUMNS, *extra)
        self._extra = tuple(extra)
        self._also = also
        super().__init__(path, self.columns)

    def write(self, row: StepRow, extra: Mapping[str, object] | None = None) -> None:
        """Append one row.

        Args:
            row: the step.
            extra: a value for each extra column.

        Raises:
            KeyError: an extra column has no value.
            OSError: the disk is full.
        """
        values = extra or {}
        self.append((*_row_values(row), *(values[column] for column in self._extra)))
        self._also(row, values)


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation on one rank."""

    operation: str
    """all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send or receive."""
    peer: int
    """The other rank of a send or receive; -1 of what all ranks take part in."""
    number: int
    """Of the calls with this peer in this direction, or of those that all ranks take part in, from 0; the same on all
    ranks that take part."""
    bytes_wire: int
    """Sent by this rank, by the operation's formula."""
    start_ns: int
    """When it was called, on this rank's clock."""
    end_ns: int
    """When it was complete."""


CALL_COLUMNS = ("step", *(field.name for field in fields(Call)))
_call_values = attrgetter(*CALL_COLUMNS[1:])


class CallWriter(LineFile):
    """Appends the calls of each step, as long as they are not too many.

    Args:
        path: the file.
        most: calls that are written; a step whose calls would be more, and every later one, is left out.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(self, path: Path, most: int = MOST_CALLS) -> None:
        super().__init__(path, CALL_COLUMNS)
        self._left = most

    def write(self, step: int, calls: Sequence[Call]) -> None:
        """Keep the calls that were completed in a step.

        Raises:
            OSError: the disk is full.
        """
        self._left = self._left - len(calls) if len(calls) <= self._left else -1
        if calls and self._left >= 0:
            self.append(*((step, *_call_values(call)) for call in calls))


LENGTHS_FILE = "lengths.npz"
"""Beside the rows of the ranks."""


def write_lengths(run: Run, lengths: NDArray[np.int64], positions: int | None) -> None:
    """Keep the lengths of the training samples."""
    np.savez_compressed(run.ranks_dir / LENGTHS_FILE, lengths=lengths, positions=np.int64(positions or 0))


def read_lengths(run: Run) -> tuple[NDArray[np.int64], int | None]:
    """The lengths that a run trained on, tokens, shape [N]; and the longest padded sample of its model, None for any.

    Raises:
        RecordError: it has none, or the file cannot be read.
    """
    path = run.ranks_dir / LENGTHS_FILE
    try:
        with np.load(path, allow_pickle=False) as arrays:
            lengths, positions = np.asarray(arrays["lengths"], dtype=np.int64), int(arrays["positions"])
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it ended before its data was known" if isinstance(error, FileNotFoundError) else str(error)
        raise RecordError(
            f"{path}: the lengths that {run.label} trained on cannot be read: {reason}",
            "Its workload's own code knows them: dynbench solve --workload NAME.",
        ) from None
    if lengths.ndim != 1 or not len(lengths) or lengths.min() < 1:
        raise RecordError(f"{path}: holds no lengths of at least one token", "Train again.")
    return lengths, positions or None
