"""Rules within one section: data, images, training, batches and windows, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config, Train, changed
from dynbench.plugins import DATASETS, POLICIES, STRATEGIES, WORKLOADS, options_of
from dynbench.plugins.compressors import Int8Options, int8_levels
from dynbench.plugins.datasets import FileOptions, SecondOptions, TextFileOptions
from dynbench.plugins.policies import PrefixOptions, whole_windows
from dynbench.plugins.workloads import ImageOptions, WorkloadEntry

Problems = Mapping[str, object]
"""Lines on what cannot work, each opening with the dotted key to change, to whether that is so here."""


def known_entry(config: Config) -> WorkloadEntry | None:
    """The workload's entry; None for code of the user's own, which nothing is known of."""
    return None if config.workload.runs_own_code else WORKLOADS[config.workload.name]


def has_lengths(config: Config) -> bool:
    """Whether samples differ in length, as far as is known."""
    entry = known_entry(config)
    return entry is None or entry.lengths is not None


def lengths_are_there(config: Config) -> Problems:
    """Policies and layouts that need samples of different lengths."""
    if has_lengths(config):
        return {}
    policy, workload = config.schedule.policy_name, config.workload
    useful = [name for name, other in POLICIES.items() if other.without_lengths]
    return {
        f"schedule.policy: {policy!r} deals samples by their lengths, and those of {workload.name} have none; "
        f"set it to {' or '.join(useful)}": policy in POLICIES and policy not in useful,
        f"workload.layout: {workload.layout!r} leaves out padding, which samples of {workload.name} do not have; "
        "set it to padded, or name a workload of texts (--workload)": workload.layout != "padded",
    }


def decoding_ahead(config: Config) -> Problems:
    """What images cannot be decoded ahead under."""
    if not (workers := ahead(config)):
        return {}
    said = f"workload.workers: {workers}"
    exchange = options_of(config.schedule, PrefixOptions).exchange
    return {
        f"{said}, but virtual ranks are measured one after another, and what is decoded ahead of one would be in the "
        "time of another; set it to 0, or launch.launcher to torchrun": config.launch.launcher == "virtual",
        f"{said} decode ahead of the step, and schedule.speeds 'auto' plans a step when the one before has been timed; "
        "set workers to 0, or give the speeds": config.schedule.speeds == "auto",
        f"{said} decode ahead of the step, and with schedule.exchange 'gather' every rank is told its samples when the "
        "step begins; set workers to 0, or exchange to replicated": exchange == "gather",
    }


def ahead(config: Config) -> int:
    """Threads of a rank that prepare its next step while it trains; 0 where nothing does."""
    entry = known_entry(config)
    reads = entry is not None and entry.reads("workers")
    return options_of(config.workload, ImageOptions).workers if reads else 0


def image_warnings(config: Config) -> list[str]:
    """What can run and says less than it seems; one line each."""
    entry, policy = known_entry(config), config.schedule.policy_name
    if entry is None or not entry.batch_norm or policy == "static":
        return []
    return [unequal_batch_norm(policy, entry.name)]


def unequal_batch_norm(policy: str, workload: str) -> str:
    """What is warned of where a model with batch norm is trained under a policy that deals unequal numbers."""
    return (
        f"schedule.policy: under {policy!r} ranks may run unequal numbers of samples, and {workload} normalises over "
        "those that run together, on each rank by itself (batch norm), so that only equal numbers train the same: "
        "the losses are not those of static, and are not compared; set schedule.policy to static to have these"
    )


def data(config: Config) -> Problems:
    """Files and columns that the data set does not read, or lacks, and samples that the workload cannot learn."""
    workload, files = config.workload, options_of(config.workload, TextFileOptions)
    dataset = DATASETS[workload.dataset]
    kind = "folder" if dataset.folder else "file"
    problems: dict[str, object] = {
        f"workload.data_path: null, but dataset {workload.dataset!r} reads a {kind}; name it (--data-path "
        f"{kind.upper()})": dataset.of_files and files.data_path is None,
    }
    options = (*FileOptions.model_fields, *SecondOptions.model_fields)
    given = {option: (getattr(workload, option), DATASETS.readers(option)) for option in options}
    texts = [name for name, entry in DATASETS.items() if entry.of_files and entry.of_texts]
    given["tokenizer"] = (workload.tokenizer, [workload.dataset] if dataset.of_texts else texts)
    entry = WORKLOADS.get(workload.name)
    for key, (value, readers) in given.items():
        fitting = [name for name in readers if entry is None or entry.samples in DATASETS[name].samples]
        last = " or ".join(fitting[-2:])
        others = f"set workload.dataset to {', '.join([*fitting[:-2], last])}, or " if fitting else ""
        line = f"workload.{key}: {value!r} is not read by dataset {workload.dataset!r}; {others}leave it out"
        problems[line] = value is not None and workload.dataset not in readers and not workload.runs_own_code
    problems[f"workload.label_column: {files.label_column!r} is the text column too; name another"] = (
        files.text_column == files.label_column
    )
    if (known := known_entry(config)) is None:
        return problems
    unlabelled = [name for name, other in WORKLOADS.items() if not other.classes]
    fitting = [name for name, other in DATASETS.items() if known.samples in other.samples]
    return problems | {
        f"workload.dataset: {dataset.name!r} has texts without labels, which {known.name} is to learn; set "
        f"workload.name to {' or '.join(unlabelled)} (--workload), or name a data set with "
        "labels": known.classes and not dataset.classes,
        f"workload.dataset: {dataset.name!r} has {' or '.join(dataset.samples)}, and {known.name} learns from "
        f"{known.samples}; set it to {' or '.join(fitting)} (--dataset), or name another workload "
        "(--workload)": known.samples not in dataset.samples,
    }


def training(config: Config) -> Problems:
    """Settings of the loop that do not go with each other, the launcher or the strategy."""
    train, sync = config.train, config.sync
    virtual, idle = config.launch.launcher == "virtual", not sync.trains
    # Of epochs it is decided later how many steps there are.
    known = train.epochs is None or train.steps != type(train).model_fields["steps"].default
    most, profiled = train.warmup_steps + train.steps, train.profile_steps
    return {
        f"train.lr_warmup_steps: {train.lr_warmup_steps} steps, but there are {most} (train.warmup_steps + "
        "train.steps), so that the learning rate never gets to its full value; "
        f"greatest that works: {most}": known and train.lr_warmup_steps > most,
        f"train.profile_steps: {profiled}, but one process plays all virtual ranks in turn; "
        "set it to 0, or launch.launcher to torchrun": profiled and virtual,
        f"train.profile_steps: {profiled} of {train.warmup_steps} steps of the warm-up, and its first is never "
        f"profiled; set train.warmup_steps to {profiled + 1} or more": profiled and profiled >= train.warmup_steps,
        f"train.save_model: true, but code of your own makes the model of {config.workload.name}; "
        "save it there": train.save_model and config.workload.runs_own_code,
        f"train.save_model: true, but with {sync.disabled_by} no model is trained; change either": train.save_model
        and idle,
        "train.exposed: true, but virtual ranks send nothing to each other; "
        "set launch.launcher to torchrun": train.exposed and virtual,
        f"train.exposed: true, but {sync.disabled_by} sends nothing already; change either": train.exposed and idle,
        f"train.exposed: true, but under sync.name {sync.name!r} a server steps by what workers send; set it to false, "
        "or choose another strategy": train.exposed and STRATEGIES[sync.name].servers,
        f"train.exposed: true, but a profiler (train.profile_steps: {profiled}) is of the whole process, in which two "
        "trainings take turns; set one of them to its default": train.exposed and profiled,
        "train.memory_parts: true, but one process plays all virtual ranks; "
        "set launch.launcher to torchrun": train.memory_parts and virtual,
        "train.memory_parts: true, but there is no warm-up to count in; "
        "set train.warmup_steps to 1 or more": train.memory_parts and not train.warmup_steps,
    }


def with_global_batch(config: Config, workers: int) -> Config:
    """The configuration with the global batch of so many workers."""
    each = config.train.batch_per_worker
    return config if each is None or workers < 1 else changed(config, {"train.global_batch": each * workers})


def batch_is_open(train: Train) -> bool:
    """Whether the global batch depends on the number of workers, which is not known yet."""
    return train.batch_per_worker is not None and train.global_batch == Train.model_fields["global_batch"].default


def batch_problem(train: Train, workers: int) -> str | None:
    """What is wrong with a global batch that is given too."""
    each = train.batch_per_worker
    if each is None or workers < 1 or batch_is_open(train) or train.global_batch == each * workers:
        return None
    return (
        f"train.global_batch: {train.global_batch}, but train.batch_per_worker {each} on {workers} workers are "
        f"{each * workers}; leave one of them out"
    )


def whole_window_steps(config: Config) -> Mapping[str, int]:
    """The settings that have to be larger for no window to be split, as they should be; none where none is.

    With epochs, the last step ends one, and a window with it. Else the data may end an epoch, with which
    windows begin anew, but that is not known here.
    """
    if config.schedule.policy_name != "window":
        return {}
    train, windows = config.train, (config.schedule.window_size,)
    warmup = whole_windows(train.warmup_steps, windows, train.epoch_steps)
    wanted = {"train.warmup_steps": warmup}
    if train.epochs is None:
        wanted["train.steps"] = whole_windows(warmup + train.steps, windows) - warmup
    given = {"train.warmup_steps": train.warmup_steps, "train.steps": train.steps}
    return {key: steps for key, steps in wanted.items() if steps != given[key]}


def split_window_warnings(config: Config) -> Iterator[str]:
    """That the warm-up or the last step ends within a window, in a line."""
    wanted, train = whole_window_steps(config), config.train
    if wanted:
        yield (
            f"schedule.window: {train.warmup_steps} steps of warm-up and {train.steps} measured ones split a window of "
            f"{config.schedule.window_size}, so that the samples measured are not those of other policies; set "
            f"{' and '.join(f'{key} to {steps}' for key, steps in wanted.items())}, unless an epoch ends there"
        )


def rank_problems(config: Config, ranks: Ranks) -> list[str]:
    """Every rule broken on these ranks, one line each; where none trains, that alone."""
    if ranks.workers < 1:
        return [
            f"sync.name: {config.sync.name!r} has {ranks.servers} of {ranks.world_size} ranks serve, which leaves none "
            f"that trains; least number of ranks that works: {ranks.servers + 1}"
        ]
    return [problem for rule in RANK_RULES for problem, holds in rule(config, ranks).items() if holds]


def buffer_size(config: Config, workers: int) -> int:
    """Samples that each of `workers` workers of `prefix` holds (K): as configured, or max(32, B - G + 1)."""
    buffer = options_of(config.schedule, PrefixOptions).buffer
    return buffer if buffer != "auto" else max(32, config.train.global_batch - workers + 1)


def _the_batch_is_dealt(config: Config, ranks: Ranks) -> Problems:
    batch, micro, workers = config.train.global_batch, config.schedule.micro_batches, ranks.workers
    policy, buffer = config.schedule.policy_name, buffer_size(config, ranks.workers)
    if batch < workers:
        reached = f"{batch} is less than the {ranks}, each of which needs a sample; nearest that works: {workers}"
        return {f"train.global_batch: {reached}": True}
    slots, below = workers if micro == "auto" else workers * micro, batch - batch % workers
    return {
        f"schedule.micro_batches: {micro} on {ranks} need {slots} samples, train.global_batch is {batch}; "
        f"greatest that works: {batch // workers}": batch < slots,
        f"train.global_batch: {batch} cannot be dealt equally to {ranks}, as static must; "
        f"nearest that works: {below} or {below + workers}": policy == "static" and batch % workers,
        f"schedule.buffer: {buffer} samples on each of {ranks} are {workers * buffer}, fewer than train.global_batch "
        f"{batch}; nearest that works: {-(-batch // workers)}": policy == "prefix" and workers * buffer < batch,
    }


def _values_are_of_these_ranks(config: Config, ranks: Ranks) -> Problems:
    schedule, each = config.schedule, "worker" if ranks.servers else "rank"
    problems: dict[str, object] = {}
    for key, values in (("capacity", schedule.capacity), ("speeds", schedule.speeds)):
        if isinstance(values, tuple):
            line = f"schedule.{key}: {list(values)} has {len(values)} values for {ranks}; give one per {each}"
            problems[line] = len(values) != ranks.workers
    for rank in config.launch.slowdown:
        beyond = f"there is no rank {rank} among {ranks.world_size}; greatest: {ranks.world_size - 1}"
        serves = f"rank {rank} trains nothing under sync.name {config.sync.name!r}; least that works: {ranks.servers}"
        problems[f"launch.slowdown: {beyond}"] = rank >= ranks.world_size
        problems[f"launch.slowdown: {serves}"] = ranks.serves(rank)
    return problems


def _numbers_are_of_these_ranks(config: Config, ranks: Ranks) -> Problems:
    bits = options_of(config.compress, Int8Options).num_bits
    other = "compress.num_bits to 8" if int8_levels(8, ranks.workers) >= 2 else "compress.name to fp8 or qsgd"
    few = config.compress.name == "int8" and int8_levels(bits, ranks.workers) < 2
    return {
        "train.precision: 'fp16' scales the loss, which ranks that train nothing under sync.name "
        f"{config.sync.name!r} never see; set it to bf16 or fp32": ranks.servers and config.train.precision == "fp16",
        f"compress.num_bits: {bits} bits have less than 2 levels for each of {ranks}; set {other}": few,
    }


RANK_RULES: tuple[Callable[[Config, Ranks], Problems], ...] = (
    _the_batch_is_dealt,
    _values_are_of_these_ranks,
    _numbers_are_of_these_ranks,
)
