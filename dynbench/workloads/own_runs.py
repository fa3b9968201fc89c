"""The runs of code of the user's own that were made on this machine by this user, who named it then.

A run's folder may be anybody's, so that its word for what it ran counts for nothing; this lies in the user's cache.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.workloads.cache import cache_folder

FILE = "own_code.jsonl"
logger = logging.getLogger(__name__)


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
