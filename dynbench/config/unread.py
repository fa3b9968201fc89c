"""Settings that were changed and decide nothing: options of plug-ins that are not chosen, and others that mislead.

What cannot work at all is refused by `rules.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dynbench.config.describe import default_of
from dynbench.config.digest import value_of
from dynbench.config.schema import Config, Probe
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS, PolicyEntry, Registry

Command = Literal["train", "probe", "solve"]
"""An arm of `compare` is trained."""


@dataclass(frozen=True)
class Use:
    """What a command is about to do with its settings.

    Args:
        given: the settings as asked for.
        config: the same decided as far as that is known; what is still `auto` counts as read.
        world_size: ranks, where known.
        attached: torchrun or srun has started the ranks.
        probes: a probe is made first, with the same settings.
        policies: names of those that are planned; empty for that of the configuration.
    """

    given: Config
    config: Config
    world_size: int | None = None
    attached: bool = False
    probes: bool = False
    policies: tuple[str, ...] = ()

    @property
    def planned(self) -> tuple[PolicyEntry, ...]:
        """The policies that are planned."""
        return tuple(POLICIES.find(name) for name in self.policies or (self.config.schedule.policy_name,))

    @property
    def virtual(self) -> bool:
        """Whether one process plays all ranks."""
        return self.config.launch.launcher == "virtual"

    @property
    def plans_with_speeds(self) -> bool:
        """Whether the ranks' speeds, where they differ, decide a plan."""
        split = self.config.schedule.micro_batches not in (1, "auto")
        return any(policy.speeds == "always" or (policy.speeds == "unsplit" and not split) for policy in self.planned)

    @property
    def plans_with_cost(self) -> bool:
        """Whether the predicted cost decides a plan."""
        unequal = self.config.schedule.speeds is not None
        return any(policy.costs for policy in self.planned) or (unequal and self.plans_with_speeds)

    @property
    def ranks(self) -> str:
        """Where the number of ranks comes from, in words."""
        if self.attached:
            return "torchrun or srun has started the ranks"
        kind, key = ("virtual", "world_size") if self.virtual else ("real", "nproc")
        return f"there are {self.world_size} {kind} ranks (launch.{key})"


def model_is_read(config: Config) -> bool:
    """Whether `workload.model` names the weights, the shape or the tokenizer."""
    workload = config.workload
    tokenises = workload.tokenizer is None and workload.tokenizer_name == workload.model
    texts = workload.runs_own_code or DATASETS[workload.dataset].of_texts
    return workload.runs_own_code or workload.reads_model or (tokenises and texts)


@dataclass(frozen=True)
class Rule:
    """When a setting is read that misleads where it is not.

    Args:
        keys: dotted keys, parted by spaces.
        commands: those that look at it, parted by spaces.
        is_read: the condition.
        otherwise: why it is not read where that is not met; with fields of `_facts`.
    """

    keys: str
    commands: str
    is_read: Callable[[Use], bool]
    otherwise: str


RULES = (
    Rule(
        "workload.model",
        "train probe",
        lambda use: model_is_read(use.config),
        "weights are random, their shape is workload.size; set weights to pretrained, or size to model",
    ),
    Rule(
        "workload.size",
        "train probe",
        lambda use: use.config.workload.runs_own_code or use.config.workload.weights == "random",
        "pretrained weights bring their own shape",
    ),
    Rule(
        "schedule.cost_type",
        "train solve",
        lambda use: use.plans_with_cost,
        "policy '{policy}' plans without a predicted cost",
    ),
    Rule(
        "schedule.cost_coefficients",
        "train solve",
        lambda use: use.plans_with_cost and use.config.schedule.cost_type in ("auto", "measured"),
        "no plan is made with the measured cost (schedule.cost_type, schedule.policy)",
    ),
    Rule(
        "schedule.capacity",
        "train",
        lambda use: any(policy.capped for policy in use.planned),
        "policy '{policy}' obeys no capacities",
    ),
    Rule("schedule.speeds", "train solve", lambda use: use.plans_with_speeds, "no plan of '{policy}' uses them"),
    Rule(
        "schedule.replan_steps",
        "train",
        lambda use: use.config.schedule.speeds == "auto",
        "speeds are not estimated (schedule.speeds=auto)",
    ),
    Rule(
        "launch.nproc",
        "train probe",
        lambda use: not use.attached and (not use.virtual or use.given.launch.nproc in (1, use.world_size)),
        "{ranks}",
    ),
    Rule(
        "launch.world_size",
        "train probe",
        lambda use: use.config.launch.launcher != "torchrun" or use.given.launch.world_size == use.world_size,
        "{ranks}",
    ),
    Rule(
        "launch.comm_model",
        "train probe",
        lambda use: use.config.launch.launcher != "torchrun",
        "real ranks communicate in earnest",
    ),
    Rule(
        " ".join(f"probe.{name}" for name in Probe.model_fields if name != "run"),
        "train",
        # A named probe was made with them: `-c` of its run's configuration gives them again.
        lambda use: use.probes or use.config.probe.run not in (None, "off"),
        "no probe is made (probe.run=auto)",
    ),
)
_KINDS: dict[Command, tuple[Registry[Any], ...]] = {
    "train": (WORKLOADS, DATASETS, POLICIES, STRATEGIES, COMPRESSORS),
    "probe": (WORKLOADS, DATASETS, STRATEGIES, COMPRESSORS),
    "solve": (POLICIES,),
}
"""Kinds of plug-ins whose options a command looks at."""
INSTEAD = {
    "schedule.mode": "--policy",
    "schedule.policy": "--policy",
    "train.steps": "--steps",
    "train.global_batch": "--global-batch or --batch-per-rank",
    "launch.world_size": "--world-size",
}
"""Options of `solve` that say what a setting says elsewhere."""


