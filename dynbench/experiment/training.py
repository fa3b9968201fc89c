"""A training run from launch to summary: what `train` and `compare` run."""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbench.analysis.summary import summarise
from dynbench.config.schema import Config
from dynbench.engine.attach import join_training, started_as_rank
from dynbench.engine.launch import launch_training, plan_launch
from dynbench.engine.progress import OnProgress
from dynbench.errors import DynbenchError, Interrupted, RecordError, UsageError
from dynbench.experiment.probing import wants_probe, with_probe
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run."""

    run: Run
    summary: Mapping[str, object] | None
    """As in summary.json; None where another node's launcher writes it."""


def run_training(
    config: Config,
    store: RunStore,
    *,
    name: str | None = None,
    replace: bool = False,
    argv: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> TrainingResult | None:
    """Probe where the configuration asks for it, train, merge and summarise.

    Inside torchrun or srun: train as the rank that was started.

    A run that ended early is merged and summarised too, as partial, before its error is raised.

    Returns:
        The result; None on ranks other than 0 that torchrun or srun started.

    Raises:
        DynbenchError: as `launch_training`.
    """
    attached = started_as_rank(config)
    if not attached and wants_probe(config):
        plan_launch(config, store, name=name, replace=replace)  # what cannot work is told before minutes of probing
        config = with_probe(config, store)
    try:
        if attached:
            run = join_training(config, store, name=name, replace=replace, argv=argv)
        else:
            run = launch_training(config, store, name=name, replace=replace, argv=argv, on_progress=on_progress)
    except DynbenchError as error:
        if error.run_path is not None and not isinstance(error, UsageError):
            summarise_partial(Run(error.run_path))
        raise
    if run is None:
        return None
    return TrainingResult(run, _summary(run) if run.record().pid == os.getpid() else None)


def _summary(run: Run) -> Mapping[str, object]:
    try:
        return summarise(run)
    except KeyboardInterrupt:
        error = Interrupted(
            "interrupted while summarising; the run itself is complete",
            f"dynbench analyze {shlex.quote(run.label)} does the rest.",
            signum=signal.SIGINT,
        )
        error.run_path = run.path
        raise error from None


def summarise_partial(run: Run) -> None:
    """Summarise what a run recorded before it ended, and warn that it is not all; the run's own error comes after."""
    asked = run.config().train.steps
    try:
        summary = summarise(run)
    except RecordError:
        _log.warning("partial run: no step was recorded")
        return
    except OSError as error:
        _log.warning("partial run: the summary cannot be written: %s", error)
        return
    warning = f"partial run: {summary['steps']} of {asked} measured steps were recorded by all ranks"
    run.update(warnings=[*run.record().warnings, warning])
    _log.warning("%s; the summary of what is there: %s", warning, run.path / "summary.md")
