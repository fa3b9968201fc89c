"""Rules over several fields: what cannot work, with the nearest value that does.

Each problem is one line that opens with the dotted key to change. Capacities that cannot hold the batch are not
here: they are `NothingFits`, found when the plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dynbench.config import part_rules as parts
from dynbench.config.part_rules import Problems
from dynbench.config.ranks import Ranks, ranks_of
from dynbench.config.schema import Config
from dynbench.config.unread import Use, unread
from dynbench.errors import did_you_mean
from dynbench.plugins import COMPRESSORS, POLICIES, STRATEGIES, WORKLOADS, options_of
from dynbench.plugins.compressors import ContractiveOptions
from dynbench.plugins.policies import PrefixOptions
from dynbench.plugins.strategies import DilocoOptions, LocalOptions
from dynbench.plugins.workloads import LanguageOptions
from dynbench.units import parse_bytes

DEFAULT_VIRTUAL_RANKS = 4
MOST_MISSED = 0.05
"""Part by which the averagings within the measured steps may miss their share."""


def check_rules(config: Config, world_size: int | None, *, trains: bool = True) -> list[str]:
    """Every broken rule, one line each; empty when the configuration can run.

    Args:
        config: a configuration whose fields are valid one by one.
        world_size: ranks; None leaves out the rules that need them.
        trains: ranks are to train with it; False leaves out the rules on their batches.
    """
    problems = [problem for rule in RULES for problem, holds in rule(config).items() if holds]
    subset, batch = config.workload.subset, config.train.global_batch
    if trains and subset is not None and subset < batch and not parts.batch_is_open(config.train):
        fewer = f"{subset} samples are fewer than train.global_batch {batch}; least that works: {batch}"
        problems.append(f"workload.subset: {fewer}")
    if trains and world_size is not None:
        played = config.launch.launcher == "virtual"  # which no strategy with servers is, as said above
        ranks = Ranks(world_size) if played else ranks_of(config, world_size)
        problems += filter(None, [parts.batch_problem(config.train, ranks.workers)])
        problems += parts.rank_problems(parts.with_global_batch(config, ranks.workers), ranks)
    return problems


def known_world_size(config: Config) -> int | None:
    """Ranks as far as the configuration alone tells; None when it depends on the machine."""
    launch = config.launch
    if launch.launcher == "virtual":
        return launch.world_size or DEFAULT_VIRTUAL_RANKS
    if launch.launcher == "torchrun" and launch.nproc != "auto":
        return launch.nproc * launch.nnodes
    return None


def rule_warnings(config: Config, world_size: int, uses: Sequence[Use] | None = None) -> list[str]:
    """What can run but says less than it seems; one line each.

    Args:
        config: resolved settings.
        world_size: ranks.
        uses: what the settings were given for, to name those that nothing reads; None is training with `config`, and
            empty leaves them out.
    """
    uses = (Use(config, config, world_size),) if uses is None else uses
    batch, ranks = config.train.global_batch, ranks_of(config, world_size)
    policy, buffer = config.schedule.policy_name, parts.buffer_size(config, ranks.workers)
    samples = ranks.workers * buffer
    little = policy == "prefix" and batch <= samples < 2 * batch and buffer <= batch - ranks.workers
    warnings = {
        f"schedule.buffer: {ranks} hold {samples} samples for a global batch of {batch}, which leaves little to "
        f"choose; the limit is {2 * batch}, set it to {-(-2 * batch // ranks.workers)} or more": little,
        "schedule.window: 1 global batch at a time is what partition plans; set 2 or more, 8 is usual "
        "(--window 8)": policy == "window" and config.schedule.window_size == 1,
    }
    return [
        *(warning for warning, holds in warnings.items() if holds),
        *parts.split_window_warnings(config),
        *_few_or_many_averagings(config),
        *parts.image_warnings(config),
        *unread("train", uses),
    ]


def _few_or_many_averagings(config: Config) -> Iterator[str]:
    """Of ranks that step apart, measured steps that have clearly more or fewer averagings than their share."""
    train = config.train
    if not STRATEGIES[config.sync.name].reads("inner_steps"):
        return
    every = options_of(config.sync, LocalOptions).inner_steps
    met = (train.warmup_steps + train.steps) // every - train.warmup_steps // every
    if abs(met * every - train.steps) > MOST_MISSED * train.steps:
        yield (
            f"sync.inner_steps: ranks synchronise after every {every} steps, {met} times in the {train.steps} measured "
            f"ones (train.steps, after {train.warmup_steps} of warm-up), whose share is {train.steps / every:.3g}; the "
            f"limit is {MOST_MISSED:.0%} more or fewer, set train.steps to {-(-train.steps // every) * every}"
        )


def makes_probe(config: Config, *, on_gpus: bool) -> bool:
    """Whether a probe comes first: configured, or dynamic scheduling on GPUs with nothing known about their memory.

    Never by itself on several nodes, where every node would make one of its own.
    """
    if config.probe.run is not None:
        return config.probe.run == "auto"
    by_itself = on_gpus and config.launch.nnodes == 1
    return by_itself and config.schedule.mode == "dynamic" and config.schedule.capacity is None


def _workload(config: Config) -> Problems:
    workload, entry, known = config.workload, WORKLOADS.get(config.workload.name), parts.known_entry(config)
    sizes = ("auto", *known.sizes, *known.aliases) if known else (workload.size,)
    begin = [name for name in sizes if workload.size and name.startswith(workload.size)]
    meant = f"Did you mean {' or '.join(begin)}?" if begin else did_you_mean(workload.size, sizes)
    size = f"workload.size: {workload.size!r} is not a size of {workload.name}; known: {', '.join(sizes)}. {meant}"
    making = [name for name, other in WORKLOADS.items() if workload.layout in other.layouts]
    cached = [name for name, other in WORKLOADS.items() if other.reads("use_cache")]
    made = entry.layouts if entry else ("padded",)
    flattened = workload.layout == "flattened" and workload.name in cached
    default = type(workload).model_fields["model"].default
    example = known.names_model if known else ""
    return {
        size.rstrip(): workload.size not in sizes,
        f"workload.layout: {workload.layout!r} rows are not made by {workload.name}, but by {', '.join(making)}; set "
        "it to padded, or workload.name to one of these": workload.layout not in made,
        f"workload.use_cache: true, but only rows that transformers flattens are run with a cache, of "
        f"{', '.join(cached)}; set it to false, or workload.layout to "
        "flattened": options_of(workload, LanguageOptions).use_cache and not flattened,
        f"workload.model: {default!r}, the default, is no model for {workload.name}; name one (--model {example}, or a "
        "folder), or set weights to random and size to one of the workload's": example
        and workload.reads_model
        and workload.model == default,
    }


def _schedule(config: Config) -> Problems:
    schedule, layout, name = config.schedule, config.workload.layout, config.schedule.policy_name
    layouts = POLICIES[name].layouts
    known = [other for other, entry in POLICIES.items() if layout in entry.layouts and entry.in_train]
    gathers = options_of(schedule, PrefixOptions).exchange == "gather"
    given = schedule.cost_coefficients
    return {
        f"schedule.policy: {schedule.policy!r} needs schedule.mode dynamic, which is static; "
        "set mode to dynamic": schedule.mode == "static" and schedule.policy not in (None, "static"),
        f"workload.layout: {layout!r} makes no sense under policy {name!r}; "
        f"set schedule.policy to {' or '.join(known)}, or the layout to {layouts[0]}": layout not in layouts,
        f"schedule.exchange: 'gather' is for policy prefix, not {name!r}; "
        "set it to replicated, or schedule.policy to prefix": gathers and name != "prefix",
        "schedule.speeds: 'auto' re-plans on every rank; set schedule.exchange to replicated, or give the "
        "speeds": schedule.speeds == "auto" and gathers,
        "schedule.cost_type: 'measured' has no coefficients; set schedule.cost_coefficients, or probe.run to a probe "
        "run or auto": schedule.cost_type == "measured" and given is None and config.probe.run in (None, "off"),
        f"schedule.cost_coefficients: {list(given or ())} costs the same for any samples, so that no plan is better; "
        "set beta or gamma, its second and third value, above 0": given and given[1] == given[2] == 0,
    }


def _virtual_ranks_send_nothing(config: Config) -> Problems:
    played_by = {
        "schedule.exchange": (options_of(config.schedule, PrefixOptions).exchange, ["replicated"]),
        "sync.communicate": (str(config.sync.communicate).lower(), ["true"]),
        "sync.name": (config.sync.name, [name for name, entry in STRATEGIES.items() if entry.virtual]),
        "compress.name": (config.compress.name, [name for name, entry in COMPRESSORS.items() if not entry.compresses]),
    }
    other = "launch.launcher to torchrun"
    if config.launch.device == "cuda":
        other = f"run on the CPU (--device cpu), or with several GPUs set {other}"
    return {
        f"{key}: {value!r} needs real ranks, virtual ones send nothing to each other; set it to {' or '.join(played)}, "
        f"or {other}": config.launch.launcher == "virtual" and value not in played
        for key, (value, played) in played_by.items()
    }


def _an_emulated_link_carries_all(config: Config) -> Problems:
    launch, entry = config.launch, STRATEGIES[config.sync.name]
    if launch.link_gbps is None:
        return {}
    why = {
        "virtual ranks send nothing; launch.comm_model is what they are taken to send": launch.launcher == "virtual",
        "a link is emulated on CPUs only (launch.device)": launch.device == "cuda",
        "nodes have a link of their own; leave it out with launch.nnodes above 1": launch.nnodes > 1,
        f"sync.name {config.sync.name!r} sends what it does not count, past the link": not entry.counted,
    }
    return {f"launch.link_gbps: {launch.link_gbps:g}, but {reason}": holds for reason, holds in why.items()}


def _synchronisation(config: Config) -> Problems:
    sync, name = config.sync, config.compress.name
    strategy, compressor = STRATEGIES[sync.name], COMPRESSORS[name]
    training = {other: entry for other, entry in STRATEGIES.items() if entry.trains}
    serverless = ", ".join(other for other, entry in training.items() if not entry.servers)
    able = ", ".join(other for other, entry in training.items() if entry.compresses)
    gathers = config.compress.gather != "none" and strategy.whole != 0
    instead = "sync.name to another" if sync.communicate else "sync.communicate to true"
    diloco, options = options_of(sync, DilocoOptions), options_of(config.compress, ContractiveOptions)
    every, later = diloco.inner_steps, diloco.overlap_steps
    # In pipelines the form follows.
    unbiased = compressor.reads("contractive") and not options.contractive and "+" not in name
    return {
        f"compress.name: {name!r} compresses what is sent, and {sync.disabled_by} sends nothing; set it to none, or "
        f"{instead}": compressor.compresses and not sync.trains,
        f"sync.communicate: false, but under sync.name {sync.name!r} a server steps by what workers send; set it to "
        f"true, or sync.name to {serverless}": strategy.servers and not sync.communicate,
        f"compress.name: {name!r} compresses means over ranks, which sync.name {sync.name!r} does not ask for; set it "
        f"to none, or sync.name to {able}": compressor.compresses and not strategy.compresses,
        f"compress.gather: {config.compress.gather!r}, but under sync.name {sync.name!r} no parameters are gathered "
        "while a model runs; set it to none, or sync.name to fsdp": gathers,
        f"sync.overlap_steps: a part would be synchronised anew after {every} steps (sync.inner_steps), before "
        f"{later} have brought the mean of the last time; greatest that works: {every - 1}": 0 < later >= every,
        f"compress.error_feedback: true diverges with the unbiased form of {name}; set compress.contractive to true, "
        "or compress.error_feedback to auto": unbiased and options.error_feedback is True,
    }


def _nodes_agree(config: Config) -> Problems:
    launch, nodes = config.launch, config.launch.nnodes
    virtual, several = launch.launcher == "virtual", nodes > 1
    ranks = launch.world_size if launch.launcher != "torchrun" or launch.nproc == "auto" else launch.nproc * nodes
    return {
        f"launch.nnodes: {nodes} nodes cannot share virtual ranks; set it to 1": virtual and several,
        f"launch.node_rank: {launch.node_rank} is not below launch.nnodes {nodes}; "
        f"greatest that works: {nodes - 1}": launch.node_rank >= nodes,
        f"launch.rdzv_endpoint: null, but {nodes} nodes must meet; set host:port, the same on all": several
        and launch.rdzv_endpoint is None,
        "probe.run: auto, but each of several nodes would probe for itself; "
        "probe once and name that run, or null": several and config.probe.run == "auto",
        f"launch.world_size: {launch.world_size} is not nproc x nnodes = {ranks}; "
        "leave it out with torchrun": launch.world_size not in (None, ranks),
    }


def _memory_limit_is_a_size(config: Config) -> Problems:
    try:
        parse_bytes("1B" if config.probe.memory_limit is None else config.probe.memory_limit)
    except ValueError as error:
        return {f"probe.memory_limit: {error}": True}
    return {}


RULES: tuple[Callable[[Config], Problems], ...] = (
    parts.data,
    parts.lengths_are_there,
    parts.decoding_ahead,
    _workload,
    _schedule,
    _virtual_ranks_send_nothing,
    _an_emulated_link_carries_all,
    _synchronisation,
    _nodes_agree,
    parts.training,
    _memory_limit_is_a_size,
)
