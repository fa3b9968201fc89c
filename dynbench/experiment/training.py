"""A training run from probe to summary, alone or in turns with its null arm, the same without communication."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dynbench.config.ranks import parameter_copies, ranks_of
from dynbench.config.recipes import Launches
from dynbench.config.rules import makes_probe
from dynbench.config.schema import NOT_IDENTITY, SUFFIX, Config, changed, config_digest, without_communication
from dynbench.engine.launching.progress import OnProgress
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.launching.run_launch import launch_arms, plan_launch
from dynbench.engine.launching.torchrun import started_as_rank
from dynbench.engine.plan_check import fitting_batch, may_split, total_steps
from dynbench.engine.planning import loaded_problem
from dynbench.engine.turn_order import Turns
from dynbench.errors import (
    BatchTooLarge,
    DynbenchError,
    Interrupted,
    RecordError,
    ReplicasTooLarge,
    StorageError,
    UsageError,
)
from dynbench.experiment.launch_plan import check_exposed_turns, least_turn
from dynbench.probe.prober import run_probe
from dynbench.runs.recorder import named
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore, results_option
from dynbench.schedule.policy import make_policy
from dynbench.workloads.registry import build_workload

if TYPE_CHECKING:
    from dynbench.analysis.merge import MergedRun

_log = logging.getLogger(__name__)

NOT_PROBED = (
    *NOT_IDENTITY,
    "schedule",
    "analysis",
    "probe.run",
    "train.eval_every",
    "train.eval_samples",
    "train.exposed",
    "train.memory_parts",
    "launch.timeout_s",
)
"""Keys that arms may differ in without a probe measuring anything else."""
OF_SPLITS = ("sync", "compress")
"""Sections under which a further micro-batch is timed, and nothing else; the strategy and its options also decide who
trains, and what ranks hold."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run."""

    run: Run
    summary: Mapping[str, object] | None
    """As in summary.json; None where another node's launcher writes it."""
    figures: Sequence[Path] = ()
    """Files drawn: pictures, each with the numbers in it."""
    null: TrainingResult | None = None
    """The same without communication, of one that took turns with it."""


def run_training(
    config: Config,
    store: RunStore,
    *,
    on_progress: OnProgress | None = None,
    warn_unread: bool = True,
    figures: bool = False,
    **naming: Unpack[Naming],
) -> TrainingResult | None:
    """Probe where the configuration asks for it, train, merge, summarise and draw.

    Inside torchrun or srun: train as the rank that was started.

    A run that ended early is merged and summarised too, as partial, before its error is raised.

    Args:
        config: what to train; `auto` is decided here.
        store: registry that the run is put into.
        on_progress: called with how far it is.
        warn_unread: warn of what the settings leave open and of those that nothing reads; a comparison does so once,
            for all its arms.
        figures: draw the run's figures; where that fails, a warning says why, and the run is complete all the same.
        naming: what the run is called.

    Returns:
        The result; None on ranks other than 0 that torchrun or srun started.

    Raises:
        DynbenchError: as `launch_arms`, and `exposed_turns`.
    """
    attached, wanted = started_as_rank(config), config if warn_unread else None
    if attached and config.train.exposed:
        raise UsageError(
            "train.exposed: true launches two arms, and was started as a rank of one",
            "Start it outside of torchrun and srun.",
        )
    if attached:
        from dynbench.engine.launching.run_launch import join_training

        with _partial_summarised():
            run = join_training(config, store, asked=wanted, **naming)
        return None if run is None else _result(run, figures)
    turns = exposed_turns(config, store) if config.train.exposed else None
    probed = config
    if wants_probe(config):
        plan_launch(config, store, **naming)  # what cannot work is raised before minutes of probing
        probed = changed(config, {"probe.run": make_probe(config, store)})
    arms = with_null_arms([("with", probed, naming)])
    first, *null = run_arms(arms, store, turns=turns, on_progress=on_progress, asked=wanted, figures=figures)
    return replace(first, null=null[0] if null else None)


@dataclass(frozen=True, slots=True)
class LaunchedArm:
    """An arm of a launch.

    Attributes:
        name: by which it takes turns.
        config: what to train, probed where that is wanted.
        naming: what its run is called.
        member: position of the arm that it is, or whose null arm it is, among those given.
        is_null: whether it is another arm without communication.
    """

    name: str
    config: Config
    naming: Naming
    member: int
    is_null: bool = False


