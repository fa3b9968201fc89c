"""Rules over the number of ranks: batches that reach all of them, values given for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import Int8Options, int8_levels
from dynbench.plugins.policies import PrefixOptions

RankRule = Callable[[Config, Ranks], Iterator[str]]


def rank_problems(config: Config, ranks: Ranks) -> list[str]:
    """Every rule broken on these ranks, one line each; where none trains, that alone."""
    if ranks.workers < 1:
        return [
            f"sync.name: {config.sync.name!r} has {ranks.servers} of {ranks.world_size} ranks serve, which leaves none "
            f"that trains; least number of ranks that works: {ranks.servers + 1}"
        ]
    return [problem for rule in RANK_RULES for problem in rule(config, ranks)]


def buffer_size(config: Config, workers: int) -> int:
    """Samples that each of `workers` workers of `prefix` holds (K): as configured, or max(32, B - G + 1)."""
    buffer = options_of(config.schedule, PrefixOptions).buffer
    return buffer if buffer != "auto" else max(32, config.train.global_batch - workers + 1)


def _batch_reaches_every_worker(config: Config, ranks: Ranks) -> Iterator[str]:
    batch, micro = config.train.global_batch, config.schedule.micro_batches
    if batch < ranks.workers:
        yield (
            f"train.global_batch: {batch} is less than the {ranks}, each of which needs a sample; "
            f"nearest that works: {ranks.workers}"
        )
    elif micro != "auto" and batch < ranks.workers * micro:
        yield (
            f"schedule.micro_batches: {micro} on {ranks} need {ranks.workers * micro} samples, "
            f"train.global_batch is {batch}; greatest that works: {batch // ranks.workers}"
        )


def _static_deals_evenly(config: Config, ranks: Ranks) -> Iterator[str]:
    batch, workers = config.train.global_batch, ranks.workers
    if config.schedule.policy_name != "static" or batch < workers or batch % workers == 0:
        return
    below = batch - batch % workers
    yield (
        f"train.global_batch: {batch} cannot be dealt equally to {ranks}, as static must; "
        f"nearest that works: {below} or {below + workers}"
    )


def _buffers_hold_a_batch(config: Config, ranks: Ranks) -> Iterator[str]:
    if config.schedule.policy_name != "prefix":
        return
    batch, held = config.train.global_batch, buffer_size(config, ranks.workers)
    if ranks.workers * held < batch:
        yield (
            f"schedule.buffer: {held} samples on each of {ranks} are {ranks.workers * held}, fewer than "
            f"train.global_batch {batch}; nearest that works: {-(-batch // ranks.workers)}"
        )


def _one_value_per_worker(config: Config, ranks: Ranks) -> Iterator[str]:
    schedule, each = config.schedule, "worker" if ranks.servers else "rank"
    for key, values in (("capacity", schedule.capacity), ("speeds", schedule.speeds)):
        if isinstance(values, tuple) and len(values) != ranks.workers:
            yield f"schedule.{key}: {list(values)} has {len(values)} values for {ranks}; give one per {each}"


def _slowed_ranks_train(config: Config, ranks: Ranks) -> Iterator[str]:
    for rank in config.launch.slowdown:
        if rank >= ranks.world_size:
            yield (
                f"launch.slowdown: there is no rank {rank} among {ranks.world_size}; greatest: {ranks.world_size - 1}"
            )
        elif ranks.serves(rank):
            yield (
                f"launch.slowdown: rank {rank} trains nothing under sync.name {config.sync.name!r}; "
                f"least that works: {ranks.servers}"
            )


def _servers_see_no_loss(config: Config, ranks: Ranks) -> Iterator[str]:
    if ranks.servers and config.train.precision == "fp16":
        yield (
            f"train.precision: 'fp16' scales the loss, which ranks that train nothing under sync.name "
            f"{config.sync.name!r} never see; set it to bf16 or fp32"
        )


def _sums_of_integers_have_levels(config: Config, ranks: Ranks) -> Iterator[str]:
    if config.compress.name != "int8":
        return
    bits = options_of(config.compress, Int8Options).num_bits
    if int8_levels(bits, ranks.workers) < 2:
        other = "compress.num_bits to 8" if int8_levels(8, ranks.workers) >= 2 else "compress.name to fp8 or qsgd"
        yield f"compress.num_bits: {bits} bits have less than 2 levels for each of {ranks}; set {other}"


RANK_RULES: tuple[RankRule, ...] = (
    _batch_reaches_every_worker,
    _static_deals_evenly,
    _buffers_hold_a_batch,
    _one_value_per_worker,
    _slowed_ranks_train,
    _servers_see_no_loss,
    _sums_of_integers_have_levels,
)
