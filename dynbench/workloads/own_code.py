"""Code of the user's own: found and pinned by digest, and the runs of it that this user made on this machine.

A run's folder may be anybody's, so its word for what it ran counts for nothing; the list of these runs lies in the
user's cache.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import UsageError, did_you_mean
from dynbench.plugins.outside import Code, content_digest, find_code, own_folders
from dynbench.workloads.cache import cache_folder

FILE = "own_code.jsonl"
logger = logging.getLogger(__name__)
KEY = "workload.name"
PROTOCOL = "dynbench/workloads/base.py documents the protocol, recipes/length_regression.py is an example."


def remember_run(run_id: str, settings: Workload) -> None:
    """Keep that the user named the code of a run, if it is their own; else nothing.

    Args:
        run_id: of the run.
        settings: resolved.
    """
    if not settings.is_own:
        return
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as lines:
            lines.write(_line(run_id, settings) + "\n")
    except OSError as error:  # then it is named again when it is wanted
        logger.debug("%s: %s", _file(), error)


def is_remembered(run_id: str, settings: Workload) -> bool:
    """Whether the user made this very run here, with this very code.

    Args:
        run_id: of the run.
        settings: as its folder has them now.
    """
    try:
        return settings.code_digest is not None and _line(run_id, settings) in _file().read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return False


def _file() -> Path:
    """Never in the folder that a run's settings name."""
    return cache_folder(Workload()) / FILE


def _line(run_id: str, settings: Workload) -> str:
    return json.dumps([run_id, settings.name, settings.import_from, settings.code_digest])


@dataclass(frozen=True)
class OwnCode(Code):
    """A class of the user's own.

    Args:
        name: `workload.name`.
        attribute: the class's name.
    """

    name: str
    attribute: str


def find_own_code(settings: Workload) -> OwnCode:
    """The class that `workload.name` means.

    Raises:
        UsageError: no such module, file or class, a file that is no Python, or one that has changed since
            `workload.code_digest` was written.
    """
    where, _, attribute = settings.name.rpartition(":")
    anywhere = settings.import_from is None
    folders = own_folders() if anywhere else [Path(str(settings.import_from)).expanduser().resolve()]
    found = find_code(KEY, where, folders, "set workload.import_from", installed=anywhere)
    code = OwnCode(**vars(found), name=settings.name, attribute=attribute)
    if settings.code_digest not in (None, code.digest):
        raise UsageError(
            f"workload.code_digest: {settings.code_digest}, but {code.file} is {code.digest}: it has changed since",
            "Bring that version back. With code_digest null it runs as it is, not comparable with what ran before.",
        )
    _check_class(code, code.file.read_bytes())
    return code


def registered_code(name: str, made: Callable[..., object]) -> OwnCode:
    """Where a registered class or function of the user's own is.

    Args:
        name: `workload.name`.
        made: what is registered, loaded.
    """
    file = Path(inspect.getfile(made))
    return OwnCode(KEY, file.parent, None, file, content_digest(file.read_bytes()), name, made.__qualname__)


def own_code_settings(settings: Workload) -> dict[str, object]:
    """Folder and digest of a workload of the user's own, as its configuration keeps them; empty for the registry's.

    Raises:
        UsageError: as `find_own_code`.
    """
    if not settings.is_own:
        return {}
    code = find_own_code(settings)
    return {"import_from": str(code.folder), "code_digest": code.digest}


def _check_class(code: OwnCode, content: bytes) -> None:
    """What the file's text alone tells of the class: a name that it mentions anywhere is left to the import."""
    try:
        tree = ast.parse(content, str(code.file))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{KEY}: {code.file}{line}: no valid Python: {reason}", "Mend that line.") from None
    if re.search(rb"\b(%s|__getattr__)\b|import \*" % re.escape(code.attribute.encode()), content):
        return
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    near = did_you_mean(code.attribute, classes)
    there = f"Classes there: {', '.join(classes)}." if classes else "It has no class."
    raise UsageError(f"{KEY}: {code.file} has no class {code.attribute}. {near}".rstrip(), there)
