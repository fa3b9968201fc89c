"""The lengths that a run of the user's own code trained on, kept in its folder: nobody else can know them.

Reading a run must never run code that its folder names.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynbench.errors import RecordError
from dynbench.runs.run import Run

LENGTHS_FILE = "lengths.npz"
"""Beside the rows of the ranks."""


@dataclass(frozen=True)
class KeptLengths:
    """What plans are made from.

    Args:
        lengths: tokens of every training sample, shape [N].
        positions: longest padded sample that the model takes, tokens; None for any.
    """

    lengths: NDArray[np.int64]
    positions: int | None


def write_lengths(run: Run, lengths: NDArray[np.int64], positions: int | None) -> None:
    """Keep the lengths of the training samples."""
    np.savez_compressed(run.ranks_dir / LENGTHS_FILE, lengths=lengths, positions=np.int64(positions or 0))


def read_lengths(run: Run) -> KeptLengths:
    """The lengths that a run kept.

    Raises:
        RecordError: it kept none, or the file cannot be read.
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
    return KeptLengths(lengths, positions or None)
