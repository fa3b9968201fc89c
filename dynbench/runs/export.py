"""Exported runs: the folders of some runs in one file, for a comparison later and elsewhere.

The file is a zip of the run folders themselves, without logs, models, profilers' traces (which are large, and which no
analysis reads), figures and what an analysis makes anew. A digest of
them would be smaller, and would lack whatever the next check or figure reads; so the file is unpacked into a temporary
folder, and the usual code analyzes what lies there. Zip tells all names and sizes before anything is unpacked and has a
checksum for every file. Equal runs give equal bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from dynbench import __version__
from dynbench.errors import UsageError
from dynbench.runs.atomic import jsonable, replacing
from dynbench.runs.columns import COLUMNS_FILE
from dynbench.runs.probe_record import PROBE_FILE
from dynbench.runs.run import Run

EXPORT_FILE = "stored_runs.zip"
"""The export that a comparison keeps in its folder, where its runs come from one."""
MANIFEST = "export.json"
KIND = "dynbench export"
EXPORT_SCHEMA_VERSION = 4
RUNS = "runs"
"""Folder of the run folders within the file."""
RECORDS = ("run.json", "config.yaml", "env.json", "eval.csv", "speeds.csv", f"ranks/{COLUMNS_FILE}", PROBE_FILE)
"""Files of a run folder that are kept, with the rows, the calls and the profiles of its ranks."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16


@dataclass(frozen=True)
class Export:
    """An exported file, unpacked.

    Attributes:
        path: the file.
        root: the folder that holds the run folders; gone when the file is closed.
        runs: the training runs.
        arms: label to launches, the baseline first; None where the runs were named one by one.
        stored: the arm that was a stored baseline already where the file was made.
        question: what the exported comparison asks of its arms; None of runs that were named one by one.
        first_stage: launches of its first stage, where that said how many follow.
    """

    path: Path
    root: Path
    runs: tuple[Run, ...]
    arms: Mapping[str, Sequence[Run]] | None
    stored: str | None
    question: str | None = None
    first_stage: int | None = None

    def holds(self, run: Run) -> bool:
        """Whether a run folder is one of the unpacked."""
        return run.path.parent == self.root


def write_export(
    path: Path,
    runs: Mapping[str, Mapping[str, Path]],
    beside: Mapping[str, Mapping[str, Path]],
    arms: Mapping[str, Sequence[str]] | None,
    stored: str | None = None,
    question: str | None = None,
    first_stage: int | None = None,
) -> None:
    """Writes the file, which appears under its name only when whole.

    Args:
        path: where to.
        runs: run id to its files, by their name in a run folder.
        beside: the same of what the runs refer to: probes, and runs without communication that took turns with them.
        arms: label to run ids; None where the runs were named one by one.
        stored: the arm that is a stored baseline.
        question: what the comparison asks; None of runs.
        first_stage: launches of its first stage, where that said how many follow.

    Raises:
        UsageError: it cannot be written, or a file of a run cannot be read.
    """
    manifest = {
        "kind": KIND,
        "schema_version": EXPORT_SCHEMA_VERSION,
        "dynbench": __version__,
        "runs": list(runs),
        "arms": arms,
        "stored": stored,
        "question": question,
        "first_stage": first_stage,
    }
    try:
        with replacing(path) as target, ZipFile(target, "w") as file:
            file.writestr(_entry(MANIFEST), json.dumps(jsonable(manifest), indent=2) + "\n")
            for run_id, files in sorted({**beside, **runs}.items()):
                for name, source in sorted(files.items()):
                    _add(file, f"{RUNS}/{run_id}/{name}", source)
    except OSError as error:
        raise UsageError(
            f"{error.filename or path}: {error.strerror or error}", "Name a file in an existing folder with -o."
        ) from error


def record_files(run: Run) -> dict[str, Path]:
    """The files of a run folder that are kept, less the rows of its ranks: name within the folder to path."""
    return {name: path for name in RECORDS if (path := run.path / name).is_file()}


def _add(file: ZipFile, name: str, source: Path) -> None:
    entry = _entry(name)
    entry.file_size = source.stat().st_size
    with source.open("rb") as content, file.open(entry, "w") as target:
        shutil.copyfileobj(content, target)


def _entry(name: str) -> ZipInfo:
    """A member without a date, so that equal runs give equal bytes."""
    entry = ZipInfo(name, _EPOCH)
    entry.compress_type, entry.external_attr = ZIP_DEFLATED, _MODE
    return entry