def unread(command: Command, uses: Sequence[Use]) -> list[str]:
    """A line for every setting that was changed and that decides nothing.

    Args:
        command: what the settings were given to.
        uses: several of the arms of a comparison. A value counts as read where it is read in any use that has it, so
            that arms may share what only some of them need.
    """
    rules = [*_option_rules(command), *(rule for rule in RULES if command in rule.commands.split())]
    lines = []
    for key, rule in [(key, each) for each in rules for key in each.keys.split()]:
        values = [value_of(use.given, key) for use in uses]
        for value in _distinct(values):
            having = [use for use, other in zip(uses, values, strict=True) if other == value]
            if value != default_of(key) and not any(map(rule.is_read, having)):
                lines.append(f"{key}: {value!r} has no effect: {rule.otherwise.format_map(_facts(having))}")
    return lines + (_said_otherwise(uses[0].given) if command == "solve" else [])


def _facts(uses: Sequence[Use]) -> dict[str, object]:
    """What `Rule.otherwise` may name."""
    policies = dict.fromkeys(entry.name for use in uses for entry in use.planned)
    played = " of virtual ranks, which send no gradients," if uses[0].virtual else ""
    return {"policy": ", ".join(policies), "played": played, "ranks": uses[0].ranks, "config": uses[0].config}


def _option_rules(command: Command) -> Iterator[Rule]:
    """For every option of plug-ins that no rule refuses: it is read where a chosen plug-in has it."""
    for registry in _KINDS[command]:
        chosen = "{policy}" if registry is POLICIES else f"{{config.{registry.key}}}"
        played = "{played}" if registry is STRATEGIES else ""
        for option, options in registry.options().items():
            readers = registry.readers(option)
            others = f" ({', '.join(readers)} {'does' if len(readers) == 1 else 'do'})" if readers else ""
            if not options.declarer(option).refused:
                yield Rule(
                    f"{registry.section}.{option}",
                    command,
                    partial(_option_is_read, registry, option),
                    f"{registry.kind} '{chosen}'{played} does not read it{others}",
                )


def _option_is_read(registry: Registry[Any], option: str, use: Use) -> bool:
    """Whether a chosen plug-in has an option; code of the user's own, which no registry knows, may read any."""
    if registry is STRATEGIES and use.virtual:
        return False
    if registry is DATASETS and use.config.workload.runs_own_code:
        return True
    name = str(value_of(use.config, registry.key))
    chosen = use.planned if registry is POLICIES else [registry[name]] if name in registry else []
    return not chosen or any(entry.reads(option) for entry in chosen)


def _said_otherwise(given: Config) -> list[str]:
    """What a `solve` was given as settings of training, in a line that names its own options."""
    implied = given.schedule.policy is not None  # a mode that only follows from a policy was not given
    keys = [key for key in INSTEAD if value_of(given, key) != default_of(key)]
    said = [f"{key} ({INSTEAD[key]})" for key in keys if not (implied and key == "schedule.mode")]
    return [f"{', '.join(said)}: no effect on `dynbench solve`, which does not read this"] if said else []


def _distinct(values: Sequence[object]) -> list[object]:
    """The values, each once; mappings are among them, which no set holds."""
    return [value for index, value in enumerate(values) if value not in values[:index]]
