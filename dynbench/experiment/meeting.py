"""Which arms of a comparison share a launch: all of them, each with the baseline, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dynbench.analysis.question import within
from dynbench.config.digest import differences
from dynbench.config.image_rules import ahead
from dynbench.config.launches import Launches, odd_number
from dynbench.config.schema import Config
from dynbench.errors import ConfigError
from dynbench.plugins import STRATEGIES, options_of
from dynbench.plugins.strategies import DilocoOptions, LocalOptions

Mode = Literal["interleaved", "apart"]
Groups = tuple[tuple[str, ...], ...]

MOST_TOGETHER = 24
"""Arms of one launch, their likes without communication among them: each has process groups, threads and a replica that
rest while the others run."""
OFTEN = 5
"""Steps between evaluations below which too little is left: in a shared launch, the step after each does not count."""
LEAST_BLOCK = 8
"""Steps of a turn where an arm's work goes on across steps."""

OF_THE_PROCESS = ("launch", "train.steps", "train.warmup_steps")
"""Sections and keys that a process has once."""
OF_THE_ARM = ("launch.slowdown", "launch.comm_model", "launch.world_size")
"""Keys among these that each arm has by itself."""
OF_THE_CODE = ("workload.name", "workload.import_from", "workload.code_digest")
"""Where code of the user's own comes from: two versions of a module cannot be in one process."""


@dataclass(frozen=True)
class Meeting:
    """How the arms of a comparison meet.

    Attributes:
        mode: whether arms share launches.
        reason: why.
        groups: the arms of each launch; together they are launched once per block, every second block in reverse.
    """

    mode: Mode
    reason: str
    groups: Groups

    def without(self, arm: str, baseline: str, reason: str) -> Meeting:
        """One arm apart, with launches of the baseline apart to be compared with; without the baseline, all apart."""
        if arm == baseline:
            return apart([name for group in self.groups for name in group], reason)
        left = [kept for group in self.groups if len(kept := tuple(name for name in group if name != arm)) > 1]
        alone = [group for group in self.groups if len(group) == 1 and group not in ((arm,), (baseline,))]
        mode: Mode = "interleaved" if left else "apart"
        return Meeting(mode, reason, (*left, (baseline,), *alone, (arm,)))

    def smaller(self, baseline: str, reason: str) -> Meeting:
        """Fewer arms in a launch: each with the baseline, or, where it is so already, none together."""
        groups: list[tuple[str, ...]] = []
        for group in self.groups:
            groups += (
                [group] if len(group) == 1 else _pairs(group, baseline) if len(group) > 2 else [(one,) for one in group]
            )
        smaller = tuple(dict.fromkeys(groups))
        return Meeting("interleaved" if max(map(len, smaller)) > 1 else "apart", reason, smaller)


def apart(arms: Sequence[str], reason: str) -> Meeting:
    """Every arm in launches of its own."""
    return Meeting("apart", reason, tuple((arm,) for arm in dict.fromkeys(arms)))


def decide_meeting(launches: Launches, arms: Mapping[str, Config], baseline: str) -> Meeting:
    """How the arms of a comparison meet.

    Args:
        launches: what is asked for.
        arms: their resolved settings.
        baseline: the arm that the others are compared with.

    Raises:
        ConfigError: arms are to be interleaved and cannot be, or one and its like without communication, or are to be
            launched an odd number of times and have to be apart; names what is in the way.
    """
    check_silent_turns(arms)
    if launches.mode == "apart":
        return apart(list(arms), "launches.mode is apart")
    found = list(dict.fromkeys(obstacles(launches, arms, baseline)))
    if found and launches.mode == "interleaved":
        hint = "Make them equal, or launch the arms apart: launches.mode=apart (--launch-mode apart)."
        raise ConfigError([f"launches.mode: interleaved, but {obstacle}" for obstacle in found], hint)
    if found:
        if (odd := odd_number(launches)) is not None:
            raise ConfigError([f"launches.{odd[0]}: {odd[1]}"], f"These cannot take turns: {'; '.join(found)}.")
        return apart(list(arms), "; ".join(found))
    asked = "launches.mode is interleaved" if launches.mode == "interleaved" else "the arms can share their processes"
    silent = sum(config.train.exposed for config in arms.values())
    if len(arms) + silent > MOST_TOGETHER:
        besides = f" and {silent} without communication" if silent else ""
        reason = f"{asked}; {len(arms)} arms{besides} are more than {MOST_TOGETHER}, so each meets the baseline"
        return Meeting("interleaved", reason, _pairs(list(arms), baseline))
    return Meeting("interleaved", asked, (tuple(arms),))


def check_silent_turns(arms: Mapping[str, Config]) -> None:
    """Refuse arms that ask for `train.exposed` and cannot take turns with their likes without communication.

    Raises:
        ConfigError: names what is in the way.
    """
    problems = [
        f"train.exposed: true, but {obstacle}"
        for name, config in arms.items()
        if config.train.exposed
        for obstacle in obstacles(Launches(block=least_turn(config)), {name: config}, name)
    ]
    if problems:
        raise ConfigError(problems, "Change that, or set train.exposed to false.")


def _pairs(arms: Sequence[str], baseline: str) -> Groups:
    return tuple((baseline, arm) for arm in arms if arm != baseline)


def obstacles(launches: Launches, arms: Mapping[str, Config], baseline: str) -> Iterator[str]:
    """Why arms cannot share their processes."""
    first = arms[baseline]
    for name, config in arms.items():
        code = OF_THE_CODE if first.workload.runs_own_code or config.workload.runs_own_code else ()
        for key, (one, other) in differences(first, config).items():
            if within(key, (*OF_THE_PROCESS, *code)) and not within(key, OF_THE_ARM):
                yield f"{key} is {one} in arm {baseline}, {other} in arm {name}"
        every = min(filter(None, (config.train.eval_every, config.train.epoch_steps)), default=0)
        if 0 < every < OFTEN and config.train.eval_samples:
            key = "train.eval_every" if every == config.train.eval_every else "an epoch"
            yield f"{key} of arm {name} is {every} steps, and the step after each evaluation does not count"
        if config.train.profile_steps:
            yield (
                f"train.profile_steps of arm {name} is {config.train.profile_steps}, and a profiler is "
                "of the whole process, where it slows every arm"
            )
        if workers := ahead(config):
            yield (
                f"workload.workers of arm {name} is {workers}: they decode its next images, which would be in the time "
                "of the arm that is on then"
            )
        if (least := least_turn(config)) > launches.block:
            yield (
                f"sync.name {config.sync.name} of arm {name} works on across steps, which takes turns of "
                f"{least} steps (launches.block, --block), not of {launches.block}"
            )


def least_turn(config: Config) -> int:
    """Steps below which turns would cut off what goes on across them: what is under way, ranks that are apart."""
    entry, options = STRATEGIES.find(config.sync.name), options_of(config.sync, DilocoOptions)
    under_way = LEAST_BLOCK if entry.across_steps or options.overlap_steps else 1
    return max(under_way, options_of(config.sync, LocalOptions).inner_steps if entry.reads("inner_steps") else 1)
