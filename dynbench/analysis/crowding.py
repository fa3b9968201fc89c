"""Whether a run's ranks share cores, so that they wait for the system's scheduler too."""

from __future__ import annotations

from dataclasses import dataclass

from dynbench.analysis.comparability import device_names, fact
from dynbench.analysis.run_facts import RunFacts

MARK = "oversubscribed"


@dataclass(frozen=True, slots=True)
class Load:
    """Computing threads of a node, and its cores.

    Attributes:
        ranks: of the node.
        threads: of each.
        cores: that they may use.
        virtual: one process plays the ranks in turn.
    """

    ranks: int
    threads: int
    cores: int
    virtual: bool

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more threads than cores."""
        return self.threads * (1 if self.virtual else self.ranks) > self.cores


def load_of(facts: RunFacts) -> Load | None:
    """None where ranks compute on devices, or nothing says how many cores there are."""
    launch, cores = facts.config.launch, fact(facts.env, "cpu_cores.usable")
    threads, ranks = launch.threads, launch.nproc
    on_cpu = device_names(facts.env) is None
    if not (on_cpu and isinstance(cores, int) and isinstance(threads, int) and isinstance(ranks, int)):
        return None
    return Load(ranks, threads, cores, facts.virtual)


def oversubscribed(facts: RunFacts) -> bool | None:
    """Whether a run's threads are more than its cores; None where that is not known, or of devices."""
    load = load_of(facts)
    return None if load is None else load.oversubscribed
