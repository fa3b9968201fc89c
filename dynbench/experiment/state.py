"""What a comparison has planned and what it has done: `compare.json` in its folder, replaced after every launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from dynbench.experiment.meeting import Groups, Meeting, Mode
from dynbench.runs.atomic import write_json
from dynbench.runs.json_record import read_json
from dynbench.runs.names import RunId
from dynbench.runs.records import SCHEMA_VERSION

STATE_FILE = "compare.json"


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
    def meeting(self) -> Meeting:
        """How the arms of launches to come meet."""
        return Meeting(self.mode, self.reason, self.groups)

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
    def together(self) -> list[list[int]]:
        """Positions of what each launch holds, launch by launch."""
        numbered = [(-index - 1 if one.launch is None else one.launch) for index, one in enumerate(self.launches)]
        return [list(members) for _, members in groupby(range(len(numbered)), key=numbered.__getitem__)]

    @property
    def missing(self) -> list[list[int]]:
        """Of each launch that is not done, the positions of what it holds."""
        return [members for members in self.together if not all(self.launches[index].done for index in members)]

    def with_runs(self, runs: Mapping[int, str | None], *, done: bool) -> CompareState:
        """The state after a launch has begun or ended; position to the id of the run."""
        launches = list(self.launches)
        for index, run_id in runs.items():
            launches[index] = replace(launches[index], run=run_id, done=done)
        return replace(self, launches=tuple(launches))

    def extended(self, blocks: int, seeds: Mapping[str, int]) -> CompareState:
        """With launches planned up to so many per arm; block r of an arm gets the arm's seed plus r."""
        return replace(self, launches=(*self.launches, *self._planned(range(self.blocks, blocks), seeds)))

    def meeting_as(self, meeting: Meeting, seeds: Mapping[str, int]) -> CompareState:
        """With every block of which something is missing planned anew; launches of the same arms that are done stay.

        A run that took turns is no partner for one that had the machine to itself, so that the baseline may run twice.
        """
        found = replace(self, mode=meeting.mode, reason=meeting.reason, groups=meeting.groups)
        kept = [self.launches[index] for members in self.together if members not in self.missing for index in members]
        blocks = sorted({self.launches[index].block for members in self.missing for index in members})
        done = [
            (self.launches[members[0]].block, {self.launches[index].arm for index in members})
            for members in self.together
            if members not in self.missing
        ]
        anew = replace(found, launches=tuple(kept))._planned(blocks, seeds)
        planned = replace(found, launches=anew).together
        needed = [
            members
            for members in planned
            if (anew[members[0]].block, {anew[index].arm for index in members}) not in done
        ]
        return replace(found, launches=(*kept, *(anew[index] for members in needed for index in members)))

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


def plan_state(recipe: str, baseline: str, meeting: Meeting, blocks: int, seeds: Mapping[str, int]) -> CompareState:
    """A state with nothing done.

    Args:
        recipe: its name.
        baseline: the arm that the others are compared with.
        meeting: which arms share launches.
        blocks: launches per arm.
        seeds: of every arm.
    """
    empty = CompareState(recipe, baseline, mode=meeting.mode, reason=meeting.reason, groups=meeting.groups)
    return empty.extended(blocks, seeds)


def read_state(folder: Path) -> CompareState:
    """The state in a comparison's folder.

    Raises:
        RecordError: no `compare.json`, or not one of this version.
    """
    return read_json(folder / STATE_FILE, CompareState, "Only what dynbench compare made can go on.", SCHEMA_VERSION)
