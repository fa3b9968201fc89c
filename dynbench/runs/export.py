"""Runs in one file: packed and unpacked.

The file is a zip of the run folders themselves, without logs, models, profilers' traces (which are large, and which no
analysis reads), figures and what an analysis makes anew. A digest of
them would be smaller, and would lack whatever the next check or figure reads; so the file is unpacked into a temporary
folder, and the usual code analyzes what lies there. Zip tells all names and sizes before anything is unpacked and has a
checksum for every file. Equal runs give equal bytes.
"""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from dynbench import __version__
from dynbench.errors import RecordError, RunLookupError, UsageError
from dynbench.runs.atomic import check_version, replacing
from dynbench.runs.probe_record import PROBE_FILE
from dynbench.runs.records import COLUMNS_FILE
from dynbench.runs.run import Run, check_spelling

EXPORT_FILE = "stored_runs.zip"
"""The export that a comparison keeps in its folder, where its runs come from one."""
MANIFEST = "export.json"
KIND: Literal["dynbench export"] = "dynbench export"
EXPORT_SCHEMA_VERSION = 4
RUNS = "runs"
"""Folder of the run folders within the file."""
RECORDS = ("run.json", "config.yaml", "env.json", "eval.csv", "speeds.csv", f"ranks/{COLUMNS_FILE}", PROBE_FILE)
"""Files of a run folder that are kept, with the rows, the calls and the profiles of its ranks."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
MOST_FILES = 100_000
MOST_BYTES = 4_000_000_000
MOST_RATIO = 200
"""Unpacked over packed bytes; rows of numbers pack to a third, and nothing that a run writes to a hundredth."""
MOST_RECORD_BYTES = 16_000_000
"""Of a file that is parsed as a whole: everything but the rows of ranks."""
HINT = "Make it again where the runs are: dynbench runs export REF -o FILE."
_FOLDER = r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,199}"
_OF_RANKS = r"ranks/(?:rank|calls)_\d{1,9}\.csv|profiler/profile_\d{1,9}\.json"
_MEMBER = re.compile(rf"{RUNS}/{_FOLDER}/(?:{'|'.join(map(re.escape, RECORDS))}|{_OF_RANKS})")
_BROKEN = (BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeError, ValueError, zlib.error)
"""What reading a zip raises where it is torn, changed, encrypted or packed in another way."""


class Manifest(BaseModel):
    """What the file says of itself."""

    model_config = ConfigDict(strict=True)

    kind: Literal["dynbench export"] = KIND
    schema_version: int | None = EXPORT_SCHEMA_VERSION
    dynbench: str = __version__
    runs: list[str]
    """Ids of the training runs."""
    arms: dict[str, list[str]] | None
    """Label to run ids, the baseline first; None where the runs were named one by one."""
    stored: str | None
    """The arm that was a stored baseline already where the file was made."""
    question: str | None = None
    """What the exported comparison asks of its arms; None of runs that were named one by one."""
    first_stage: int | None = None
    """Launches of its first stage, where that said how many follow."""


@dataclass(frozen=True)
class Export:
    """An exported file, unpacked.

    Attributes:
        path: the file.
        root: the folder that holds the run folders; gone when the file is closed.
        runs: the training runs.
        arms: label to launches, the baseline first; None where the runs were named one by one.
        manifest: what the file says of itself.
    """

    path: Path
    root: Path
    runs: tuple[Run, ...]
    arms: Mapping[str, Sequence[Run]] | None
    manifest: Manifest

    def holds(self, run: Run) -> bool:
        """Whether a run folder is one of the unpacked."""
        return run.path.parent == self.root


def write_export(path: Path, manifest: Manifest, runs: Mapping[str, Mapping[str, Path]]) -> None:
    """Writes the file, which appears under its name only when whole.

    Args:
        path: where to.
        manifest: what it says of itself.
        runs: run id to its files, by their name in a run folder; those of the manifest, and what these refer to:
            probes, and runs without communication that took turns with them.

    Raises:
        UsageError: it cannot be written, or a file of a run cannot be read.
    """
    try:
        with replacing(path) as target, ZipFile(target, "w") as file:
            file.writestr(_entry(MANIFEST), manifest.model_dump_json(indent=2) + "\n")
            for run_id, files in sorted(runs.items()):
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


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """The runs of an exported file, in a temporary folder that is gone afterwards.

    Raises:
        UsageError: there is no such file.
        RecordError: it is no export, is torn, of a later version, or holds what no export does.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file", "dynbench runs export REF -o FILE makes one.")
    with tempfile.TemporaryDirectory(prefix="dynbench-export-") as folder:
        yield _unpack(path, Path(folder))


