"""The loop over steps, of one arm and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config
from dynbench.engine.planning import PlanSource
from dynbench.engine.rank.batch_norm import average_statistics
from dynbench.engine.rank.evaluation import Epochs, Evaluator
from dynbench.engine.rank.exchange import GlobalBatch, PlannedBatch
from dynbench.engine.rank.held_memory import HeldMemory
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.profile import Profile
from dynbench.engine.rank.rank_facts import Told
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.replica import Replica, seed_dropout
from dynbench.engine.rank.row_builder import RowBuilder, SentBytes, extra_values
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.turns import Moment
from dynbench.engine.whereabouts import ROW
from dynbench.runs.row_writer import CallWriter, RowWriter
from dynbench.schedule.plan import Share
from dynbench.workloads.batches import evened_out


@dataclass(frozen=True)
class ArmLoop:
    """The loop of one arm, but for its step; see `turns.Player`."""

    config: Config
    replica: Replica
    timer: StepTimer
    memory: MemoryMeter
    evaluator: Evaluator
    epochs: Epochs

    def restart(self) -> None:
        """Begin the next step now, leaving out what was done since the last one ended."""
        self.timer.restart()

    def due(self, step: int) -> bool:
        """Whether to evaluate or save after `step`, or an epoch ends with it."""
        return self.evaluator.due(step) or self.epochs.ends(step)

    def evaluate(self, step: int) -> None:
        """Evaluate and save after `step`, and say what came of the epoch that it ends."""
        self.make_statistics_one()
        found = self.evaluator.after(step, self.replica.strategy, self.replica.precision)
        self.epochs.end(step, found)

    def make_statistics_one(self) -> None:
        """Give all ranks one set of batch normalisation's running statistics."""
        trained, sum_over_ranks = self.replica.take_trained(), self.evaluator.sum_over_ranks
        average_statistics(self.replica.strategy.model, trained, sum_over_ranks)

    def is_between_steps(self) -> bool:
        """Whether what `interrupted` keeps is whole: the weights of the last step, or those where ranks last met."""
        return not self.replica.stepping or self.replica.strategy.steps_apart

    def interrupted(self, step: int) -> None:
        """Keep what there is after `step`, the last one that a signal left time for: statistics of this rank's own."""
        self.evaluator.interrupted(step, self.replica.strategy)

    def enter(self) -> None:
        """From here on, what is allocated is this arm's."""
        self.memory.enter()

    def leave(self) -> None:
        """Up to here it was."""
        self.memory.leave()


@dataclass(frozen=True)
class Loop(ArmLoop):
    """The steps of one rank under one arm; a `turns.Player`.

    Ranks end every step together, because none gets past the gradients of the others; but under strategies that
    step apart.
    """

    context: RankContext
    ranks: Ranks
    plans: PlanSource
    rows: RowBuilder
    writer: RowWriter
    told: Told
    calls: CallWriter
    sent: SentBytes
    profile: Profile
    held: HeldMemory
    fixed_batch: bool
    """Every step has `train.global_batch` samples."""

    def restart(self) -> None:
        """Begin the next step now, leaving out what was done and sent since the last one ended."""
        super().restart()
        self.replica.strategy.wire.take()
        self.sent.restart()

    def step(self, moment: Moment) -> None:
        """One optimizer step, measured and written."""
        train, strategy, step = self.config.train, self.replica.strategy, moment.step
        if self.profile.begin(step):
            self.restart()
        self.memory.reset()
        with self.timer.host("plan"):
            share = self.plans.share(step)
        shares = self.plans.all_shares()
        total = self._total(share, shares)
        with self.timer.host("data"):
            batches = self.replica.load(share)
        if batches and strategy.collective_forward:
            batches = evened_out(batches, max(map(len, shares or (share,))))
        if batches:
            seed_dropout(train.seed, self.ranks.worker(self.context.rank), step, self.context.device)
        with self.held.computing():
            parts = self.replica.compute(batches, total.scale)
        with self.timer.device("optimizer"):
            self.replica.update(self.held.stepped)
        if moment.leaving:
            with self.timer.device("sync"):
                strategy.drain()
        phases, step_ms = self.timer.end_step()
        self.context.whereabouts.at(ROW)
        self.plans.observe(share, phases["forward"] + phases["backward"])
        if self.fixed_batch:
            total.check(train.global_batch, step)
        row = self.rows.row(
            moment,
            share,
            parts,
            phases,
            step_ms=step_ms,
            peak_mem_mb=self.memory.peak_mb(),
            reserved_mem_mb=self.memory.reserved_mb(),
            skipped=self.replica.precision.take_skipped(),
        )
        traffic = strategy.wire.take()
        extra = extra_values(
            self.replica,
            moment,
            parts,
            len(batches) - len(share),
            traffic,
            self.timer.synchronised,
            self.sent.take(),
        )
        self.writer.write(row, extra)
        self.calls.write(step, traffic.calls)
        self.profile.end(step)
        self.epochs.add(row, extra)
        self.told.step(row)

    def _total(self, share: Share, shares: Sequence[Share] | None) -> GlobalBatch:
        """What all ranks train on in the step; asked of them where ranks do not step apart by plans that all know."""
        if self.replica.strategy.steps_apart and shares is not None:
            return PlannedBatch(shares, self.replica.weight)
        samples, weight = sum(len(ids) for ids in share), self.replica.weight(share)
        return GlobalBatch(samples, weight, self.ranks.workers)