def with_null_arms(arms: Iterable[tuple[str, Config, Naming]]) -> list[LaunchedArm]:
    """The arms, and behind each with `train.exposed` its null arm: the same without communication."""
    found = []
    for member, (name, config, naming) in enumerate(arms):
        found.append(LaunchedArm(name, config, naming, member))
        if config.train.exposed:
            own = naming.get("name")
            beside: Naming = {**naming, "name": None if own is None else f"{own}{SUFFIX}"}
            found.append(LaunchedArm(f"{name}{SUFFIX}", without_communication(config), beside, member, is_null=True))
    return found


def exposed_turns(config: Config, store: RunStore) -> Turns:
    """How a training with `train.exposed` and its null arm take turns.

    Raises:
        ConfigError: settings that cannot work, or with which the two cannot take turns.
    """
    resolved = resolve(config, this_machine(), store).config
    check_exposed_turns({"train": resolved})
    return Turns(("with", f"with{SUFFIX}"), least_turn(resolved), config.train.seed)


def run_arms(
    arms: Sequence[LaunchedArm],
    store: RunStore,
    *,
    turns: Turns | None = None,
    on_progress: OnProgress | None = None,
    on_made: Callable[[Sequence[Run]], None] = lambda _: None,
    asked: Config | None = None,
    figures: bool = False,
) -> list[TrainingResult]:
    """Train one arm, or several that take turns in one launch; merge and summarise each.

    Args:
        arms: what to train.
        store: registry that the runs are put into.
        turns: how several arms take turns; None for one.
        on_progress: called with how far they are.
        on_made: called with the run folders before anything is launched.
        asked: the unresolved settings of the first, to warn about; None where that has been done.
        figures: draw each run's figures.

    Raises:
        DynbenchError: as `launch_arms`; every run is summarised as far as it got.
    """
    made: list[Run] = []

    def keep(runs: Sequence[Run]) -> None:
        made.extend(runs)
        on_made(runs)

    with _partial_summarised(made):
        pairs = [(arm.config, arm.naming) for arm in arms]
        runs = launch_arms(pairs, store, turns=turns, on_progress=on_progress, on_made=keep, asked=asked)
    return [_result(run, figures) for run in runs]


@contextmanager
def _partial_summarised(made: Sequence[Run] = ()) -> Iterator[None]:
    """What was recorded of runs that end early inside is summarised before their error goes on."""
    try:
        yield
    except DynbenchError as error:
        refused_before = isinstance(error, UsageError) and not isinstance(error, StorageError)
        if error.run_path is not None and not (refused_before or isinstance(error, ReplicasTooLarge)):
            paths = dict.fromkeys((error.run_path, *(run.path for run in made if run.path.exists())))
            for ended in map(Run, paths):
                with named(ended):
                    summarise_partial(ended)
        raise


def _result(run: Run, figures: bool) -> TrainingResult:
    """Summarised here, unless another node's launcher does it."""
    if run.record().pid != os.getpid():
        return TrainingResult(run, None)
    try:
        with named(run):
            from dynbench.analysis.merge import merge_run  # and polars, for which no rank has to wait
            from dynbench.analysis.summary import write_summary

            merged = merge_run(run)
            summary = write_summary(merged)
            _warn_of_divergence(merged)
            return TrainingResult(run, summary, _drawn(merged, summary) if figures else ())
    except (Interrupted, StorageError) as stopped:
        stopped.message += " while summarising; the run itself is complete"
        again = f"dynbench analyze {shlex.quote(run.label)}{results_option(run.path.parent)} does the rest."
        stopped.hint = again if isinstance(stopped, Interrupted) else f"Free some space; {again}"
        raise


def _warn_of_divergence(merged: MergedRun) -> None:
    """Say at once that a loss was no number; of a comparison's launches its checks say it."""
    from dynbench.analysis.checks import findings

    run = merged.run
    for finding in findings("nan_loss", merged) if run.record().group is None else ():
        warning = f"{finding.seen}. {finding.hint}"
        _log.warning("%s", warning)
        run.update(warnings=[*run.record().warnings, warning])


