"""Which arms of a comparison share a launch, what is planned and what is done: `compare.json` in its folder.

The file is replaced after every launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Literal

from dynbench.analysis.differences import within
from dynbench.config.part_rules import ahead
from dynbench.config.recipes import Launches, odd_number
from dynbench.config.schema import Config, differences
from dynbench.errors import ConfigError
from dynbench.plugins import STRATEGIES, options_of
from dynbench.plugins.strategies import DilocoOptions, LocalOptions
from dynbench.runs.atomic import read_json, write_json
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import RunId

STATE_FILE = "compare.json"
Mode = Literal["interleaved", "apart"]
Groups = tuple[tuple[str, ...], ...]

MOST_ARMS = 24
"""Arms of one launch, null arms (the same without communication) among them: each has process groups, threads and a
replica that rest while the others run."""
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
class Grouping:
    """Which arms share a launch.

    Attributes:
        mode: whether arms share launches.
        reason: why.
        groups: the arms of each launch; together they are launched once per block, every second block in reverse.
    """

    mode: Mode
    reason: str
    groups: Groups

    def without(self, arm: str, baseline: str, reason: str) -> Grouping:
        """One arm apart, with launches of the baseline apart to be compared with; without the baseline, all apart."""
        if arm == baseline:
            return apart([name for group in self.groups for name in group], reason)
        left = [rest for group in self.groups if len(rest := tuple(name for name in group if name != arm)) > 1]
        alone = [group for group in self.groups if len(group) == 1 and group not in ((arm,), (baseline,))]
        mode: Mode = "interleaved" if left else "apart"
        return Grouping(mode, reason, (*left, (baseline,), *alone, (arm,)))

    def smaller(self, baseline: str, reason: str) -> Grouping:
        """Fewer arms in a launch: each with the baseline, or, where it is so already, none together."""
        parts = (_pairs(group, baseline) if len(group) > 2 else [(one,) for one in group] for group in self.groups)
        smaller = tuple(dict.fromkeys(chain.from_iterable(parts)))
        return Grouping("interleaved" if max(map(len, smaller)) > 1 else "apart", reason, smaller)


def apart(arms: Sequence[str], reason: str) -> Grouping:
    """Every arm in launches of its own."""
    return Grouping("apart", reason, tuple((arm,) for arm in dict.fromkeys(arms)))


def decide_grouping(launches: Launches, arms: Mapping[str, Config], baseline: str) -> Grouping:
    """Which arms of a comparison share a launch.

    Args:
        launches: how many, and how arms share processes.
        arms: their resolved settings.
        baseline: the arm that the others are compared with.

    Raises:
        ConfigError: arms are to be interleaved and cannot be, or one and its null arm, or are to be
            launched an odd number of times and have to be apart; names what is in the way.
    """
    check_exposed_turns(arms)
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
    reason = "launches.mode is interleaved" if launches.mode == "interleaved" else "the arms can share their processes"
    null_arms = sum(config.train.exposed for config in arms.values())
    if len(arms) + null_arms > MOST_ARMS:
        besides = f" and {null_arms} without communication" if null_arms else ""
        reason = (
            f"{reason}; {len(arms)} arms{besides} are more than {MOST_ARMS}, so each shares a launch with the baseline"
        )
        return Grouping("interleaved", reason, _pairs(list(arms), baseline))
    return Grouping("interleaved", reason, (tuple(arms),))


def check_exposed_turns(arms: Mapping[str, Config]) -> None:
    """Refuse arms that ask for `train.exposed` and cannot take turns with their null arms.

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


@dataclass(frozen=True)
class LaunchState:
    """One arm in one planned launch.

    Attributes:
        arm: name of the arm.
        block: 0 for the first launch of every arm, 1 for the second, …; runs of one block share their seed.
        seed: `train.seed` of the run.
        run: id of the latest run made for it, None before.
        done: whether that run completed.
        launch: number of the launch that it is in, which the arms beside it with that number share; None for one of
            its own.
    """

    arm: str
    block: int
    seed: int
    run: RunId | None = None
    done: bool = False
    launch: int | None = None


