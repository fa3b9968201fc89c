"""What a run folder says about itself, apart from its rows: configuration, environment, status.

Of its environment also how its ranks share cores, so that they wait for the system's scheduler too, and what its data
came to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dynbench.config.ranks import ranks_of
from dynbench.config.rules import known_world_size
from dynbench.config.schema import Config
from dynbench.errors import RecordError
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run, Status

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
    def launch_id(self) -> str | None:
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


def fact(env: Mapping[str, object], key: str) -> object:
    """The value at a dotted path of env.json, None where it is unknown."""
    value: object = env
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def device_names(env: Mapping[str, object], first: int = 0) -> tuple[str, ...] | None:
    """Names of the accelerators of ranks from `first` on, in order; None where there are none or they are unknown."""
    devices = fact(env, "devices.ranks")
    if not isinstance(devices, list):
        return None
    names = [device.get("name") for device in devices[first:] if isinstance(device, Mapping)]
    return tuple(str(name) for name in names) if any(names) else None


MARK = "oversubscribed"


class Load(NamedTuple):
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


SHOWN_LABELS = 10


class DataFacts(NamedTuple):
    """Numbers of samples and tokens; None where they were not recorded.

    Attributes:
        train, evaluation: samples; evaluation is 0 where there are none.
        held_out: whether the evaluation samples were taken from the training samples.
        why_none: why there are no evaluation samples; None where there are, or it was not recorded.
        limit: longest sample, tokens.
        train_cut, evaluation_cut: samples that were longer, and the tokens that cutting removed.
        train_tokens: left after cutting.
        labels: class by the name that the file gives it; empty where the file counts classes from 0.
    """

    train: int | None
    evaluation: int | None
    held_out: bool
    why_none: str | None
    limit: int | None
    train_cut: tuple[int, int] | None
    evaluation_cut: tuple[int, int] | None
    train_tokens: int | None
    labels: Mapping[str, object]

    @property
    def cut_share(self) -> float | None:
        """Tokens that cutting removed, as a part of all that the training samples had."""
        if self.train_cut is None or not self.train_tokens:
            return None
        return self.train_cut[1] / (self.train_cut[1] + self.train_tokens)

    @property
    def named_labels(self) -> str:
        """The first classes as `name=number`."""
        shown = [f"{name}={number}" for name, number in list(self.labels.items())[:SHOWN_LABELS]]
        return ", ".join(shown) + (f", … ({len(self.labels)} classes)" if len(self.labels) > len(shown) else "")

    def lines(self) -> Iterator[tuple[str, str]]:
        """A word and a sentence for each thing worth telling."""
        if self.train is not None:
            yield "data", f"{self.train:,} samples trained on; {self._evaluated()}"
        for cut, which in ((self.train_cut, "training"), (self.evaluation_cut, "evaluation")):
            if cut is not None and cut[0]:
                share = f" ({self.cut_share:.1%} of all)" if which == "training" and self.cut_share else ""
                yield (
                    "cut",
                    f"{cut[0]:,} {which} samples to {self.limit} tokens, which removed {cut[1]:,} tokens{share}",
                )
        if self.labels:
            yield "labels", self.named_labels

    def _evaluated(self) -> str:
        if self.held_out:
            return f"{self.evaluation:,} more held out of the training data, for evaluation"
        if self.evaluation:
            return f"{self.evaluation:,} others for evaluation"
        return "none for evaluation" + (f": {self.why_none}" if self.why_none else "")


def read_data(env: Mapping[str, object], max_length: object = None) -> DataFacts:
    """The facts in a run's env.json.

    Args:
        env: its contents; a user's own workload may have written anything there.
        max_length: as configured, for runs that do not say how it was decided.
    """
    data = section(env, "data")
    evaluation, decisions = data.get("eval"), section(data, "decisions")
    decision, limit = section(decisions, "workload.eval"), section(decisions, "workload.max_length")
    decided = limit.get("value") if limit else max_length

    def count(key: str) -> int | None:
        value = fact(data, key)
        return value if isinstance(value, int) else None

    def cut(split: str) -> tuple[int, int] | None:
        samples, tokens = count(f"{split}.cut_samples"), count(f"{split}.cut_tokens")
        return None if samples is None or tokens is None else (samples, tokens)

    return DataFacts(
        train=count("train.samples"),
        evaluation=count("eval.samples") if evaluation is not None else 0 if "eval" in data else None,
        held_out=evaluation is not None and bool(decision),
        why_none=str(decision.get("reason")) if evaluation is None and decision else None,
        limit=decided if isinstance(decided, int) else None,
        train_cut=cut("train"),
        evaluation_cut=cut("eval"),
        train_tokens=count("train.tokens"),
        labels=section(data, "labels"),
    )
