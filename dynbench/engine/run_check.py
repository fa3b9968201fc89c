"""Whether every step of a run fits into its capacities, found before the first one."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from dynbench.config.schema import Config
from dynbench.errors import BatchTooLarge
from dynbench.schedule.policy import Problem, make_policy, policy_class
from dynbench.schedule.whole_run import Fitting, largest_fitting

_log = logging.getLogger(__name__)
_PATIENCE_S = 2.0


def total_steps(config: Config) -> int:
    """Steps of a run, warm-up included."""
    return config.train.warmup_steps + config.train.steps


def knows_plans(config: Config) -> bool:
    """Whether the plans of all steps are known before the first: not where what is measured on the way decides them.

    Speeds decide how much `prefix` takes from each stream, and so what comes next; elsewhere only who gets what.
    """
    return config.schedule.speeds != "auto" or config.schedule.policy_name != "prefix"


def check_steps(config: Config, problem: Problem) -> None:
    """Refuse a run of which some step does not fit.

    Args:
        config: resolved.
        problem: with the lengths that the ranks plan with.

    Raises:
        BatchTooLarge: the first such step, and the largest global batch with which all of them fit.
        NothingFits: a sample longer than the capacities allow.
    """
    if problem.capacity.unlimited or not knows_plans(config):
        return
    name, steps, told = config.schedule.policy_name, total_steps(config), _Told()
    policy = make_policy(name, problem)
    misfit = policy.misfit(steps, lambda step: told(f"checking that all steps fit: step {step} of {steps}"))
    if misfit is None:
        return
    if not isinstance(misfit, BatchTooLarge):
        raise misfit
    found = fitting_batch(config, problem, told)
    split = ", or schedule.micro_batches=auto" if may_split(config, problem) else ""
    raise BatchTooLarge(misfit.message, f"{_advice(found, problem.global_batch, steps)}{split}.")


def fitting_batch(config: Config, problem: Problem, told: _Told | None = None) -> Fitting | None:
    """The largest global batch below the problem's with which all steps of a run fit; None where there is none."""
    tell = told or _Told()
    return largest_fitting(
        config.schedule.policy_name,
        problem,
        total_steps(config),
        lambda batch: tell(f"looking for the largest global batch that fits: trying {batch}"),
    )


def _advice(found: Fitting | None, asked: int, steps: int) -> str:
    if found is None:
        return (
            f"No global batch below {asked} fits in all {steps} steps: lower workload.max_length, raise the memory "
            "limit and probe again"
        )
    if found.largest:
        return f"Set --global-batch {found.global_batch}, the largest below {asked} that fits in all {steps} steps"
    return (
        f"Set --global-batch {found.global_batch}, which fits in all {steps} steps (of the larger ones, not all were "
        "tried)"
    )


def may_split(config: Config, problem: Problem) -> bool:
    """Whether more micro-batches would make every step fit."""
    schedule = config.schedule
    kind = policy_class(schedule.policy_name)
    alike = isinstance(schedule.capacity, str) or problem.capacity.equal(problem.workers)
    if not (kind.splits and schedule.micro_batches != "auto" and alike):
        return False
    split = replace(problem, micro_batches="auto", capacity=problem.capacity.least())
    return make_policy(schedule.policy_name, split).misfit(total_steps(config)) is None


class _Told:
    """Tells how far a search is, once it takes longer than anybody waits without a word."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + _PATIENCE_S

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _PATIENCE_S
            _log.info("%s", text)
