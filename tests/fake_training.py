"""What stands in for the launches of a comparison: rows that are written at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from made_rows import write_rows

from dynbench.config.schema import Config, dump_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import WorkerFailed
from dynbench.experiment.training import LaunchedArm, TrainingResult
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

RECIPE = """\
description: two arms
settings:
  workload: {dropout: 0.0}
  train: {steps: 6, warmup_steps: 1, global_batch: 8}
  launch: {launcher: torchrun, nproc: 2, threads: 1, device: cpu}
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic, schedule.policy: partition}
launches: {count: 4, mode: apart}
"""


@dataclass
class FakeTraining:
    """Stands in for `run_arms`: writes rows at once, and fails when it is told to.

    Attributes:
        fail_at: number of the call (from 0) that raises.
        calls: (name, policy, seed) of every call.
        data: what the provenance says about the data; data that is another now is not planned offline.
    """

    fail_at: int | None = None
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    data: dict[str, object] = field(default_factory=lambda: {"fingerprint": "f"})

    def __call__(
        self, arms: Sequence[LaunchedArm], store: RunStore, *, on_made: Callable[[Sequence[Run]], None], **_: object
    ) -> list[TrainingResult]:
        made = [store.create("train", arm.config.schedule.policy_name, **arm.naming) for arm in arms]
        on_made(made)
        together = {"together": {"id": made[0].id}} if len(made) > 1 else {}
        for arm, run in zip(arms, made, strict=True):
            self.train(arm.config, run, str(arm.naming["name"]), together)
        return [TrainingResult(run, {}) for run in made]

    def step_ms(self, config: Config) -> float:
        """Of the run that was begun last."""
        slow = 200.0 if config.schedule.mode == "static" else 100.0
        return slow + config.train.seed + 0.1 * len(self.calls)

    def train(self, config: Config, run: Run, name: str, together: Mapping[str, object]) -> None:
        """The run of one arm."""
        self.calls.append((name, config.schedule.policy_name, config.train.seed))
        write_text(run.config_file, dump_config(resolve(config, this_machine(), RunStore(run.path.parent)).config))
        write_json(run.env_file, {"data": self.data, "cpu_cores": {"usable": 2}, **together})
        run.update(status=Status.RUNNING)
        if len(self.calls) - 1 == self.fail_at:
            run.update(status=Status.FAILED)
            error = WorkerFailed("rank 1 died")
            error.run_path = run.path
            raise error
        write_rows(run, 7, lambda *_: self.step_ms(config), policy=config.schedule.policy_name)
        run.update(status=Status.COMPLETED)
