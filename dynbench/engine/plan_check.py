"""Whether a run can be planned: capacities, batches, steps.

Checked on the run's own data where they are at hand before any rank starts: generated, or in small files.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from dynbench.config import schema
from dynbench.config.part_rules import buffer_size
from dynbench.config.paths import BYTES
from dynbench.config.schema import Config, changed, decided
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.planning import build_capacity, build_problem, loaded_problem
from dynbench.errors import BatchTooLarge, NothingFits, UsageError
from dynbench.plugins import DATASETS, POLICIES, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.schedule.evaluate import Fitting, largest_fitting
from dynbench.schedule.policy import Problem, make_policy, policy_class
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.base import Workload
from dynbench.workloads.cache import progress_logger
from dynbench.workloads.datasets.base import LengthSplit, load_dataset
from dynbench.workloads.registry import build_workload

_SMALL_MB = 4
"""Text that is tokenised in about a second."""
_SMALL_TOKENS = 2**23
"""Tokens that are generated in about a second; a small trace may stand for a hundred times as many."""
_PATIENCE_S = 2.0
_log = logging.getLogger(__name__)


def data_at_hand(config: schema.Config) -> bool:
    """Whether the data can be had without the network and without a wait.

    Raises:
        DataError: a trace of lengths that cannot be used.
    """
    workload = config.workload
    if workload.runs_own_code or (workload.reads_model and not _is_local(workload.model)):
        return False
    dataset = DATASETS[workload.dataset]
    if dataset.folder:
        return False  # its files may be many, and a broken one is looked for in all of them
    generated = dataset.generated
    paths = [Path(path).expanduser() for _, path in options_of(workload, FileOptions) if path is not None]
    if generated and not paths:
        return True
    small = sum(path.stat().st_size for path in paths if path.is_file()) <= _SMALL_MB * BYTES_PER_MB
    if not paths or not small:
        return False
    return _few_tokens(workload) if generated else _is_local(workload.tokenizer_name)


def known_workload(config: schema.Config) -> Workload | None:
    """The workload as the ranks will load it, its model not built; None where it is not at hand.

    Nothing is written, and what the ranks will warn of is left to them.

    Raises:
        DynbenchError: as `build_workload`.
    """
    if not data_at_hand(config):
        return None
    return _build(config.workload, config.train.seed if config.workload.subset is not None else 0)


@lru_cache(maxsize=4)
def _build(settings: schema.Workload, seed: int) -> Workload:
    with warnings_left_to_the_ranks(), tempfile.TemporaryDirectory(prefix="dynbench-") as cache:
        workload = settings.model_copy(update={"cache_dir": cache})
        train = schema.Train(seed=seed)
        return build_workload(schema.Config().model_copy(update={"workload": workload, "train": train}))


def _few_tokens(settings: schema.Workload) -> bool:
    """Whether a data set of which only lengths are stored is generated at once."""
    splits = load_dataset(settings)
    lengths = [split.lengths for split in (splits.train, splits.eval) if isinstance(split, LengthSplit)]
    return sum(int(np.minimum(each, settings.max_length).sum()) for each in lengths) <= _SMALL_TOKENS


def _is_local(name: str) -> bool:
    return name == BYTES or Path(name).expanduser().exists()


@contextmanager
def warnings_left_to_the_ranks() -> Iterator[None]:
    """Inside it nothing is said of the data but how far the preparing of them has got."""
    logger = logging.getLogger("dynbench.workloads")
    before, paced = logger.level, progress_logger.level
    progress_logger.setLevel(progress_logger.getEffectiveLevel())
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
        progress_logger.setLevel(paced)


def check_capacity(config: Config, workers: int, root: Path) -> None:
    """Refuse a global batch that no plan can deal within the capacities, whatever its lengths.

    Every rank is taken at its best: samples of length 1, all micro-batches full. Batches refused because of their
    lengths are found when these are known.

    Raises:
        NothingFits: with the most that could fit.
        UsageError: a probe run that cannot be used.
        RecordError: a run that is named as a probe and is none.
    """
    capacity = build_capacity(config, workers, root)
    schedule = config.schedule
    if capacity.unlimited or schedule.micro_batches == "auto":
        return
    per_rank = capacity.limits(workers, np.ones(1, dtype=np.int64))[:, 0] * schedule.micro_batches
    if schedule.policy_name == "prefix":
        per_rank = np.minimum(per_rank, buffer_size(config, workers))
    most = workers * int(per_rank.min()) if schedule.policy_name == "static" else int(per_rank.sum())
    if config.train.global_batch > most:
        shown = list(schedule.capacity) if isinstance(schedule.capacity, tuple) else schedule.capacity
        split = ", or schedule.micro_batches=auto" if policy_class(schedule.policy_name).splits else ""
        raise NothingFits(
            f"schedule.capacity: {shown} on {workers} ranks cannot hold train.global_batch "
            f"{config.train.global_batch}; no more than {most} can fit",
            f"Set --global-batch {most}, or less where samples are long{split}.",
        )


def total_steps(config: Config) -> int:
    """Steps of a run, warm-up included."""
    return config.train.warmup_steps + config.train.steps


def check_steps(config: Config, problem: Problem) -> None:
    """Refuse a run of which some step does not fit.

    Args:
        config: resolved.
        problem: with the lengths that the ranks plan with.

    Raises:
        BatchTooLarge: the first such step, and the largest global batch with which all of them fit.
        NothingFits: a sample longer than the capacities allow.
    """
    # Estimated speeds decide how much `prefix` takes from each stream: its plans are not known before. Elsewhere they
    # decide only who gets what.
    unknown = config.schedule.speeds == "auto" and config.schedule.policy_name == "prefix"
    if problem.capacity.unlimited or unknown:
        return
    name, steps, notice = config.schedule.policy_name, total_steps(config), _Notice()
    policy = make_policy(name, problem)
    misfit = policy.misfit(steps, lambda step: notice(f"checking that all steps fit: step {step} of {steps}"))
    if misfit is None:
        return
    if not isinstance(misfit, BatchTooLarge):
        raise misfit
    found = fitting_batch(config, problem, notice)
    split = ", or schedule.micro_batches=auto" if may_split(config, problem) else ""
    raise BatchTooLarge(misfit.message, f"{_advice(found, problem.global_batch, steps)}{split}.")


def fitting_batch(config: Config, problem: Problem, notice: _Notice | None = None) -> Fitting | None:
    """The largest global batch below the problem's with which all steps of a run fit; None where there is none."""
    notice = notice or _Notice()
    return largest_fitting(
        config.schedule.policy_name,
        problem,
        total_steps(config),
        lambda batch: notice(f"looking for the largest global batch that fits: trying {batch}"),
    )