def _drawn(merged: MergedRun, summary: Mapping[str, object]) -> Sequence[Path]:
    """The files of the run's figures; none, and a warning, where something is in the way."""
    _log.info("drawing figures")
    try:
        from dynbench.analysis.figures import draw_figures
        from dynbench.analysis.figures.views import ArmView

        return draw_figures("train", [ArmView(merged.label, (merged,), made=[summary])], merged.run.figures_dir)
    except Exception as error:  # whatever it is, what was measured is on disk and must not look failed
        again = f"dynbench analyze {shlex.quote(merged.run.label)}"
        _log.warning("no figures: %s: %s; %s draws them", type(error).__name__, error, again)
        return ()


def summarise_partial(run: Run) -> None:
    """Summarise what a run recorded before it ended, and warn that it is not all; the run's own error comes after."""
    from dynbench.analysis.summary import summarise

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


def turn_steps(launches: Launches, configs: Sequence[Config]) -> int:
    """Steps of a turn in a launch: as set; of one arm and its null arm, no fewer than the arm's work goes on for."""
    return max(launches.block, least_turn(configs[0])) if len(configs) == 1 else launches.block


def wants_probe(config: Config) -> bool:
    """Whether a probe comes first, see `makes_probe`."""
    return makes_probe(config, on_gpus=config.launch.device != "cpu" and this_machine().gpus > 0)


def make_probe(config: Config, store: RunStore) -> str:
    """Id of a probe of these settings, made now.

    Raises:
        DynbenchError: as `run_probe`.
    """
    run = run_probe(config, store, report=_log.info)
    _log.info("probed: %s", run.path)
    return run.id


def probe_identity(config: Config, store: RunStore, *, with_splits: bool) -> tuple[int, str, float, str]:
    """Equal for configurations of which a probe would measure the same.

    Args:
        config: unresolved settings.
        store: the registry.
        with_splits: whether what a further micro-batch costs counts.

    Raises:
        DynbenchError: as `resolve`.
    """
    resolved = resolve(config, this_machine(), store)
    digest = config_digest(resolved.config, NOT_PROBED if with_splits else NOT_PROBED + OF_SPLITS)
    copies = parameter_copies(resolved.config, ranks_of(resolved.config, resolved.world_size), in_step=True)
    return resolved.workers, resolved.config.sync.name, copies, digest


@dataclass(frozen=True, slots=True)
class NextTraining:
    """The dynamic run that a probe was made for.

    Attributes:
        global_batch: as configured.
        steps: of the run, warm-up included.
        stopped_by: the first step that does not fit, or why there is none, in words; None where all fit.
        fitting_batch: the configured global batch, or the largest one found below it with which all steps fit; None
            where there is none.
        split_fits: whether all steps fit with as many micro-batches as they need.
    """

    global_batch: int
    steps: int
    stopped_by: str | None
    fitting_batch: int | None
    split_fits: bool

    @property
    def instead(self) -> Mapping[str, object] | None:
        """Settings with which the run ends well, by dotted key; None where nothing is known to help."""
        if self.stopped_by is None:
            return {}
        if self.fitting_batch is not None:
            return {"train.global_batch": self.fitting_batch}
        return {"schedule.micro_batches": "auto"} if self.split_fits else None


def next_training(config: Config, probe: Run, store: RunStore) -> NextTraining:
    """What `train --mode dynamic --probe PROBE` would meet with the settings of the probe.

    Settings that training would refuse stop it too: what was probed is worth showing nevertheless.
    """
    asked, steps = config.train.global_batch, total_steps(config)
    try:
        dynamic = changed(config, {"schedule.mode": "dynamic", "schedule.capacity": None, "probe.run": probe.id})
        resolved = resolve(dynamic, this_machine(), store)
        config = resolved.config
        asked, steps = config.train.global_batch, total_steps(config)
        problem = loaded_problem(config, build_workload(config), resolved.workers, store.root)
        misfit: DynbenchError | None = make_policy(config.schedule.policy_name, problem).misfit(steps)
        if misfit is None:
            return NextTraining(asked, steps, None, asked, split_fits=True)
        if isinstance(misfit, BatchTooLarge):
            found = fitting_batch(config, problem)
            batch = None if found is None else found.global_batch
            return NextTraining(asked, steps, misfit.message, batch, split_fits=may_split(config, problem))
    except DynbenchError as error:
        misfit = error
    return NextTraining(asked, steps, misfit.message, None, split_fits=False)