def _unpack(path: Path, folder: Path) -> Export:
    try:
        with ZipFile(path) as file:
            manifest = _manifest(path, file)
            for member in _checked(path, file):
                target = folder / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.open(member) as packed, target.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
    except _BROKEN as error:
        raise _refused(path, f"it is torn or no export ({error or type(error).__name__})") from error
    root = folder / RUNS
    runs = {run_id: _checked_run(path, root, run_id) for run_id in manifest.runs}
    if not runs:
        raise _refused(path, "it holds no run")
    arms = None if manifest.arms is None else {name: [runs[i] for i in ids] for name, ids in manifest.arms.items()}
    return Export(path, root, tuple(runs.values()), arms, manifest)


def _manifest(path: Path, file: ZipFile) -> Manifest:
    if MANIFEST not in file.namelist():
        raise _refused(path, f"it is no export: {MANIFEST} is not in it")
    info = file.getinfo(MANIFEST)
    if info.file_size > MOST_RECORD_BYTES:
        raise _refused(path, f"its {MANIFEST} has {info.file_size:,} bytes")
    try:
        content = from_json(file.read(info))
        check_version(path, content, EXPORT_SCHEMA_VERSION)
        manifest = Manifest.model_validate(content)
    except ValueError as error:
        raise _refused(path, f"its {MANIFEST} is not one of a {KIND}") from error
    named = [name for arm in (manifest.arms or {}).values() for name in arm]
    if set(named) - set(manifest.runs) or not all((manifest.arms or {"": [""]}).values()):
        raise _refused(path, f"its {MANIFEST} has an arm without runs")
    if not all(name.isprintable() for name in manifest.arms or ()):
        raise _refused(path, f"its {MANIFEST} has an arm with an unprintable name")
    return manifest


def _checked(path: Path, file: ZipFile) -> list[ZipInfo]:
    """The members, if all of them are what an export holds and they have room."""
    members = [info for info in file.infolist() if info.filename != MANIFEST]
    names = {info.filename for info in members}
    if len(members) > MOST_FILES or len(names) < len(members):
        raise _refused(path, f"it holds {len(members):,} files of {len(names):,} names")
    for info in members:
        if not _MEMBER.fullmatch(info.filename) or stat.S_ISLNK(info.external_attr >> 16):
            raise _refused(path, f"it holds {info.filename!r}, which no export does")
        if not info.filename.endswith(".csv") and info.file_size > MOST_RECORD_BYTES:
            raise _refused(path, f"{info.filename} has {info.file_size:,} bytes")
    total, packed = sum(info.file_size for info in members), path.stat().st_size
    if total > min(MOST_BYTES, MOST_RATIO * packed):
        raise _refused(path, f"{packed:,} bytes would unpack to {total:,}")
    return members


def _checked_run(path: Path, root: Path, run_id: str) -> Run:
    run = Run(root / run_id)
    if not re.fullmatch(_FOLDER, run_id) or not any(run.ranks_dir.glob("rank_*.csv")):
        raise _refused(path, f"it names run {run_id!r} and holds no rows of it")
    try:
        if (name := run.record().name) is not None:
            check_spelling(name)
        run.config()
        if run.env_file.is_file():
            run.env()
    except (RecordError, RunLookupError) as error:
        raise _refused(path, error.message.replace(f"{root}/", "")) from error
    return run


def _refused(path: Path, reason: str) -> RecordError:
    return RecordError(f"{path}: cannot be used: {reason}", HINT)