def _advice(found: Fitting | None, batch: int, steps: int) -> str:
    if found is None:
        lower = "lower workload.max_length, raise the memory limit and probe again"
        return f"No global batch below {batch} fits in all {steps} steps: {lower}"
    which = f"the largest below {batch} that fits in all {steps} steps"
    if not found.largest:
        which = f"which fits in all {steps} steps (of the larger ones, not all were tried)"
    return f"Set --global-batch {found.global_batch}, {which}"


def may_split(config: Config, problem: Problem) -> bool:
    """Whether more micro-batches would make every step fit."""
    schedule = config.schedule
    kind = policy_class(schedule.policy_name)
    alike = isinstance(schedule.capacity, str) or problem.capacity.equal(problem.workers)
    if not (kind.splits and schedule.micro_batches != "auto" and alike):
        return False
    split = replace(problem, micro_batches="auto", capacity=problem.capacity.least())
    return make_policy(schedule.policy_name, split).misfit(total_steps(config)) is None


class _Notice:
    """Logs how far a search is, once it takes longer than anybody waits without a word."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + _PATIENCE_S

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _PATIENCE_S
            _log.info("%s", text)


def check_plan(config: Config, workers: int, root: Path, launches: int = 1) -> None:
    """Build what the ranks will build: capacities, cost model, policy, and the model of what virtual ranks send.

    Where there are capacities and the data are at hand, every step is checked. Other data may take minutes to read: a
    global batch of the shortest samples stands for them, and the ranks check the steps when they have loaded them.

    Args:
        config: resolved, but for a probe that is still to be made (`probe.run: auto`).
        workers: ranks that train (G).
        root: results folder in which probe runs are looked up.
        launches: launches to come, each with the seed after that of the one before.

    Raises:
        NothingFits: capacities that cannot hold the global batch, in some step.
        UsageError: settings that no plan can meet, data that cannot be used, or a probe run that cannot be used.
        RecordError: a run that is named as a probe and is none.
    """
    planned = _unprobed(config)
    shortest = np.ones(config.train.global_batch, dtype=np.int64)
    problem = build_problem(planned, shortest, workers, decided(config.workload.pad_to_multiple_of), root)
    if not problem.capacity.unlimited and not POLICIES[config.schedule.policy_name].capped:
        raise UsageError(
            f"schedule.policy: {config.schedule.policy_name!r} is a baseline that obeys no capacities",
            "Leave schedule.capacity out, or plan with partition.",
        )
    make_policy(config.schedule.policy_name, problem)
    if config.launch.launcher == "virtual":
        build_comm_model(config.launch.comm_model, root)
    if problem.capacity.unlimited:
        return
    if planned is not config or not data_at_hand(config):
        check_capacity(config, workers, root)
        return
    for launch in range(launches):
        seeded = changed(config, {"train.seed": config.train.seed + launch})
        known = known_workload(seeded)
        assert known is not None, "the data are at hand"
        try:
            check_steps(seeded, loaded_problem(seeded, known, workers, root))
        except NothingFits as error:
            where = f"launch with train.seed {seeded.train.seed}: " if launches > 1 else ""
            raise type(error)(f"{where}{error.message}", error.hint) from error


def check_steps_of_rank(config: Config, problem: Problem) -> None:
    """On a rank that has loaded its data: refuse a run of which some step does not fit, where `check_plan` could not.

    Raises:
        NothingFits: as `check_steps`; on every rank alike.
    """
    if not data_at_hand(config):
        check_steps(config, problem)


def _unprobed(config: Config) -> Config:
    """Without the cost that a probe still to be made will measure."""
    schedule = config.schedule
    if config.probe.run != "auto" or schedule.cost_type != "measured" or schedule.cost_coefficients is not None:
        return config
    return changed(config, {"schedule.cost_type": "tokens"})
