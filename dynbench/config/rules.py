"""Rules over several fields: what cannot work, with the nearest value that does.

Each problem is one line that opens with the dotted key to change. Capacities that cannot hold the batch are not
here: they are `NothingFits`, found when the plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dynbench.config.batch import batch_is_open, batch_problem, split_window_warnings, with_global_batch
from dynbench.config.image_rules import IMAGE_RULES, image_warnings
from dynbench.config.part_rules import DATA_RULES, TRAIN_RULES, buffer_size, rank_problems
from dynbench.config.ranks import Ranks, ranks_of
from dynbench.config.schema import Config
from dynbench.config.unread import Use, unread
from dynbench.errors import did_you_mean
from dynbench.plugins import COMPRESSORS, POLICIES, STRATEGIES, WORKLOADS, options_of
from dynbench.plugins.compressor_options import ContractiveOptions
from dynbench.plugins.policies import PrefixOptions
from dynbench.plugins.strategies import DilocoOptions, LocalOptions
from dynbench.plugins.workloads import LanguageOptions
from dynbench.units import parse_bytes

DEFAULT_VIRTUAL_RANKS = 4
MOST_MISSED = 0.05
"""Of the meetings that measured steps have their share of."""
Rule = Callable[[Config], Iterator[str]]


def check_rules(config: Config, world_size: int | None, *, trains: bool = True) -> list[str]:
    """Every broken rule, one line each; empty when the configuration can run.

    Args:
        config: a configuration whose fields are valid one by one.
        world_size: ranks; None leaves out the rules that need them.
        trains: ranks are to train with it; False leaves out the rules on their batches.
    """
    problems = [problem for rule in RULES if trains or rule is not _subset_holds_a_batch for problem in rule(config)]
    if trains and world_size is not None:
        played = config.launch.launcher == "virtual"  # which no strategy with servers is, as said above
        ranks = Ranks(world_size) if played else ranks_of(config, world_size)
        problems += filter(None, [batch_problem(config.train, ranks.workers)])
        problems += rank_problems(with_global_batch(config, ranks.workers), ranks)
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
    if uses is None:
        uses = (Use(config, config, world_size),)
    warnings = []
    batch, ranks = config.train.global_batch, ranks_of(config, world_size)
    if config.schedule.policy_name == "prefix":
        buffer = buffer_size(config, ranks.workers)
        held, every_count = ranks.workers * buffer, buffer > batch - ranks.workers
        if batch <= held < 2 * batch and not every_count:
            warnings.append(
                f"schedule.buffer: {ranks} hold {held} samples for a global batch of {batch}, which leaves "
                f"little to choose; the limit is {2 * batch}, set it to {-(-2 * batch // ranks.workers)} or more"
            )
    if config.schedule.policy_name == "window" and config.schedule.window_size == 1:
        warnings.append(
            "schedule.window: 1 global batch at a time is what partition plans; set 2 or more, 8 is usual (--window 8)"
        )
    return [
        *warnings,
        *split_window_warnings(config),
        *_meetings_missed(config),
        *image_warnings(config),
        *unread("train", uses),
    ]


def _meetings_missed(config: Config) -> Iterator[str]:
    """Of ranks that step apart, measured steps that hold clearly more or fewer meetings than their share."""
    strategy, train = STRATEGIES.get(config.sync.name), config.train
    if strategy is None or not strategy.reads("inner_steps"):
        return
    every = options_of(config.sync, LocalOptions).inner_steps
    met = (train.warmup_steps + train.steps) // every - train.warmup_steps // every
    if abs(met * every - train.steps) > MOST_MISSED * train.steps:
        yield (
            f"sync.inner_steps: ranks meet after every {every} steps, {met} times in the {train.steps} measured ones "
            f"(train.steps, after {train.warmup_steps} of warm-up), whose share is {train.steps / every:.3g}; the "
            f"limit is {MOST_MISSED:.0%} more or fewer, set train.steps to {-(-train.steps // every) * every}"
        )


def makes_probe(config: Config, *, on_gpus: bool) -> bool:
    """Whether a probe comes first: asked for, or dynamic scheduling on GPUs with nothing known about their memory.

    Never by itself on several nodes, where every node would make one of its own.
    """
    if config.probe.run is not None:
        return config.probe.run == "auto"
    by_itself = on_gpus and config.launch.nnodes == 1
    return by_itself and config.schedule.mode == "dynamic" and config.schedule.capacity is None


def _size_is_one_of_the_workload(config: Config) -> Iterator[str]:
    workload = config.workload
    if workload.runs_own_code or workload.size == "auto":
        return
    entry = WORKLOADS[workload.name]
    sizes = ("auto", *entry.sizes, *entry.aliases)
    if workload.size not in sizes:
        begin = [name for name in sizes if workload.size and name.startswith(workload.size)]
        meant = f"Did you mean {' or '.join(begin)}?" if begin else did_you_mean(workload.size, sizes)
        known = f"known: {', '.join(sizes)}"
        yield f"workload.size: {workload.size!r} is not a size of {workload.name}; {known}. {meant}".rstrip()


def _the_workload_makes_the_layout(config: Config) -> Iterator[str]:
    workload = config.workload
    entry = None if workload.is_own else WORKLOADS[workload.name]
    if workload.layout not in (("padded",) if entry is None else entry.layouts):
        making = [name for name, entry in WORKLOADS.items() if workload.layout in entry.layouts]
        yield (
            f"workload.layout: {workload.layout!r} rows are not made by {workload.name}, but by {', '.join(making)}; "
            "set it to padded, or workload.name to one of these"
        )


def _the_cache_is_of_flattened_rows(config: Config) -> Iterator[str]:
    workload = config.workload
    if not options_of(workload, LanguageOptions).use_cache:
        return
    if workload.layout != "flattened" or workload.is_own or not WORKLOADS[workload.name].reads("use_cache"):
        able = ", ".join(name for name, entry in WORKLOADS.items() if entry.reads("use_cache"))
        yield (
            f"workload.use_cache: true, but only rows that transformers flattens are run with a cache, of {able}; "
            "set it to false, or workload.layout to flattened"
        )


def _the_model_is_of_the_workloads_kind(config: Config) -> Iterator[str]:
    workload = config.workload
    default = type(workload).model_fields["model"].default
    if workload.runs_own_code or not workload.reads_model or workload.model != default:
        return
    if example := WORKLOADS[workload.name].names_model:
        yield (
            f"workload.model: {default!r}, the default, is no model for {workload.name}; name one (--model {example}, "
            "or a folder), or set weights to random and size to one of the workload's"
        )


def _subset_holds_a_batch(config: Config) -> Iterator[str]:
    subset, batch = config.workload.subset, config.train.global_batch
    if subset is not None and subset < batch and not batch_is_open(config.train):
        yield f"workload.subset: {subset} samples are fewer than train.global_batch {batch}; least that works: {batch}"


def _static_has_no_policy(config: Config) -> Iterator[str]:
    schedule = config.schedule
    if schedule.mode == "static" and schedule.policy not in (None, "static"):
        yield f"schedule.policy: {schedule.policy!r} needs schedule.mode dynamic, which is static; set mode to dynamic"


def _policy_makes_sense_under_the_layout(config: Config) -> Iterator[str]:
    policy, layout = config.schedule.policy_name, config.workload.layout
    if layout not in POLICIES[policy].layouts:
        known = [name for name, entry in POLICIES.items() if layout in entry.layouts and entry.in_train]
        yield (
            f"workload.layout: {layout!r} makes no sense under policy {policy!r}; "
            f"set schedule.policy to {' or '.join(known)}, or the layout to {POLICIES[policy].layouts[0]}"
        )


def _gather_needs_prefix(config: Config) -> Iterator[str]:
    if _exchange(config) == "gather" and config.schedule.policy_name != "prefix":
        yield (
            f"schedule.exchange: 'gather' is for policy prefix, not {config.schedule.policy_name!r}; "
            "set it to replicated, or schedule.policy to prefix"
        )


def _exchange(config: Config) -> str:
    return options_of(config.schedule, PrefixOptions).exchange


def _virtual_ranks_send_nothing(config: Config) -> Iterator[str]:
    if config.launch.launcher != "virtual":
        return
    asked = {
        "schedule.exchange": (_exchange(config), ["replicated"]),
        "sync.communicate": (str(config.sync.communicate).lower(), ["true"]),
        "sync.name": (config.sync.name, [name for name, entry in STRATEGIES.items() if entry.virtual]),
        "compress.name": (config.compress.name, [name for name, entry in COMPRESSORS.items() if not entry.compresses]),
    }
    other = "launch.launcher to torchrun"
    if config.launch.device == "cuda":
        other = f"run on the CPU (--device cpu), or with several GPUs set {other}"
    for key, (value, played) in asked.items():
        if value not in played:
            yield (
                f"{key}: {value!r} needs real ranks, virtual ones send nothing to each other; "
                f"set it to {' or '.join(played)}, or {other}"
            )


def _an_emulated_link_carries_all(config: Config) -> Iterator[str]:
    launch, entry = config.launch, STRATEGIES.get(config.sync.name)
    if launch.link_gbps is None:
        return
    why = {
        "virtual ranks send nothing; launch.comm_model is what they are taken to send": launch.launcher == "virtual",
        "a link is emulated on CPUs only (launch.device)": launch.device == "cuda",
        "nodes have a link of their own; leave it out with launch.nnodes above 1": launch.nnodes > 1,
        f"sync.name {config.sync.name!r} sends what it does not count, past the link": entry and not entry.counted,
    }
    for reason, holds in why.items():
        if holds:
            yield f"launch.link_gbps: {launch.link_gbps:g}, but {reason}"


def _nothing_is_compressed_unsent(config: Config) -> Iterator[str]:
    if not config.sync.trains and COMPRESSORS[config.compress.name].compresses:
        other = "sync.name to another" if config.sync.communicate else "sync.communicate to true"
        yield (
            f"compress.name: {config.compress.name!r} compresses what is sent, and {config.sync.silent} sends nothing; "
            f"set it to none, or {other}"
        )


def _servers_are_sent_to(config: Config) -> Iterator[str]:
    strategy = STRATEGIES.get(config.sync.name)
    if strategy is not None and strategy.servers and not config.sync.communicate:
        able = [name for name, entry in STRATEGIES.items() if not entry.servers and entry.trains]
        yield (
            f"sync.communicate: false, but under sync.name {config.sync.name!r} a server steps by what workers send; "
            f"set it to true, or sync.name to {', '.join(able)}"
        )


def _what_is_sent_can_be_compressed(config: Config) -> Iterator[str]:
    strategy = STRATEGIES.get(config.sync.name)
    if strategy is not None and not strategy.compresses and COMPRESSORS[config.compress.name].compresses:
        able = [name for name, entry in STRATEGIES.items() if entry.compresses and entry.trains]
        yield (
            f"compress.name: {config.compress.name!r} compresses means over ranks, which sync.name "
            f"{config.sync.name!r} does not ask for; set it to none, or sync.name to {', '.join(able)}"
        )


def _a_meeting_ends_before_the_next(config: Config) -> Iterator[str]:
    options = options_of(config.sync, DilocoOptions)
    if 0 < options.overlap_steps >= options.inner_steps:
        yield (
            f"sync.overlap_steps: a part would meet anew after {options.inner_steps} steps (sync.inner_steps), before "
            f"{options.overlap_steps} have brought the mean of the last time; greatest that works: "
            f"{options.inner_steps - 1}"
        )


def _feedback_needs_a_contractive_form(config: Config) -> Iterator[str]:
    compress = config.compress
    entry = COMPRESSORS.get(compress.name)
    if entry is None or not entry.reads("contractive") or "+" in entry.name:  # in pipelines the form follows
        return
    options = options_of(compress, ContractiveOptions)
    if options.error_feedback is True and not options.contractive:
        yield (
            f"compress.error_feedback: true diverges with the unbiased form of {compress.name}; set "
            "compress.contractive to true, or compress.error_feedback to auto"
        )


def _estimated_speeds_are_planned_with(config: Config) -> Iterator[str]:
    if config.schedule.speeds == "auto" and _exchange(config) == "gather":
        yield "schedule.speeds: 'auto' re-plans on every rank; set schedule.exchange to replicated, or give the speeds"


def _measured_cost_has_a_source(config: Config) -> Iterator[str]:
    schedule = config.schedule
    if schedule.cost_type == "measured" and schedule.cost_coefficients is None and config.probe.run in (None, "off"):
        yield (
            "schedule.cost_type: 'measured' has no coefficients; set schedule.cost_coefficients, "
            "or probe.run to a probe run or auto"
        )


def _cost_tells_plans_apart(config: Config) -> Iterator[str]:
    coefficients = config.schedule.cost_coefficients
    if coefficients is not None and coefficients[1] == coefficients[2] == 0:
        yield (
            f"schedule.cost_coefficients: {list(coefficients)} costs the same for any samples, so that no plan is "
            "better; set beta or gamma, its second and third value, above 0"
        )


def _nodes_agree(config: Config) -> Iterator[str]:
    launch = config.launch
    if launch.launcher == "virtual" and launch.nnodes > 1:
        yield f"launch.nnodes: {launch.nnodes} nodes cannot share virtual ranks; set it to 1"
    if launch.node_rank >= launch.nnodes:
        yield (
            f"launch.node_rank: {launch.node_rank} is not below launch.nnodes {launch.nnodes}; "
            f"greatest that works: {launch.nnodes - 1}"
        )
    if launch.nnodes > 1 and launch.rdzv_endpoint is None:
        yield f"launch.rdzv_endpoint: null, but {launch.nnodes} nodes must meet; set host:port, the same on all"
    if launch.nnodes > 1 and config.probe.run == "auto":
        yield "probe.run: auto, but each of several nodes would probe for itself; probe once and name that run, or null"
    if launch.launcher == "torchrun" and launch.nproc != "auto":
        ranks = launch.nproc * launch.nnodes
        if launch.world_size not in (None, ranks):
            yield f"launch.world_size: {launch.world_size} is not nproc x nnodes = {ranks}; leave it out with torchrun"


def _memory_limit_is_a_size(config: Config) -> Iterator[str]:
    limit = config.probe.memory_limit
    if limit is None:
        return
    try:
        parse_bytes(limit)
    except ValueError as error:
        yield f"probe.memory_limit: {error}"


RULES: tuple[Rule, ...] = (
    *DATA_RULES,
    *IMAGE_RULES,
    _size_is_one_of_the_workload,
    _the_workload_makes_the_layout,
    _the_cache_is_of_flattened_rows,
    _the_model_is_of_the_workloads_kind,
    _subset_holds_a_batch,
    _static_has_no_policy,
    _policy_makes_sense_under_the_layout,
    _gather_needs_prefix,
    _virtual_ranks_send_nothing,
    _an_emulated_link_carries_all,
    _nothing_is_compressed_unsent,
    _servers_are_sent_to,
    _what_is_sent_can_be_compressed,
    _a_meeting_ends_before_the_next,
    _feedback_needs_a_contractive_form,
    _estimated_speeds_are_planned_with,
    _measured_cost_has_a_source,
    _cost_tells_plans_apart,
    _nodes_agree,
    *TRAIN_RULES,
    _memory_limit_is_a_size,
)
