"""`dynbench tensorboard`: TensorBoard, started on the scalars of runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options
from dynbench.cli.output import answered, print_line
from dynbench.errors import Terminated, UsageError

if TYPE_CHECKING:
    from dynbench.runs.run import Run
    from dynbench.runs.store import RunStore


@click.command(
    epilog="\b\nExamples:\n  dynbench tensorboard                         every run that has scalars\n"
    "  dynbench tensorboard runA runB --port 6010"
)
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="Port to listen on.  [default: 6006, or the next one that is free]"
)
@click.option("--host", default="localhost", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@common_options
def command(settings: Settings, runs: tuple[str, ...], port: int | None, host: str) -> None:
    """Show the scalars that `train --tensorboard` wrote, of some runs and comparisons or of all, until Ctrl-C."""
    found = scalars_of_runs(settings.store(), runs)
    address = serve(found, host, port)
    if not answered(settings, "tensorboard", {"address": address, "runs": list(found)}, address):
        print_line(f"{address}  {len(found)} run{'s' * (len(found) != 1)}; Ctrl-C ends it")
    try:
        wait_for_ctrl_c()
    except Terminated:
        raise
    except KeyboardInterrupt:
        return


def scalars_of_runs(store: RunStore, references: Iterable[str]) -> dict[str, Path]:
    """Label to folder of scalars: of the runs named and the launches of the comparisons named, or of all.

    Raises:
        RunLookupError: a reference that is unknown.
        UsageError: runs that have none.
    """
    from dynbench.engine.rank.scalars import FOLDER

    chosen = [run for reference in references for run in _launched(store, store.resolve(reference))]
    folders = {run.label: run.path / FOLDER for run in chosen or (run for run, _ in store.entries())}
    missing = [label for label, folder in folders.items() if not folder.is_dir()]
    if chosen and missing:
        raise UsageError(f"{', '.join(missing)}: no scalars for TensorBoard", "Train with --tensorboard.")
    if len(missing) == len(folders):
        raise UsageError(f"{store.root}: no run has scalars for TensorBoard", "Train with --tensorboard.")
    return {label: folder for label, folder in folders.items() if label not in missing}


def _launched(store: RunStore, run: Run) -> list[Run]:
    """A run, or what was launched for a comparison."""
    from dynbench.runs.lookup import groups_of, members_of

    if run.record().command != "compare":
        return [run]
    entries = store.entries()
    members = members_of(run.id, groups_of(entries))
    return [other for other, record in entries if other.id in members and record.command == "train"] or [run]


def serve(folders: Mapping[str, Path], host: str, port: int | None) -> str:
    """Start TensorBoard within this process; its address.

    Args:
        folders: label to folder.
        host: address to listen on.
        port: None is 6006, or the next one that is free.

    Raises:
        UsageError: it is not installed, or cannot listen there.
    """
    try:
        program = import_module("tensorboard.program")  # as an attribute it would be imported when first used
    except ImportError as error:
        reason = f"the package tensorboard cannot be imported: {error}"
        raise UsageError(reason, "pip install --upgrade tensorboard.") from error
    named = ",".join(f"{label}:{folder.resolve()}" for label, folder in folders.items())
    where = ("--host", host, *(() if port is None else ("--port", str(port))))
    board = program.TensorBoard()
    board.configure(argv=["tensorboard", "--logdir_spec", named, *where])
    try:
        return str(board.launch())
    except program.TensorBoardServerException as error:
        raise UsageError(f"TensorBoard cannot start: {error}", "Name another --port, or leave it out.") from error


def wait_for_ctrl_c() -> None:
    """Return never."""
    threading.Event().wait()
