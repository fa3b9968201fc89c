"""What lies in a results folder and is no run of it: nobody's to remove."""

from __future__ import annotations

from pathlib import Path

from dynbench.errors import RecordError
from dynbench.runs.names import NOT_NAMES
from dynbench.runs.run import Run


def why_foreign(root: Path, run: Run) -> str | None:
    """Why a folder is not a run of the registry `root`; None where its own record says that it is one."""
    if run.id in NOT_NAMES or run.path.parent.resolve() != root.resolve():
        return "is not in the registry"
    if run.path.is_symlink():
        return "is a link"
    try:
        recorded = run.record().id
    except RecordError:
        return "has no run.json that can be read"
    return None if recorded == run.id else f"holds the record of another run, {recorded}"


def strangers(root: Path) -> list[tuple[Path, str]]:
    """Folders in `root` that are no runs of it, each with the reason; hidden ones are left out."""
    if not root.is_dir():
        return []
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    reasons = [(path, why_foreign(root, Run(path))) for path in folders]
    return [(path, reason) for path, reason in reasons if reason is not None]
