"""What a command is about to do with its settings, as far as it decides which of them are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dynbench.config.schema import Config
from dynbench.plugins import POLICIES, Entry, PolicyEntry, Registry

Command = Literal["train", "compare", "probe", "solve", "analyze"]


@dataclass(frozen=True)
class Situation:
    """What a command is about to do with its settings.

    Args:
        command: an arm of `compare` is read as `train` reads it, and by the analysis.
        given: the settings as asked for.
        config: the same decided as far as that is known; what is still `auto` counts as read.
        world_size: ranks (G), where known.
        attached: torchrun or srun has started the ranks.
        probes: a probe is made first, with the same settings.
        policies: of `solve`, what it plans; else the policy of the configuration.
        plans_data: of `solve`, whether it plans the data set of `workload.*`.
    """

    command: Command
    given: Config
    config: Config
    world_size: int | None = None
    attached: bool = False
    probes: bool = False
    policies: tuple[str, ...] = ()
    plans_data: bool = False

    @property
    def readers(self) -> frozenset[str]:
        """The words of `Effect.commands` that this command answers to."""
        words = {"compare": {"train", "compare"}, "solve": {"solve", "data"} if self.plans_data else {"solve"}}
        return frozenset(words.get(self.command, {self.command}))

    @property
    def planned(self) -> tuple[PolicyEntry, ...]:
        """The policies that are planned."""
        return tuple(POLICIES.find(name) for name in self.policies or (self.config.schedule.policy_name,))

    def chosen(self, registry: Registry[Any]) -> tuple[Entry, ...]:
        """The plug-ins of a kind that run; none where the choice is a class of the user's own, outside the registry."""
        if registry is POLICIES:
            return self.planned
        section, _, field = registry.key.partition(".")
        name = getattr(getattr(self.config, section), field)
        return (registry[name],) if name in registry else ()

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
    def cost_is_measured(self) -> bool:
        """Whether costs are in milliseconds, with a price for each micro-batch."""
        schedule = self.config.schedule
        fitted = schedule.cost_coefficients is not None or self.config.probe.run not in (None, "off")
        if self.given.schedule.cost_type == "auto":
            return schedule.cost_type == "measured" or fitted or self.probes
        return schedule.cost_type == "measured"

    @property
    def real_ranks(self) -> bool:
        """Whether ranks are, or may be, processes of their own."""
        return self.config.launch.launcher != "virtual"

    @property
    def ranks(self) -> str:
        """Where the number of ranks comes from, in words."""
        if self.attached:
            return "torchrun or srun has started the ranks"
        if self.real_ranks:
            return f"there are {self.world_size} real ranks (launch.nproc)"
        return f"there are {self.world_size} virtual ranks (launch.world_size)"
