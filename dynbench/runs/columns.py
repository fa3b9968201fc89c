"""Columns of a rank's rows beyond those of every run: what a strategy writes, declared with type and unit.

`ranks/columns.json` says of each what it holds; runs that declare nothing have no such file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynbench.runs.atomic import load_json, write_json
from dynbench.runs.records import COLUMNS

_log = logging.getLogger(__name__)
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
