"""Settings that were changed and decide nothing: options of plug-ins that are not chosen, and others that mislead.

What cannot work at all is refused by `rules.py` instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dynbench.config.schema import Config, Probe, value_of
from dynbench.config.values import default_of
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS, PolicyEntry, Registry

Command = Literal["train", "probe", "solve"]
"""An arm of `compare` is trained."""


@dataclass(frozen=True)
class Use:
    """What a command is about to do with its settings.

    Args:
        given: the settings as the user gave them.
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
        """The policies that are planned; an unknown name is refused elsewhere."""
        names = self.policies or (self.config.schedule.policy_name,)
        return tuple(POLICIES[name] for name in names if name in POLICIES)

    @property
    def virtual(self) -> bool:
        """Whether one process plays all ranks."""
        return self.config.launch.launcher == "virtual"

    @property
    def plans_with_speeds(self) -> bool:
        """Whether the ranks' speeds, where they differ, decide a plan."""
        unsplit = self.config.schedule.micro_batches in (1, "auto")
        return any(policy.speeds == "always" or (policy.speeds == "unsplit" and unsplit) for policy in self.planned)


def model_is_read(config: Config) -> bool:
    """Whether `workload.model` names the weights, the shape or the tokenizer."""
    workload = config.workload
    tokenises = workload.tokenizer is None and workload.tokenizer_name == workload.model
    texts = workload.runs_own_code or DATASETS[workload.dataset].of_texts
    return workload.runs_own_code or workload.reads_model or (tokenises and texts)


@dataclass(frozen=True, slots=True)
class Reading:
    """Whether a setting is read that misleads where it is not.

    Args:
        commands: those that look at it, parted by spaces.
        read: whether it is read.
        otherwise: why it is not; `{policy}` stands for the policies that are planned.
    """

    commands: str
    read: bool
    otherwise: str


def readings(use: Use) -> dict[str, Reading]:
    """Dotted key to whether the setting is read, for the settings that mislead where they are not."""
    schedule, workload, launch, world_size = use.config.schedule, use.config.workload, use.given.launch, use.world_size
    speeds = use.plans_with_speeds
    cost = any(policy.costs for policy in use.planned) or (schedule.speeds is not None and speeds)
    real = use.config.launch.launcher == "torchrun"
    kind, key = ("virtual", "world_size") if use.virtual else ("real", "nproc")
    ranks = f"there are {world_size} {kind} ranks (launch.{key})"
    if use.attached:
        ranks = "torchrun or srun has started the ranks"
    # A named probe was made with them: `-c` of its run's configuration gives them again.
    probed = Reading(
        "train", use.probes or use.config.probe.run not in (None, "off"), "no probe is made (probe.run=auto)"
    )
    return {
        "workload.model": Reading(
            "train probe",
            model_is_read(use.config),
            "weights are random, their shape is workload.size; set weights to pretrained, or size to model",
        ),
        "workload.size": Reading(
            "train probe",
            workload.runs_own_code or workload.weights == "random",
            "pretrained weights bring their own shape",
        ),
        "schedule.cost_type": Reading("train solve", cost, "policy '{policy}' plans without a predicted cost"),
        "schedule.cost_coefficients": Reading(
            "train solve",
            cost and schedule.cost_type in ("auto", "measured"),
            "no plan is made with the measured cost (schedule.cost_type, schedule.policy)",
        ),
        "schedule.capacity": Reading(
            "train", any(policy.capped for policy in use.planned), "policy '{policy}' obeys no capacities"
        ),
        "schedule.speeds": Reading("train solve", speeds, "no plan of '{policy}' uses them"),
        "schedule.replan_steps": Reading(
            "train", schedule.speeds == "auto", "speeds are not estimated (schedule.speeds=auto)"
        ),
        "launch.nproc": Reading(
            "train probe", not use.attached and (not use.virtual or launch.nproc in (1, world_size)), ranks
        ),
        "launch.world_size": Reading("train probe", not real or launch.world_size == world_size, ranks),
        "launch.comm_model": Reading("train probe", not real, "real ranks communicate in earnest"),
        **{f"probe.{name}": probed for name in Probe.model_fields if name != "run"},
    }


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
    found = [{**dict(_options(command, use)), **readings(use)} for use in uses]
    lines = []
    for key in found[0] if found else ():
        values = [value_of(use.given, key) for use in uses]
        for index, value in enumerate(values):
            having = [n for n, other in enumerate(values) if other == value]
            several = [found[n][key] for n in having]
            if index > having[0] or value == default_of(key) or command not in several[0].commands.split():
                continue
            if not any(reading.read for reading in several):
                policies = dict.fromkeys(entry.name for n in having for entry in uses[n].planned)
                why = several[0].otherwise.replace("{policy}", ", ".join(policies))
                lines.append(f"{key}: {value!r} has no effect: {why}")
    return lines + (_given_to_solve(uses[0].given) if command == "solve" else [])


def _options(command: Command, use: Use) -> Iterator[tuple[str, Reading]]:
    """Every option of plug-ins: it is read where a chosen plug-in has it.

    Code of the user's own, which no registry knows, may read any option.
    """
    for registry in _KINDS[command]:
        name = str(value_of(use.config, registry.key))
        known = [registry[name]] if name in registry else []
        chosen = use.planned if registry is POLICIES else known
        own_code = not chosen or (registry is DATASETS and use.config.workload.runs_own_code)
        shown = "{policy}" if registry is POLICIES else name
        unplayed = registry is STRATEGIES and use.virtual
        played = " of virtual ranks, which send no gradients," if unplayed else ""
        for option in registry.options():
            readers = registry.readers(option)
            others = f" ({', '.join(readers)} {'does' if len(readers) == 1 else 'do'})" if readers else ""
            read = not unplayed and (own_code or any(entry.reads(option) for entry in chosen))
            why = f"{registry.kind} '{shown}'{played} does not read it{others}"
            yield f"{registry.section}.{option}", Reading(command, read, why)


def _given_to_solve(given: Config) -> list[str]:
    """The settings of training that `solve` has options of its own for, in a line that names these."""
    implied = given.schedule.policy is not None  # a mode that only follows from a policy was not given
    keys = [key for key in INSTEAD if value_of(given, key) != default_of(key)]
    named = [f"{key} ({INSTEAD[key]})" for key in keys if not (implied and key == "schedule.mode")]
    return [f"{', '.join(named)}: no effect on `dynbench solve`, which does not read this"] if named else []
