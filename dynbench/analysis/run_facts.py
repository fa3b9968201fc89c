"""What a run folder says about itself, apart from its rows: configuration, environment, status."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynbench.config.ranks import ranks_of
from dynbench.config.rules import known_world_size
from dynbench.config.schema import Config
from dynbench.errors import RecordError
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run
from dynbench.runs.status import Status

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFacts:
    """Configuration, environment and status of a run.

    Attributes:
        config: resolved.
        env: contents of env.json.
        status: completed, failed, interrupted, …
        started: ISO time at which the ranks started; launches are ordered by it.
        world_size: ranks that the run was launched with, None where nothing says it.
        servers: how many of these train nothing, the first ones.
    """

    config: Config
    env: Mapping[str, object]
    status: str
    started: str
    world_size: int | None
    servers: int = 0

    @property
    def policy(self) -> str:
        """The policy that planned the run."""
        return self.config.schedule.policy_name

    @property
    def plan_name(self) -> str:
        """What its plans are called: the policy, `packed` for partition without padding."""
        return self.config.plan_name

    @property
    def unfinished(self) -> bool:
        """Whether its ranks still write."""
        return not Status(self.status).is_over

    @property
    def virtual(self) -> bool:
        """Whether one process played every rank in turn."""
        return self.config.launch.launcher == "virtual"

    @property
    def link_gbps(self) -> float | None:
        """Gb/s of the emulated link over which it sent; None where there was none."""
        return self.config.launch.link_gbps if self.config.sync.communicate else None

    @property
    def trains(self) -> bool:
        """Whether the run trained a model: not where ranks sent nothing to each other."""
        return self.config.sync.trains

    @property
    def leak(self) -> Phrase | None:
        """That samples of a row see each other, as was seen before the first step; None where nothing was."""
        seen = section(self.env, "packed_rows")
        if not seen.get("leak"):
            return None
        if seen["foreign_gradient"]:
            return Phrase.of("leak.sees", gradient=seen["foreign_gradient"])
        return Phrase.of("leak.differs", difference=max(seen["output_difference"], seen["gradient_difference"]))

    @property
    def apart(self) -> bool:
        """Whether samples that run together are known not to see each other, as far as that is in question."""
        shown = bool(section(self.env, "packed_rows"))
        return self.leak is None and (shown or self.config.workload.layout != "flattened")

    @property
    def together(self) -> str | None:
        """Id of the launch that it shared with other arms, equal for all runs of it; None where it was alone."""
        found = section(self.env, "together")
        return str(found["id"]) if "id" in found else None

    @property
    def comm_model(self) -> Phrase | None:
        """The communication model of virtual ranks in words; None for real ranks."""
        if not self.virtual:
            return None
        decided = section(self.env, "decisions").get("launch.comm_model", {})
        value, said = decided.get("value", self.config.launch.comm_model), decided.get("said")
        if value is None:
            return Phrase("none", "comm_model.none")
        return Phrase.read(said) if isinstance(said, Mapping) else Phrase(str(value))

    @property
    def clocks_ahead_ns(self) -> Sequence[int]:
        """By rank, what its clock is ahead of rank 0's; empty where nothing says it."""
        offsets = section(self.env, "clocks").get("offsets_ns")
        if isinstance(offsets, list) and all(type(offset) is int for offset in offsets):
            return offsets
        return []

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.train.seed

    @property
    def window(self) -> int:
        """Global batches planned together (W)."""
        return self.config.schedule.window_size


def section(env: Mapping[str, object], key: str) -> Mapping[str, Any]:
    """An object in env.json; empty where it holds none."""
    found = env.get(key)
    return found if isinstance(found, Mapping) else {}


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
    counts = section(env, "ranks")
    return RunFacts(
        config=config,
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
