"""When each setting is read; `unread.py` warns of those that were changed and that nothing reads.

Every field of the schema has a line in `EFFECTS`: the commands that look at it, and, where it is not always read, the
condition and what to say where that is not met. Those of plug-ins' options follow from who declares them. What cannot
work at all is refused by `rules.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dynbench.config.describe import all_keys
from dynbench.config.image_rules import has_lengths, known_entry
from dynbench.config.situation import Situation
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS, Registry, options_of
from dynbench.plugins.datasets import SecondOptions


def _always(_: Situation) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Effect:
    """When a setting is read.

    Args:
        commands: names, parted by spaces; `data` is a `solve` that plans a data set.
        when: the condition within those commands.
        otherwise: why it is not read where the condition is not met; may name `{ranks}`, and what is chosen, as
            `{policy}`.
    """

    commands: str
    when: Callable[[Situation], bool] = _always
    otherwise: str = ""

    def in_scope(self, situation: Situation) -> bool:
        """Whether the command looks at the setting at all."""
        return bool(situation.readers & set(self.commands.split()))

    def is_read(self, situation: Situation) -> bool:
        """Whether the setting decides anything."""
        return self.in_scope(situation) and self.when(situation)


def _has_texts(s: Situation) -> bool:
    return s.config.workload.runs_own_code or DATASETS[s.config.workload.dataset].of_texts


def _is_kept(s: Situation) -> bool:
    dataset = DATASETS[s.config.workload.dataset]
    return _has_texts(s) or (dataset.folder and "images" in dataset.samples)


def _joins_texts(s: Situation) -> bool:
    own = s.config.workload.runs_own_code
    return own or (_has_texts(s) and not WORKLOADS[s.config.workload.name].classes)


def _has_perplexity(s: Situation) -> bool:
    workload, train = s.config.workload, s.config.train
    return train.eval_samples > 0 and (workload.runs_own_code or not WORKLOADS[workload.name].classes)


def _has_lengths(s: Situation) -> bool:
    return has_lengths(s.config)


def _drops(s: Situation) -> bool:
    entry = known_entry(s.config)
    return entry is None or entry.drops


def _is_own(s: Situation) -> bool:
    return s.config.workload.is_own


def _size_is_read(s: Situation) -> bool:
    return s.config.workload.runs_own_code or s.config.workload.weights == "random"


def _model_is_read(s: Situation) -> bool:
    workload = s.config.workload
    tokenises = _has_texts(s) and workload.tokenizer is None and workload.tokenizer_name == workload.model
    return workload.runs_own_code or workload.reads_model or tokenises


def _splitting_pays(s: Situation) -> bool:
    """`auto` means one micro-batch unless capacities ask for more, or a measured cost weighs them against padding."""
    if s.given.schedule.micro_batches != "auto":
        return True
    capped = s.config.schedule.capacity is not None or s.probes
    reasons = {"capacity"} if capped else set()
    reasons |= {"cost"} if s.cost_is_measured and _pads(s) else set()
    return any(reasons & set(policy.auto_splits) for policy in s.planned)


def _objective_is_open(s: Situation) -> bool:
    return s.given.schedule.micro_batches != 1 and s.given.schedule.objective == "auto"


def _has_second(s: Situation) -> bool:
    return options_of(s.config.workload, SecondOptions).second_column is not None


def _pads(s: Situation) -> bool:
    return s.config.workload.layout == "padded"


def _ranks_are_launched_here(s: Situation) -> bool:
    return not s.attached


def _nproc_is_read(s: Situation) -> bool:
    return not s.attached and (s.real_ranks or s.given.launch.nproc in (1, s.world_size))


def _world_size_is_read(s: Situation) -> bool:
    return s.config.launch.launcher != "torchrun" or s.given.launch.world_size == s.world_size


def _nodes_meet(s: Situation) -> bool:
    return not s.attached and s.real_ranks


def _ranks_wait(s: Situation) -> bool:
    return s.command == "probe" or s.probes or s.real_ranks


def _probes(s: Situation) -> bool:
    return s.command == "probe" or s.probes


_NOT_OWN = "the workload is none of your own (workload.name)"
_NO_LENGTHS = "samples of '{workload}' have no lengths (workload.name)"
_NO_COST = "policy '{policy}' plans without a predicted cost"
_NO_PROBE = "no probe is made (probe.run=auto)"
_NO_PERPLEXITY = "the workload has no perplexity, or evaluation is off (train.eval_samples is 0)"
_NO_MEETING = "the ranks need no meeting point here"

_COMMON: dict[str, Effect] = {
    "workload.name": Effect("train probe data"),
    "workload.import_from": Effect("train probe data", _is_own, _NOT_OWN),
    "workload.code_digest": Effect("train probe data", _is_own, _NOT_OWN),
    "workload.dataset": Effect(
        "train probe data",
        lambda s: s.given.workload.dataset == s.config.workload.dataset,
        "the trace that is named is dataset '{dataset}'",
    ),
    "workload.tokenizer": Effect("train probe data"),  # refused where no text is tokenised
    "workload.model": Effect(
        "train probe data",
        _model_is_read,
        "weights are random, their shape is workload.size; set weights to pretrained, or size to model",
    ),
    "workload.weights": Effect("train probe data"),
    "workload.size": Effect("train probe", _size_is_read, "pretrained weights bring their own shape"),
    "workload.dropout": Effect("train probe", _drops, "models of '{workload}' have no dropout (workload.name)"),
    "workload.max_length": Effect("train probe solve", _has_lengths, _NO_LENGTHS),
    "workload.blocks": Effect(
        "train probe data",
        _joins_texts,
        "workload '{workload}' on dataset '{dataset}' joins no texts, as one without classes does (workload.name)",
    ),
    "workload.subset": Effect("train probe data"),
    "workload.pad_to_multiple_of": Effect(
        "train probe solve",
        lambda s: _pads(s) and _has_lengths(s),
        "neither packed rows (workload.layout) nor samples without lengths (workload.name) are padded",
    ),
    "workload.layout": Effect("train probe solve"),
    "workload.cache_dir": Effect(
        "train probe data", _is_kept, "dataset '{dataset}' is not tokenised, nor images of files"
    ),
    "schedule.mode": Effect("train"),
    "schedule.policy": Effect("train"),
    "schedule.cost_type": Effect("train solve", lambda s: s.plans_with_cost, _NO_COST),
    "schedule.attention_a": Effect(
        "train probe solve",
        lambda s: _probes(s) or (s.plans_with_cost and s.config.schedule.cost_type == "attention"),
        "no plan is made with the attention cost (schedule.cost_type, schedule.policy)",
    ),
    "schedule.cost_coefficients": Effect(
        "train solve",
        lambda s: s.plans_with_cost and s.cost_is_measured,
        "no plan is made with the measured cost (schedule.cost_type, schedule.policy)",
    ),
    "schedule.further_ms": Effect(
        "train solve",
        lambda s: s.plans_with_cost and s.cost_is_measured and s.given.schedule.micro_batches != 1,
        "no rank has several micro-batches of measured cost (schedule.micro_batches, schedule.cost_type)",
    ),
    "schedule.micro_batches": Effect(
        "train solve", _splitting_pays, "without a capacity or a measured cost to plan with, auto is one micro-batch"
    ),
    "schedule.objective": Effect(
        "train solve",
        lambda s: s.plans_with_cost and s.given.schedule.micro_batches != 1,
        "no plan deals several micro-batches (schedule.micro_batches, schedule.policy)",
    ),
    "schedule.capacity": Effect(
        "train solve",
        lambda s: s.command == "solve" or any(policy.capped for policy in s.planned),
        "policy '{policy}' obeys no capacities",
    ),
    "schedule.second_weight": Effect(
        "train probe solve",
        lambda s: _has_second(s) and (_probes(s) or s.plans_with_cost),
        "no plan adds the cost of a second number (workload.second_column, schedule.policy)",
    ),
    "schedule.speeds": Effect(
        "train solve",
        lambda s: s.plans_with_speeds and (s.command != "solve" or s.config.schedule.speeds != "auto"),
        "no plan of '{policy}' uses them",
    ),
    "schedule.replan_steps": Effect(
        "train", lambda s: s.config.schedule.speeds == "auto", "speeds are not estimated (schedule.speeds=auto)"
    ),
    "sync.name": Effect(
        "train probe solve",  # refused for virtual ranks
        lambda s: (
            s.command != "solve" or (s.given.schedule.micro_batches != 1 and s.given.schedule.objective == "auto")
        ),
        "offline it says what several micro-batches are planned for (schedule.micro_batches, schedule.objective)",
    ),
    "sync.communicate": Effect("train probe"),  # refused for virtual ranks
    "compress.name": Effect("train probe"),
    "train.steps": Effect("train"),
    "train.epochs": Effect("train"),
    "train.warmup_steps": Effect("train"),
    "train.profile_steps": Effect("train"),
    "train.memory_parts": Effect("train"),  # refused where there is no warm-up, and for virtual ranks
    "train.exposed": Effect("train"),  # refused where there is nothing to leave out
    "train.global_batch": Effect("train probe"),
    "train.batch_per_worker": Effect("train probe"),
    "train.seed": Effect("train probe solve"),
    "train.precision": Effect("train probe"),
    "train.optimizer": Effect("train probe"),
    "train.momentum": Effect(
        "train probe", lambda s: s.config.train.optimizer == "sgd", "only optimizer sgd has it (train.optimizer)"
    ),
    "train.learning_rate": Effect("train"),
    "train.schedule": Effect("train"),
    "train.lr_warmup_steps": Effect("train"),
    "train.max_grad_norm": Effect("train"),
    "train.weight_decay": Effect("train"),
    "train.eval_every": Effect(
        "train", lambda s: s.config.train.eval_samples > 0, "evaluation is off (train.eval_samples is 0)"
    ),
    "train.eval_samples": Effect(
        "train",
        lambda s: s.config.sync.trains,
        "ranks that send nothing are not evaluated (sync.communicate, sync.name)",
    ),
    "train.save_model": Effect("train"),  # refused where no model can be saved
    "train.tensorboard": Effect("train"),
    "launch.launcher": Effect("train probe"),
    "launch.nproc": Effect("train probe", _nproc_is_read, "{ranks}"),
    "launch.world_size": Effect("train probe", _world_size_is_read, "{ranks}"),
    "launch.threads": Effect("train probe"),
    "launch.slowdown": Effect("train probe"),
    "launch.comm_model": Effect(
        "train probe", lambda s: s.config.launch.launcher != "torchrun", "real ranks communicate in earnest"
    ),
    "launch.link_gbps": Effect("train probe"),  # refused where nothing is sent over one
    "launch.device": Effect("train probe"),
    "launch.nnodes": Effect("train probe", _ranks_are_launched_here, "{ranks}"),
    "launch.node_rank": Effect("train", _ranks_are_launched_here, "{ranks}"),
    "launch.rdzv_endpoint": Effect(
        "train probe", lambda s: _nodes_meet(s) and (s.command != "probe" or s.config.launch.nnodes > 1), _NO_MEETING
    ),
    "launch.rdzv_id": Effect(
        "train", lambda s: _nodes_meet(s) and s.config.launch.rdzv_endpoint is not None, _NO_MEETING
    ),
    "launch.timeout_s": Effect("train probe", _ranks_wait, "virtual ranks wait for nobody"),
    "probe.run": Effect("train solve"),
    "probe.lengths": Effect("train probe", _probes, _NO_PROBE),
    "probe.memory_fraction": Effect(
        "train probe", lambda s: _probes(s) and s.config.launch.device != "cpu", "no probe is made on a GPU"
    ),
    "probe.memory_limit": Effect(
        "train probe", lambda s: _probes(s) and s.config.launch.device != "cuda", "no probe is made on a CPU"
    ),
    "probe.margin": Effect("train probe", _probes, _NO_PROBE),
    "probe.gap": Effect("train probe", _probes, _NO_PROBE),
    "probe.trials": Effect("train probe", _probes, _NO_PROBE),
    "probe.repeats": Effect("train probe", _probes, _NO_PROBE),
    "probe.soak_steps": Effect("train probe", _probes, _NO_PROBE),
    "analysis.noise_threshold": Effect(
        "train compare probe analyze", lambda s: s.command != "train" or s.probes, "nothing is compared here"
    ),
    "analysis.confidence": Effect("compare analyze"),
    "analysis.loss_tolerance": Effect("compare analyze"),
    "analysis.target_perplexity": Effect("train compare", _has_perplexity, _NO_PERPLEXITY),
    "analysis.time_budget_s": Effect("train compare", _has_perplexity, _NO_PERPLEXITY),
}

_READ_BY = (
    (WORKLOADS, "train probe data"),
    (DATASETS, "train probe data"),
    (POLICIES, "train solve"),
    (STRATEGIES, "train probe"),
    (COMPRESSORS, "train probe"),
)
"""Kinds of plug-ins, and the commands that look at their options unless these say otherwise."""


def _option_effects() -> Iterator[tuple[str, Effect]]:
    for registry, commands in _READ_BY:
        for option, options in registry.options().items():
            readers = registry.readers(option)
            otherwise = f"{registry.kind} '{{{registry.kind.replace(' ', '')}}}'"
            otherwise += "{of_virtual_ranks} does not read it" if registry is STRATEGIES else " does not read it"
            if readers:
                otherwise += f" ({', '.join(readers)} {'does' if len(readers) == 1 else 'do'})"
            declared = vars(options.declarer(option))
            read_by = declared.get("read_by") or commands
            conditional = Effect(read_by, _option_is_read(registry, option), otherwise)
            yield f"{registry.section}.{option}", Effect(read_by) if declared.get("refused") else conditional


def _option_is_read(registry: Registry[Any], option: str) -> Callable[[Situation], bool]:
    def is_read(s: Situation) -> bool:
        if registry is STRATEGIES and not s.real_ranks:
            return False
        if registry is DATASETS and s.config.workload.runs_own_code:
            return True
        chosen = s.chosen(registry)
        return not chosen or any(entry.reads(option) for entry in chosen)

    return is_read


_OF_OPTIONS = dict(_option_effects())
EFFECTS: dict[str, Effect] = {key: _OF_OPTIONS[key] if key in _OF_OPTIONS else _COMMON[key] for key in all_keys()}
