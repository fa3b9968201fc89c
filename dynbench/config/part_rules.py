"""Rules within one section: data, training, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dynbench.config.image_rules import known_entry
from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config, Workload
from dynbench.plugins import DATASETS, STRATEGIES, WORKLOADS, options_of
from dynbench.plugins.compressor_options import Int8Options, int8_levels
from dynbench.plugins.datasets import FileOptions, SecondOptions, TextFileOptions
from dynbench.plugins.policies import PrefixOptions


def _data_files(config: Config) -> Iterator[str]:
    workload, files = config.workload, options_of(config.workload, TextFileOptions)
    dataset = DATASETS[workload.dataset]
    if dataset.of_files and files.data_path is None:
        kind = "folder" if dataset.folder else "file"
        yield (
            f"workload.data_path: null, but dataset {workload.dataset!r} reads a {kind}; "
            f"name it (--data-path {kind.upper()})"
        )
    options = (*FileOptions.model_fields, *SecondOptions.model_fields)
    asked = {option: (getattr(workload, option), DATASETS.readers(option)) for option in options}
    texts = [name for name, entry in DATASETS.items() if entry.of_files and entry.of_texts]
    asked["tokenizer"] = (workload.tokenizer, [workload.dataset] if dataset.of_texts else texts)
    for key, (value, readers) in asked.items():
        if value is not None and workload.dataset not in readers and not workload.runs_own_code:
            fitting = [name for name in readers if _fits(workload, name)]
            last = " or ".join(fitting[-2:])
            others = f"set workload.dataset to {', '.join([*fitting[:-2], last])}, or " if fitting else ""
            yield (f"workload.{key}: {value!r} is not read by dataset {workload.dataset!r}; {others}leave it out")
    if files.text_column == files.label_column:
        yield f"workload.label_column: {files.label_column!r} is the text column too; name another"


def _fits(workload: Workload, dataset: str) -> bool:
    """Whether a data set has what the workload learns from, as far as is known."""
    entry = WORKLOADS.get(workload.name)
    return entry is None or entry.samples in DATASETS[dataset].samples


def _labels_are_there(config: Config) -> Iterator[str]:
    workload = config.workload
    if workload.runs_own_code or DATASETS[workload.dataset].classes or not WORKLOADS[workload.name].classes:
        return
    named = [name for name, entry in WORKLOADS.items() if not entry.classes]
    yield (
        f"workload.dataset: {workload.dataset!r} has texts without labels, which {workload.name} is to learn; "
        f"set workload.name to {' or '.join(named)} (--workload), or name a data set with labels"
    )


def _the_data_are_of_the_workloads_kind(config: Config) -> Iterator[str]:
    entry, dataset = known_entry(config), DATASETS[config.workload.dataset]
    if entry is None or entry.samples in dataset.samples:
        return
    fitting = [name for name, other in DATASETS.items() if entry.samples in other.samples]
    yield (
        f"workload.dataset: {dataset.name!r} has {' or '.join(dataset.samples)}, and {entry.name} learns from "
        f"{entry.samples}; set it to {' or '.join(fitting)} (--dataset), or name another workload (--workload)"
    )


DATA_RULES = (_data_files, _labels_are_there, _the_data_are_of_the_workloads_kind)


def _learning_rate_gets_up(config: Config) -> Iterator[str]:
    train = config.train
    if train.epochs is not None and train.steps == type(train).model_fields["steps"].default:
        return  # how many steps there are is decided later
    most = train.warmup_steps + train.steps
    if train.lr_warmup_steps > most:
        yield (
            f"train.lr_warmup_steps: {train.lr_warmup_steps} steps, but there are {most} (train.warmup_steps + "
            f"train.steps), so that the learning rate never gets to its full value; greatest that works: {most}"
        )


def _steps_can_be_profiled(config: Config) -> Iterator[str]:
    train = config.train
    if train.profile_steps and config.launch.launcher == "virtual":
        yield (
            f"train.profile_steps: {train.profile_steps}, but one process plays all virtual ranks in turn; "
            "set it to 0, or launch.launcher to torchrun"
        )
    if train.profile_steps and train.profile_steps >= train.warmup_steps:
        yield (
            f"train.profile_steps: {train.profile_steps} of {train.warmup_steps} steps of the warm-up, and its first "
            f"is never profiled; set train.warmup_steps to {train.profile_steps + 1} or more"
        )


def _a_model_can_be_saved(config: Config) -> Iterator[str]:
    if not config.train.save_model:
        return
    if config.workload.runs_own_code:
        yield f"train.save_model: true, but code of your own makes the model of {config.workload.name}; save it there"
    if not config.sync.trains:
        yield f"train.save_model: true, but with {config.sync.silent} no model is trained; change either"


def _there_is_communication_to_leave_out(config: Config) -> Iterator[str]:
    if not config.train.exposed:
        return
    strategy = STRATEGIES.get(config.sync.name)
    if config.launch.launcher == "virtual":
        yield "train.exposed: true, but virtual ranks send nothing to each other; set launch.launcher to torchrun"
    if not config.sync.trains:
        yield f"train.exposed: true, but {config.sync.silent} sends nothing already; change either"
    if strategy is not None and strategy.servers:
        yield (
            f"train.exposed: true, but under sync.name {config.sync.name!r} a server steps by what workers send; set "
            "it to false, or choose another strategy"
        )
    if config.train.profile_steps:
        yield (
            f"train.exposed: true, but a profiler (train.profile_steps: {config.train.profile_steps}) is of the whole "
            "process, in which two trainings take turns; set one of them to its default"
        )


def _memory_is_counted_out_of_what_is_measured(config: Config) -> Iterator[str]:
    if config.train.memory_parts and config.launch.launcher == "virtual":
        yield "train.memory_parts: true, but one process plays all virtual ranks; set launch.launcher to torchrun"
    if config.train.memory_parts and not config.train.warmup_steps:
        yield "train.memory_parts: true, but there is no warm-up to count in; set train.warmup_steps to 1 or more"


TRAIN_RULES = (
    _learning_rate_gets_up,
    _steps_can_be_profiled,
    _a_model_can_be_saved,
    _there_is_communication_to_leave_out,
    _memory_is_counted_out_of_what_is_measured,
)


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
