"""The step loop of one real rank: plan, load, compute and synchronise, update, record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config, Train
from dynbench.engine.planning import PlanSource
from dynbench.engine.rank.evaluation import Evaluator
from dynbench.engine.rank.exchange import GlobalBatch
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.replica import Replica, seed_dropout
from dynbench.engine.rank.row_builder import RowBuilder, extra_values
from dynbench.engine.rank.timers import StepTimer
from dynbench.runs.row_writer import RowWriter
from dynbench.workloads.micro_batch import evened_out


def run_steps(
    train: Train,
    step: Callable[[int], None],
    evaluate: Callable[[int], bool],
    restart: Callable[[], None],
    stop: StopFlag,
) -> None:
    """All steps, or as many as are done when a signal asks to stop.

    Args:
        train: how many steps.
        step: runs, measures and writes one step.
        evaluate: evaluates after a step if that is due, and says whether it did; its time is left out.
        restart: begins to measure anew, for steps are measured from the end of the one before.
        stop: tells of the signal.
    """
    with stop.defer():
        restart()
        for number in range(train.warmup_steps + train.steps):
            step(number)
            if stop.signum is not None:
                return
            if evaluate(number):
                restart()


@dataclass(frozen=True)
class Loop:
    """The steps of one rank.

    Ranks end every step together, because none gets past the gradients of the others.
    """

    config: Config
    context: RankContext
    ranks: Ranks
    plans: PlanSource
    replica: Replica
    timer: StepTimer
    memory: MemoryMeter
    rows: RowBuilder
    writer: RowWriter
    evaluator: Evaluator
    stop: StopFlag
    fixed_batch: bool
    """Every step has `train.global_batch` samples."""

    def run(self) -> None:
        """Warm-up and measured steps."""
        run_steps(self.config.train, self.step, self.evaluate, self.restart, self.stop)

    def evaluate(self, step: int) -> bool:
        """Evaluate after `step` if that is due."""
        return self.evaluator.evaluate_if_due(step, self.replica.strategy, self.replica.precision)

    def restart(self) -> None:
        """Begin the next step now, leaving out what was done and sent since the last one ended."""
        self.timer.restart()
        self.replica.strategy.wire.take()

    def step(self, step: int) -> None:
        """One optimizer step, measured and written."""
        train, strategy = self.config.train, self.replica.strategy
        self.memory.reset()
        with self.timer.host("plan"):
            share = self.plans.share(step)
        total = GlobalBatch(sum(len(ids) for ids in share), self.replica.weight(share), len(share), self.ranks.workers)
        with self.timer.host("data"):
            batches = self.replica.load(share)
        if batches and strategy.collective_forward:
            batches = evened_out(batches, total.most_micro_batches())
        if batches:
            seed_dropout(train.seed, self.ranks.worker(self.context.rank), step, self.context.device)
        parts = self.replica.compute(batches, total.scale)
        with self.timer.device("optimizer"):
            self.replica.update()
        phases, step_ms = self.timer.end_step()
        self.plans.observe(share, phases["forward"] + phases["backward"])
        if self.fixed_batch:
            total.check(train.global_batch, step)
        self.writer.write(
            self.rows.row(
                step,
                share,
                parts,
                phases,
                step_ms=step_ms,
                peak_mem_mb=self.memory.peak_mb(),
                reserved_mem_mb=self.memory.reserved_mb(),
                skipped=self.replica.precision.take_skipped(),
            ),
            extra_values(self.replica, len(batches) - len(share)),
        )
