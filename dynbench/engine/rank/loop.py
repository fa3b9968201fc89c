"""The loop over steps of one arm, and a rank that trains with others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from dynbench.compress.base import Compressor
from dynbench.compress.gathered import gatherer_of
from dynbench.config.part_rules import ahead
from dynbench.config.ranks import Ranks, ranks_of
from dynbench.config.schema import Config
from dynbench.engine import planning
from dynbench.engine.failure import RECORDING
from dynbench.engine.plan_check import check_steps_of_rank, total_steps
from dynbench.engine.rank import exchange
from dynbench.engine.rank.evaluation import EVAL_FILE, Epochs, Evaluator, eval_batch_size, scalars_of
from dynbench.engine.rank.memory import HeldMemory, MemoryMeter
from dynbench.engine.rank.profile import Profile, profiled_steps
from dynbench.engine.rank.rank_facts import EPOCHS_FILE
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.replica import Replica, average_statistics, seed_dropout, warn_of_unequal_numbers
from dynbench.engine.rank.row_builder import RowBuilder, SentBytes, can_count, extra_columns, extra_values
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.turns import Moment
from dynbench.errors import UsageError
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.policies import PrefixOptions
from dynbench.plugins.strategies import ShardOptions
from dynbench.runs.records import CallWriter, RowWriter, StepRow, write_columns
from dynbench.runs.run import Run
from dynbench.schedule.plan import Share
from dynbench.schedule.policy import Problem, policy_class
from dynbench.sync.base import Local, Strategy
from dynbench.wire.base import NullWire, QueuedWire, Wire, null_group
from dynbench.wire.channel import Channel, Link
from dynbench.workloads.base import Expects, Workload
from dynbench.workloads.batches import evened_out

_log = logging.getLogger(__name__)
LOGGED_STEPS = 10
"""Of a run, about."""


@dataclass(frozen=True)
class ArmLoop:
    """The loop of one arm, which `turns.play` drives; but for its step."""

    config: Config
    replica: Replica
    timer: StepTimer
    memory: MemoryMeter
    evaluator: Evaluator
    epochs: Epochs

    def step(self, moment: Moment) -> None:
        """Run, measure and write one optimizer step."""
        raise NotImplementedError

    def restart(self) -> None:
        """Begin the next step now, leaving out what was done since the last one ended."""
        self.timer.restart()

    def due(self, step: int) -> bool:
        """Whether to evaluate or save after `step`, or an epoch ends with it."""
        return self.evaluator.due(step) or self.epochs.ends(step)

    def evaluate(self, step: int) -> None:
        """Evaluate and save after `step`, and say what came of the epoch that it ends."""
        self.average_batch_norm()
        self.epochs.end(step, self.evaluator.after(step, self.replica.strategy, self.replica.precision))

    def average_batch_norm(self) -> None:
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
    """The steps of one rank under one arm; see `turns.play`.

    Ranks end every step at one time, because none gets past the gradients of the others; but under strategies that
    step apart.
    """

    context: RankContext
    ranks: Ranks
    plans: planning.PlanSource
    rows: RowBuilder
    writer: RowWriter
    logs: bool
    """Whether some of its steps are logged, evenly over the run."""
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
        self.sent.take()

    def step(self, moment: Moment) -> None:
        """One optimizer step, measured and written."""
        train, strategy, step = self.config.train, self.replica.strategy, moment.step
        if self.profile.begin(step):
            self.restart()
        self.memory.reset()
        with self.timer.host("plan"):
            share, shares = self.plans.share(step)
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
        self.context.position.at(RECORDING)
        self.plans.observe(share, phases["forward"] + phases["backward"])
        if self.fixed_batch:
            total.check(train.global_batch, step)
        memory, skipped = self.memory.now(), self.replica.precision.take_skipped()
        row = self.rows.row(moment, share, parts, phases, step_ms, memory, skipped=skipped)
        traffic = strategy.wire.take()
        repeated, sent = len(batches) - len(share), self.sent.take()
        extra = extra_values(self.replica, moment, parts, repeated, traffic, self.timer.synchronised, sent)
        self.writer.write(row, extra)
        self.calls.write(step, traffic.calls)
        self.profile.end(step)
        self.epochs.add(row, extra)
        if self.logs:
            self._log_step(row)

    def _log_step(self, row: StepRow) -> None:
        done, steps = row.step + 1, total_steps(self.config)
        if done % max(1, steps // LOGGED_STEPS) == 0 or done == steps:
            loss = f"loss {row.loss:.4f} over the {row.local_batch} samples of this rank"
            _log.info("step %d of %d: %s, %.1f ms", done, steps, loss, row.step_time_ms)

    def _total(self, share: Share, shares: Sequence[Share] | None) -> exchange.GlobalBatch:
        """What all ranks train on in the step; exchanged, unless ranks step apart by plans that all know."""
        if self.replica.strategy.steps_apart and shares is not None:
            return exchange.PlannedBatch(shares, self.replica.weight)
        samples, weight = sum(len(ids) for ids in share), self.replica.weight(share)
        return exchange.GlobalBatch(samples, weight, self.ranks.workers)


@contextmanager
def session(strategy: Strategy) -> Iterator[Strategy]:
    """Closes a strategy where all went well.

    A rank that fails leaves it open and ends: the others notice when its group goes, and by then find the cause.
    """
    yield strategy
    strategy.close()


def build_wire(config: Config, device: torch.device) -> Wire:
    """A wire over a process group of its own, which sends what the `compress` section says; a collective.

    Or, with `sync.communicate: false`, one that sends nothing, where nothing is compressed either.
    """
    if not config.sync.communicate:
        entry = STRATEGIES.find(config.sync.name)
        group = null_group() if entry.moments == "divided" else None  # whose ranks hold their part here too
        return NullWire(dist.get_rank(), dist.get_world_size(), group, echoes=not entry.whole)
    channel = Channel.of_its_own(device, timedelta(seconds=config.launch.timeout_s))
    if options_of(config.sync, ShardOptions).reduce_scatter == "native":
        channel.native_reduce_scatter = True
    if config.launch.link_gbps is not None:
        if device.type == "cuda" or config.launch.nnodes > 1:  # GPUs go on before a host would have waited
            raise UsageError(
                f"launch.link_gbps: {config.launch.link_gbps:g}, but a link is emulated on CPUs of one node only",
                "Leave it out, or --set launch.device=cpu on one node.",
            )
        channel.link = Link(config.launch.link_gbps)
    compressor: Compressor | None = COMPRESSORS.find(config.compress.name).load()(config.compress)
    gatherer = gatherer_of(config.compress.gather)
    return Wire(channel, gatherer) if compressor is None else QueuedWire(channel, compressor, gatherer)


def build_strategy(config: Config, device: torch.device) -> Strategy:
    """The strategy `sync.name` on a wire of its own, or what virtual ranks play instead; of real ranks a collective."""
    if config.launch.launcher == "virtual":
        return Local(config.sync)
    strategy: Strategy = STRATEGIES.find(config.sync.name).load()(config.sync, build_wire(config, device))
    return strategy


@contextmanager
def real_loop(
    run: Run, config: Config, context: RankContext, workload: Workload, memory: MemoryMeter
) -> Iterator[Loop]:
    """The loop of this process's rank; its row file is closed on the way out."""
    train, ranks = workload.train, ranks_of(config, context.world_size)
    problem = planning.loaded_problem(config, workload, ranks.workers, run.path.parent)
    check_steps_of_rank(config, problem)
    timer = StepTimer(context.device, context.position.at, config.launch.timeout_s)
    profiled = profiled_steps(config.train.warmup_steps, config.train.profile_steps)
    policy = config.schedule.policy_name
    with session(build_strategy(config, context.device)) as strategy, ExitStack() as files:
        replica = Replica(
            config, workload, context.device, timer, strategy, slowdown=config.launch.slowdown.get(context.rank, 1.0)
        )
        warn_of_unequal_numbers(config, replica.model)
        columns = extra_columns(replica)
        if context.local_rank == 0:
            write_columns(run.ranks_dir, columns)
        first_worker = context.rank == ranks.servers
        scalars = files.enter_context(scalars_of(config, run, writes=first_worker))
        writer = RowWriter(run.rank_file(context.rank), [column.name for column in columns], scalars.row)
        files.enter_context(writer)
        evaluator = Evaluator(
            config,
            workload,
            context.device,
            file=run.path / EVAL_FILE if context.is_first else None,
            shard=shard_of(context.rank, strategy.evaluators()),
            sum_over_ranks=exchange.sum_over_ranks,
            batch=eval_batch_size(config, problem, workload),
            equal_batches=strategy.collective_forward,
            also=scalars.evaluation,
        )
        lines = run.ranks_dir / EPOCHS_FILE if context.is_first else None
        epochs = Epochs(config.train, exchange.sum_over_ranks, ranks.servers, first_worker, lines, strategy.timed)
        yield Loop(
            config=config,
            context=context,
            ranks=ranks,
            plans=plan_source(config, workload, problem, context.rank, ranks, run),
            replica=replica,
            timer=timer,
            memory=memory,
            rows=RowBuilder(context.rank, policy, config.workload.layout, train.lengths),
            writer=writer,
            calls=files.enter_context(CallWriter(run.calls_file(context.rank))),
            sent=SentBytes(context.device.type == "cpu" and can_count()),
            held=HeldMemory(run, context.rank, replica, memory, wanted=config.train.memory_parts),
            profile=Profile(run, context.rank, context.device, profiled, exchange.wait_for_all),
            logs=first_worker,
            evaluator=evaluator,
            epochs=epochs,
            fixed_batch=policy_class(policy).fixed_batch,
        )


def plan_source(
    config: Config, workload: Workload, problem: Problem, rank: int, ranks: Ranks, run: Run
) -> planning.PlanSource:
    """Plans made on every worker, or on the first of them from gathered costs; a collective.

    A workload whose threads prepare the next step gets it ahead.
    """
    group = exchange.group_of_workers(ranks, config.launch.timeout_s)
    if ranks.serves(rank):
        return planning.PlanSource()
    worker = ranks.worker(rank)
    if options_of(config.schedule, PrefixOptions).exchange == "gather":
        plans: planning.PlanSource = exchange.GatheredPlans(problem, worker, group)
    else:
        file = run.path / planning.SPEEDS_FILE if worker == 0 else None
        every = planning.step_plans(config, problem, lambda paces: exchange.all_floats(paces[worker], group), file)
        plans = planning.ReplicatedPlans(every, worker)
    if ahead(config) and isinstance(workload, Expects):
        return planning.PlansAhead(plans, workload.expect, total_steps(config))
    return plans


def shard_of(rank: int, sharing: Sequence[int]) -> tuple[int, int] | None:
    """The place of a rank among those that share an evaluation, and their number; None for the others."""
    return (sharing.index(rank), len(sharing)) if rank in sharing else None
