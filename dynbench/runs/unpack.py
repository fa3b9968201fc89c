"""Opening an exported file that anybody may have made: nothing in it is believed before it was looked at."""

from __future__ import annotations

import json
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile, ZipFile, ZipInfo

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from dynbench.errors import RecordError, RunLookupError, UsageError
from dynbench.runs.export import EXPORT_SCHEMA_VERSION, KIND, MANIFEST, RECORDS, RUNS, Export
from dynbench.runs.json_record import check_version
from dynbench.runs.json_text import MOST_DEPTH, depth_of
from dynbench.runs.names import check_spelling
from dynbench.runs.run import Run

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


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)

    kind: Literal["dynbench export"]
    runs: list[str]
    arms: dict[str, list[str]] | None
    stored: str | None
    question: str | None = None
    first_stage: int | None = None


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
    for record in root.glob("*/*"):
        if record.suffix in (".json", ".yaml"):
            _check_nesting(path, record, str(record.relative_to(root)))
    runs = {run_id: _checked_run(path, root, run_id) for run_id in manifest.runs}
    if not runs:
        raise _refused(path, "it holds no run")
    arms = None if manifest.arms is None else {name: [runs[i] for i in ids] for name, ids in manifest.arms.items()}
    return Export(path, root, tuple(runs.values()), arms, manifest.stored, manifest.question, manifest.first_stage)


def _manifest(path: Path, file: ZipFile) -> _Manifest:
    if MANIFEST not in file.namelist():
        raise _refused(path, f"it is no export: {MANIFEST} is not in it")
    info = file.getinfo(MANIFEST)
    if info.file_size > MOST_RECORD_BYTES:
        raise _refused(path, f"its {MANIFEST} has {info.file_size:,} bytes")
    try:
        content = json.loads(file.read(info))
        check_version(path, content, EXPORT_SCHEMA_VERSION)
        manifest = _Manifest.model_validate(content)
    except (ValidationError, RecursionError) as error:
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


def _check_nesting(path: Path, record: Path, name: str) -> None:
    """Refuses records that would take all of the time or the stack to read: nested deeply, or YAML with aliases."""
    depth = 0
    try:
        text = record.read_text(encoding="utf-8")
        if record.suffix == ".json":
            depth = depth_of(json.loads(text))
        for event in yaml.parse(text) if record.suffix == ".yaml" else ():
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH or isinstance(event, yaml.AliasEvent):
                raise _refused(path, f"{name} is nested more than {MOST_DEPTH} levels deep, or refers to itself")
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _refused(path, f"{name} cannot be read ({type(error).__name__})") from error
    if depth > MOST_DEPTH:
        raise _refused(path, f"{name} is nested more than {MOST_DEPTH} levels deep")


def _refused(path: Path, reason: str) -> RecordError:
    return RecordError(f"{path}: cannot be used: {reason}", HINT)
