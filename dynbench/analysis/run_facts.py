"""What a run folder says about itself, apart from its rows: configuration, environment, status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dynbench.config.digest import flatten
from dynbench.config.ranks import ranks_of
from dynbench.config.rules import known_world_size
from dynbench.errors import RecordError
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run
from dynbench.runs.status import Status

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFacts:
    """Configuration, environment and status of a run.

    Attributes:
        config: dotted key to value, resolved.
        env: contents of env.json.
        status: completed, failed, interrupted, …
        started: ISO time at which the ranks started; launches are ordered by it.
        world_size: ranks that the run was launched with, None where nothing says it.
        servers: how many of these train nothing, the first ones.
    """

    config: Mapping[str, object]
    env: Mapping[str, object]
    status: str
    started: str
    world_size: int | None
    servers: int = 0

    @property
    def policy(self) -> str:
        """The policy that planned the run."""
        return str(self.config["schedule.policy"] or ("partition" if self.mode == "dynamic" else "static"))

    @property
    def mode(self) -> str:
        """`static` or `dynamic`."""
        return str(self.config["schedule.mode"])

    @property
    def unfinished(self) -> bool:
        """Whether its ranks still write."""
        return not Status(self.status).is_over

    @property
    def launcher(self) -> str:
        """`torchrun` or `virtual`."""
        return str(self.config["launch.launcher"])

    @property
    def virtual(self) -> bool:
        """Whether one process played every rank in turn."""
        return self.launcher == "virtual"

    @property
    def trains(self) -> bool:
        """Whether the run trained a model: not where ranks sent nothing to each other (`sync.communicate: false`)."""
        return bool(self.config["sync.communicate"])

    @property
    def comm_model(self) -> Phrase | None:
        """The communication model of virtual ranks in words; None for real ranks."""
        if not self.virtual:
            return None
        decided = self.decided("launch.comm_model")
        if decided is None:
            return Phrase("none", "comm_model.none")
        said = (self._decision("launch.comm_model") or {}).get("said")
        return Phrase.read(said) if isinstance(said, Mapping) else Phrase(str(decided))

    @property
    def steps(self) -> int:
        """Measured steps that were asked for."""
        return self.number("train.steps")

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks (B)."""
        return self.number("train.global_batch")

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.number("train.seed")

    @property
    def window(self) -> int:
        """Global batches planned together (W)."""
        return self.number("schedule.window")

    @property
    def dropout(self) -> bool:
        """Whether the model drops anything; null keeps the model's own rate, which is taken as on."""
        return self.config["workload.dropout"] != 0

    def decided(self, key: str) -> object:
        """What was decided for a key left to the program, with what was only known at the start; else as configured."""
        decision = self._decision(key)
        return self.config.get(key) if decision is None else decision.get("value")

    def _decision(self, key: str) -> Mapping[str, object] | None:
        decisions = self.env.get("decisions")
        decision = decisions.get(key) if isinstance(decisions, Mapping) else None
        return decision if isinstance(decision, Mapping) else None

    def number(self, key: str) -> int:
        """An integer of the configuration."""
        value = self.config[key]
        assert isinstance(value, int), key
        return value


def status_phrase(status: str) -> Phrase:
    """The status of a run, for texts in other languages too."""
    return Phrase(status, f"status.{status}")


def read_facts(run: Run) -> RunFacts:
    """Facts of a run.

    Raises:
        RecordError: its run.json or config.yaml cannot be read.
    """
    config, env = run.config(), _env(run)
    record = run.record()
    told = env.get("ranks")
    counts = told if isinstance(told, Mapping) else {}
    return RunFacts(
        config=flatten(config),
        env=env,
        status=str(run.status),
        started=str(record.started or record.created),
        world_size=counts.get("world_size", known_world_size(config)),
        servers=counts.get("servers", ranks_of(config, 0).servers),
    )


def _env(run: Run) -> Mapping[str, object]:
    """Provenance; empty, with a warning, where the run stopped before writing it."""
    try:
        return run.env()
    except RecordError as error:
        log.warning("%s; comparisons cannot check the environment of %s", error.message, run.label)
        return {}
