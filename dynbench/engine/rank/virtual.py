"""One process plays every rank in turn: compute is measured, waiting follows from it, communication is a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from dynbench.config.schema import Config
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.plan_check import check_steps_of_rank
from dynbench.engine.planning import SPEEDS_FILE, loaded_problem, step_plans
from dynbench.engine.rank.evaluation import EVAL_FILE, Epochs, Evaluator, Scalars, eval_batch_size, scalars_of
from dynbench.engine.rank.loop import ArmLoop, build_strategy, session
from dynbench.engine.rank.memory import MemoryMeter, MemoryNow
from dynbench.engine.rank.rank_facts import EPOCHS_FILE
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.replica import PlayedStatistics, Replica, gradient_megabytes, seed_dropout
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.engine.rank.timers import Phase, StepTimer
from dynbench.engine.rank.turns import Moment
from dynbench.runs.records import TURN, RowWriter, write_columns
from dynbench.runs.run import Run
from dynbench.schedule.plan import FloatArray, Share
from dynbench.schedule.policy import Planner
from dynbench.workloads.base import Workload
from dynbench.workloads.batches import LossPart


@dataclass(frozen=True, slots=True)
class Played:
    """What one virtual rank did in one step; times in ms as that rank would have needed them."""

    share: Share
    parts: Sequence[LossPart]
    phases: Mapping[Phase, float]
    memory: MemoryNow

    @property
    def compute_ms(self) -> float:
        """Forward and backward."""
        return self.phases["forward"] + self.phases["backward"]

    @property
    def busy_ms(self) -> float:
        """Time before its gradients are ready, planning left out."""
        return self.phases["data"] + self.compute_ms


@dataclass(frozen=True)
class VirtualLoop(ArmLoop):
    """The steps of all virtual ranks under one arm; see `turns.play`.

    Gradients are those of the real run: there losses are multiplied by G / W_t before the mean over G ranks, here by
    1 / W_t in a sum. Every rank has its own random stream per step, as a real one has.
    """

    plans: Planner
    rows: Sequence[RowBuilder]
    writers: Sequence[RowWriter]
    comm_ms: float
    statistics: PlayedStatistics

    def step(self, moment: Moment) -> None:
        """One optimizer step: every rank's part, then one update."""
        step = moment.step
        with self.timer.host("plan"):
            plan = self.plans.plan(step)
        plan_ms = self.timer.take_phases()["plan"]
        weight = sum(self.replica.weight(share) for share in plan.shares)
        scale = 1 / weight if weight else 0.0
        played = [self.play(step, rank, share, scale) for rank, share in enumerate(plan.shares)]
        with self.timer.device("optimizer"):
            self.replica.update()
        phases, _ = self.timer.end_step()
        for rank, part in enumerate(played):
            self.plans.observe(rank, part.share, part.compute_ms)
        self.record(moment, played, plan_ms, phases["optimizer"])

    def average_batch_norm(self) -> None:
        """Those of all virtual ranks become one."""
        self.statistics.average()

    def play(self, step: int, rank: int, share: Share, scale: float) -> Played:
        """Forward and backward of one rank with its own running statistics, its loss times `scale`.

        The device is synchronised before and after.
        """
        self.statistics.begin(rank)
        self.memory.reset()
        with self.timer.host("data"):
            batches = self.replica.load(share)
        seed_dropout(self.config.train.seed, rank, step, self.replica.device)
        self.timer.clock.synchronise()
        parts = self.replica.compute(batches, lambda: scale)
        self.timer.clock.synchronise()
        phases = self.timer.take_phases()
        self.statistics.end(rank, self.replica.take_trained())
        factor = self.config.launch.slowdown.get(rank, 1.0)
        stretched = {**phases, "forward": phases["forward"] * factor, "backward": phases["backward"] * factor}
        return Played(share, parts, stretched, self.memory.now())

    def record(self, moment: Moment, played: Sequence[Played], plan_ms: float, optimizer_ms: float) -> None:
        """Write every rank's row: it waits for the slowest rank, then for the modelled all-reduce."""
        skipped, common = self.replica.precision.take_skipped(), {TURN.name: moment.turn, **self.replica.row()}
        slowest_ms = max(part.busy_ms for part in played)
        step_ms = plan_ms + slowest_ms + self.comm_ms + optimizer_ms
        for part, rows, writer in zip(played, self.rows, self.writers, strict=True):
            phases: dict[Phase, float] = {
                **part.phases,
                "plan": plan_ms,
                "sync": slowest_ms - part.busy_ms + self.comm_ms,
                "optimizer": optimizer_ms,
            }
            row = rows.row(moment, part.share, part.parts, phases, step_ms, part.memory, skipped=skipped)
            extra = {**common, **self.replica.counted(part.parts)}
            writer.write(row, extra)
            self.epochs.add(row, extra)


@contextmanager
def virtual_loop(
    run: Run, config: Config, context: RankContext, workload: Workload, memory: MemoryMeter
) -> Iterator[VirtualLoop]:
    """The loop of all virtual ranks; their row files are closed on the way out."""
    root, world_size = run.path.parent, config.launch.world_size
    assert world_size is not None, "resolved before the launch"
    train, policy = workload.train, config.schedule.policy_name
    problem = loaded_problem(config, workload, world_size, root)
    check_steps_of_rank(config, problem)
    timer = StepTimer(context.device, context.position.at)
    with session(build_strategy(config, context.device)) as strategy, ExitStack() as files:
        replica = Replica(config, workload, context.device, timer, strategy)
        columns = [TURN, *replica.columns]
        comm_model = build_comm_model(config.launch.comm_model, root)
        names = [column.name for column in columns]
        write_columns(run.ranks_dir, columns)
        scalars = files.enter_context(scalars_of(config, run, writes=True))
        drawn = [scalars, *(Scalars() for _ in range(1, world_size))]
        file, batch = run.path / EVAL_FILE, eval_batch_size(config, problem, workload)
        evaluator = Evaluator(config, workload, context.device, file, batch=batch, also=scalars.evaluation)
        yield VirtualLoop(
            config=config,
            plans=step_plans(config, problem, _in_order, run.path / SPEEDS_FILE),
            replica=replica,
            timer=timer,
            memory=memory,
            rows=[RowBuilder(rank, policy, config.workload.layout, train.lengths) for rank in range(world_size)],
            writers=[
                files.enter_context(RowWriter(run.rank_file(rank), names, also.row)) for rank, also in enumerate(drawn)
            ],
            evaluator=evaluator,
            epochs=Epochs(config.train, file=run.ranks_dir / EPOCHS_FILE),
            statistics=PlayedStatistics(replica.model, world_size),
            comm_ms=comm_model.allreduce_ms(gradient_megabytes(replica.model), world_size),
        )


def _in_order(paces: Mapping[int, float]) -> FloatArray:
    """The paces of all ranks, shape [G]; this process plays them all."""
    return np.array([paces[rank] for rank in sorted(paces)])
