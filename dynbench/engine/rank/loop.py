"""One step of a real rank: plan, load, compute and synchronise, update, record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbench.config.ranks import Ranks
from dynbench.engine.planning import PlanSource
from dynbench.engine.rank.arm_loop import ArmLoop
from dynbench.engine.rank.exchange import GlobalBatch, PlannedBatch
from dynbench.engine.rank.held_memory import HeldMemory
from dynbench.engine.rank.profile import Profile
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.replica import seed_dropout
from dynbench.engine.rank.row_builder import RowBuilder, extra_values
from dynbench.engine.rank.sent_bytes import SentBytes
from dynbench.engine.rank.told import Told
from dynbench.engine.rank.turns import Moment
from dynbench.engine.whereabouts import ROW
from dynbench.runs.calls import CallWriter
from dynbench.runs.row_writer import RowWriter
from dynbench.schedule.plan import Share
from dynbench.workloads.micro_batch import evened_out


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
