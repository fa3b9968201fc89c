"""A rank that trains with others, and how it is wired to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from dynbench.compress.base import Compressor
from dynbench.config.image_rules import ahead
from dynbench.config.ranks import Ranks, ranks_of
from dynbench.config.schema import Config
from dynbench.engine.plan_check import check_steps_of_rank, total_steps
from dynbench.engine.planning import NoPlans, PlansAhead, PlanSource, ReplicatedPlans, build_problem
from dynbench.engine.rank.batch_norm import warn_of_unequal_numbers
from dynbench.engine.rank.evaluation import EVAL_FILE, Epochs, Evaluator, evaluated_together
from dynbench.engine.rank.exchange import GatheredPlans, all_floats, group_of_workers, sum_over_ranks, wait_for_all
from dynbench.engine.rank.held_memory import HeldMemory
from dynbench.engine.rank.loop import Loop
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.profile import Profile, profiled_steps
from dynbench.engine.rank.rank_facts import Told, epochs_file
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.row_builder import RowBuilder, SentBytes, can_count, extra_columns
from dynbench.engine.rank.scalars import scalars_of
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.speeds import SPEEDS_FILE, step_plans
from dynbench.errors import UsageError
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.policies import PrefixOptions
from dynbench.plugins.strategies import ShardOptions
from dynbench.runs.columns import write_columns
from dynbench.runs.row_writer import CallWriter, RowWriter
from dynbench.runs.run import Run
from dynbench.schedule.policy import Problem, policy_class
from dynbench.sync.base import Local, Strategy
from dynbench.wire.base import NullWire, PlainWire, Wire, silent_group
from dynbench.wire.channel import Channel, Link
from dynbench.wire.queued import QueuedWire
from dynbench.workloads.base import Expects, Workload


@contextmanager
def session(strategy: Strategy) -> Iterator[Strategy]:
    """Closes a strategy where all went well.

    A rank that fails leaves it open and ends: the others notice when its group goes, and find the cause told by then.
    """
    yield strategy
    strategy.close()


def build_wire(config: Config, device: torch.device) -> Wire:
    """A wire over a process group of its own, with the compressor of `compress.name` in it; a collective.

    Or, with `sync.communicate: false`, one that sends nothing, where nothing is compressed either.
    """
    if not config.sync.communicate:
        entry = STRATEGIES.find(config.sync.name)
        silent = silent_group() if entry.moments == "divided" else None  # whose ranks hold their part here too
        return NullWire(dist.get_rank(), dist.get_world_size(), silent, echoes=not entry.whole)
    channel = Channel.of_its_own(device, timedelta(seconds=config.launch.timeout_s))
    if options_of(config.sync, ShardOptions).reduce_scatter == "native":
        channel.native_reduce_scatter = True
    if config.launch.link_gbps is not None:
        if device.type == "cuda" or config.launch.nnodes > 1:  # GPUs go on before a host would have waited
            asked = f"launch.link_gbps: {config.launch.link_gbps:g}, but a link is emulated on CPUs of one node only"
            raise UsageError(asked, "Leave it out, or --set launch.device=cpu on one node.")
        channel.link = Link(config.launch.link_gbps)
    compressor: Compressor | None = COMPRESSORS.find(config.compress.name).load()(config.compress)
    return PlainWire(channel) if compressor is None else QueuedWire(channel, compressor)


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
    multiple = config.workload.pad_to_multiple_of
    assert isinstance(multiple, int), "resolved before the launch"
    train, ranks = workload.train, ranks_of(config, context.world_size)
    root, positions = run.path.parent, workload.positions
    problem = build_problem(config, train.lengths, ranks.workers, multiple, root, positions, train.second)
    check_steps_of_rank(config, problem)
    timer = StepTimer(context.device, context.whereabouts.at, config.launch.timeout_s)
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
        yield Loop(
            config=config,
            context=context,
            ranks=ranks,
            plans=ahead_of(config, workload, plan_source(config, problem, context.rank, ranks, run)),
            replica=replica,
            timer=timer,
            memory=memory,
            rows=RowBuilder(context.rank, policy, config.workload.layout, train.lengths),
            writer=writer,
            calls=files.enter_context(CallWriter(run.calls_file(context.rank))),
            sent=SentBytes(context.device.type == "cpu" and can_count()),
            held=HeldMemory(run, context.rank, replica, memory, wanted=config.train.memory_parts),
            profile=Profile(run, context.rank, context.device, profiled, wait_for_all),
            told=Told(total_steps(config), says=first_worker),
            epochs=Epochs(
                config.train,
                sum_over_ranks,
                timed=ranks.servers,
                says=first_worker,
                file=epochs_file(run) if context.is_first else None,
            ),
            evaluator=Evaluator(
                config,
                workload,
                context.device,
                shard=shard_of(context.rank, strategy.evaluators()),
                sum_over_ranks=sum_over_ranks,
                file=run.path / EVAL_FILE if context.is_first else None,
                batch=evaluated_together(config, problem, workload),
                equal_batches=strategy.collective_forward,
                also=scalars.evaluation,
            ),
            fixed_batch=policy_class(policy).fixed_batch,
        )


def plan_source(config: Config, problem: Problem, rank: int, ranks: Ranks, run: Run) -> PlanSource:
    """Plans made on every worker, or on the first of them from gathered costs; a collective."""
    group = group_of_workers(ranks, config.launch.timeout_s)
    if ranks.serves(rank):
        return NoPlans()
    worker = ranks.worker(rank)
    if options_of(config.schedule, PrefixOptions).exchange == "gather":
        return GatheredPlans(problem, worker, group)
    speeds_file = run.path / SPEEDS_FILE if worker == 0 else None
    plans = step_plans(config, problem, lambda paces: all_floats(paces[worker], group), speeds_file)
    return ReplicatedPlans(plans, worker)


def ahead_of(config: Config, workload: Workload, plans: PlanSource) -> PlanSource:
    """The plans, which tell a workload of the next step where its threads prepare that."""
    if not ahead(config) or not isinstance(workload, Expects):
        return plans
    return PlansAhead(plans, workload.expect, total_steps(config))


def shard_of(rank: int, sharing: Sequence[int]) -> tuple[int, int] | None:
    """The place of a rank among those that share an evaluation, and their number; None for the others."""
    return (sharing.index(rank), len(sharing)) if rank in sharing else None
