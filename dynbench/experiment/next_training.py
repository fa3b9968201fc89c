"""What a training run on a probe just made would meet: whether all its steps fit, and if not, what would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynbench.config.change import changed
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.planning import build_problem
from dynbench.engine.run_check import fitting_batch, may_split, total_steps
from dynbench.errors import BatchTooLarge, DynbenchError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import make_policy
from dynbench.workloads.registry import build_workload


@dataclass(frozen=True, slots=True)
class NextTraining:
    """The dynamic run that a probe was made for.

    Attributes:
        global_batch: as asked for.
        steps: of the run, warm-up included.
        stopped_by: the first step that does not fit, or why there is none, in words; None where all fit.
        fitting_batch: the global batch asked for, or the largest one found below it with which all steps fit; None
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
    try:
        return _planned(config, probe, store)
    except DynbenchError as error:
        return NextTraining(config.train.global_batch, total_steps(config), error.message, None, split_fits=False)


def _planned(config: Config, probe: Run, store: RunStore) -> NextTraining:
    dynamic = changed(config, {"schedule.mode": "dynamic", "schedule.capacity": None, "probe.run": probe.id})
    resolved = resolve(dynamic, this_machine(), store)
    config, workload = resolved.config, build_workload(resolved.config)
    multiple = config.workload.pad_to_multiple_of
    assert isinstance(multiple, int), "resolved"
    train, root = workload.train, store.root
    problem = build_problem(config, train.lengths, resolved.workers, multiple, root, workload.positions, train.second)
    asked, steps = config.train.global_batch, total_steps(config)
    misfit = make_policy(config.schedule.policy_name, problem).misfit(steps)
    if misfit is None:
        return NextTraining(asked, steps, None, asked, split_fits=True)
    if not isinstance(misfit, BatchTooLarge):
        return NextTraining(asked, steps, misfit.message, None, split_fits=False)
    found = fitting_batch(config, problem)
    batch = None if found is None else found.global_batch
    return NextTraining(asked, steps, misfit.message, batch, split_fits=may_split(config, problem))
