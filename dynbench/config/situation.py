"""What a command is about to do with its settings, as far as it decides which of them are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dynbench.config.schema import Config

Command = Literal["train", "compare", "probe", "solve", "analyze"]

TEXT_FILE_DATASETS = ("tsv", "jsonl", "csv")
FILE_DATASETS = (*TEXT_FILE_DATASETS, "lengths")
GENERATED_DATASETS = ("embedded", "lognormal", "lengths")
"""Data sets whose token ids are generated: they have no texts, labels or columns of these."""
COST_POLICIES = ("partition", "window", "prefix", "lpt", "karmarkar_karp", "karmarkar_karp_equal", "packed")
"""Policies that plan with the predicted cost."""
SPEED_POLICIES = (*COST_POLICIES, "sorted_equal", "hf_batch_rebalance")
"""Policies that plan with the ranks' speeds; the last two put their dearest share on the fastest rank, nothing more."""
VIRTUAL_SYNCS = ("ddp",)
"""Strategies that virtual ranks can play."""
SYNC_READS = {"ddp": ("bucket_mb",)}
"""Strategy to the settings of the `sync` section that it looks at, beside the name."""
SERVERS: dict[str, int] = {}
"""Strategy to the ranks that it has serve and train nothing; one that is not named has none."""
CAPPED_POLICIES = ("static", "partition", "window", "prefix", "token_budget", "packed")
"""Policies that keep to the capacities."""


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

    def plans_with(self, *policies: str) -> bool:
        """Whether one of these policies is planned."""
        return bool(set(self.policies or (self.config.schedule.policy_name,)) & set(policies))

    @property
    def plans_with_speeds(self) -> bool:
        """Whether the ranks' speeds, where they differ, decide a plan."""
        split = self.config.schedule.micro_batches not in (1, "auto")
        return self.plans_with(*(name for name in SPEED_POLICIES if not split or name != "hf_batch_rebalance"))

    @property
    def plans_with_cost(self) -> bool:
        """Whether the predicted cost decides a plan."""
        unequal = self.config.schedule.speeds is not None
        return self.plans_with(*COST_POLICIES) or (unequal and self.plans_with_speeds)

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
    def planned(self) -> str:
        """The policies that are planned, by name."""
        return ", ".join(self.policies or (self.config.schedule.policy_name,))

    @property
    def ranks(self) -> str:
        """Where the number of ranks comes from, in words."""
        if self.attached:
            return "torchrun or srun has started the ranks"
        if self.real_ranks:
            return f"there are {self.world_size} real ranks (launch.nproc)"
        return f"there are {self.world_size} virtual ranks (launch.world_size)"