@dataclass(frozen=True)
class CompareState:
    """All launches of a comparison, in order.

    Attributes:
        recipe: the recipe's name.
        baseline: name of the arm that the others are compared with.
        launches: arm by arm, in the order in which they are run.
        mode: whether arms share launches.
        reason: why.
        groups: the arms of each launch of a block.
        recipe_digest: of the text of the recipe that it was started with; None where an earlier version started it.
        probes: arm to the probe that was made for it.
    """

    recipe: str
    baseline: str
    launches: tuple[LaunchState, ...] = ()
    schema_version: int = SCHEMA_VERSION
    """Version of the record's form."""
    mode: Mode = "apart"
    reason: str = ""
    groups: Groups = ()
    recipe_digest: str | None = None
    probes: Mapping[str, RunId] = field(default_factory=dict)

    @property
    def grouping(self) -> Grouping:
        """Which arms of launches to come share one."""
        return Grouping(self.mode, self.reason, self.groups)

    @property
    def blocks(self) -> int:
        """Launches planned per arm."""
        return 1 + max((launch.block for launch in self.launches), default=-1)

    @property
    def arms(self) -> dict[str, list[str]]:
        """Ids of the completed runs of every arm, by block."""
        arms: dict[str, list[str]] = {}
        for launch in sorted(self.launches, key=lambda launch: launch.block):
            runs = arms.setdefault(launch.arm, [])
            if launch.done and launch.run is not None:
                runs.append(launch.run)
        return arms

    @property
    def launch_members(self) -> list[list[int]]:
        """Positions of what each launch holds, launch by launch."""
        numbered = [(-index - 1 if one.launch is None else one.launch) for index, one in enumerate(self.launches)]
        return [list(members) for _, members in groupby(range(len(numbered)), key=numbered.__getitem__)]

    @property
    def missing(self) -> list[list[int]]:
        """Of each launch that is not done, the positions of what it holds."""
        return [members for members in self.launch_members if not all(self.launches[index].done for index in members)]

    def with_runs(self, runs: Mapping[int, str | None], *, done: bool) -> CompareState:
        """The state after a launch has begun or ended; position to the id of the run."""
        launches = [
            replace(one, run=runs[index], done=done) if index in runs else one
            for index, one in enumerate(self.launches)
        ]
        return replace(self, launches=tuple(launches))

    def extended(self, blocks: int, seeds: Mapping[str, int]) -> CompareState:
        """With launches planned up to so many per arm; block r of an arm gets the arm's seed plus r."""
        return replace(self, launches=(*self.launches, *self._planned(range(self.blocks, blocks), seeds)))

    def regrouped(self, grouping: Grouping, seeds: Mapping[str, int]) -> CompareState:
        """With every block of which something is missing planned anew; launches of the same arms that are done stay.

        A run that took turns is no partner for one that had the machine to itself, so that the baseline may run twice.
        """
        found = replace(self, **vars(grouping))
        missing = self.missing
        done = [
            [self.launches[index] for index in members] for members in self.launch_members if members not in missing
        ]
        rest = tuple(chain.from_iterable(done))
        blocks = sorted({self.launches[index].block for members in missing for index in members})
        anew = replace(found, launches=rest)._planned(blocks, seeds)
        there = [{(one.block, one.arm) for one in launch} for launch in done]
        launches = [list(launch) for _, launch in groupby(anew, key=lambda one: one.launch)]
        needed = [launch for launch in launches if {(one.block, one.arm) for one in launch} not in there]
        return replace(found, launches=(*rest, *chain.from_iterable(needed)))

    def write(self, folder: Path) -> None:
        """Replace `compare.json`."""
        write_json(folder / STATE_FILE, self)

    def _planned(self, blocks: Iterable[int], seeds: Mapping[str, int]) -> tuple[LaunchState, ...]:
        """Every group once per block, in every second block in reverse: where arms are launched apart, ABBA order."""
        number = 1 + max((one.launch for one in self.launches if one.launch is not None), default=-1)
        launches: list[LaunchState] = []
        for block in blocks:
            for group in self.groups if block % 2 == 0 else self.groups[::-1]:
                launches += [LaunchState(arm, block, seeds[arm] + block, launch=number) for arm in group]
                number += 1
        return tuple(launches)


def plan_state(recipe: str, baseline: str, grouping: Grouping, blocks: int, seeds: Mapping[str, int]) -> CompareState:
    """A state with nothing done.

    Args:
        recipe: its name.
        baseline: the arm that the others are compared with.
        grouping: which arms share launches.
        blocks: launches per arm.
        seeds: of every arm.
    """
    return CompareState(recipe, baseline, **vars(grouping)).extended(blocks, seeds)


def read_state(folder: Path) -> CompareState:
    """The state in a comparison's folder.

    Raises:
        RecordError: no `compare.json`, or not one of this version.
    """
    return read_json(folder / STATE_FILE, CompareState, "Only what dynbench compare made can go on.", SCHEMA_VERSION)
