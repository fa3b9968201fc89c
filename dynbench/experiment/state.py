"""What a comparison has planned and what it has done: `compare.json` in its folder, replaced after every launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dynbench.experiment.order import PlannedLaunch
from dynbench.runs.atomic import write_json
from dynbench.runs.json_record import read_json
from dynbench.runs.records import SCHEMA_VERSION

STATE_FILE = "compare.json"


@dataclass(frozen=True)
class LaunchState:
    """One planned launch.

    Attributes:
        arm: name of the arm.
        block: which launch of the arm this is, from 0.
        seed: `train.seed` of the run.
        run: id of the latest run made for it, None before.
        done: whether that run completed.
    """

    arm: str
    block: int
    seed: int
    run: str | None = None
    done: bool = False


@dataclass(frozen=True)
class CompareState:
    """All launches of a comparison, in order.

    Attributes:
        recipe: the recipe's name.
        baseline: name of the arm that the others are compared with.
        launches: in the order in which they are run.
    """

    recipe: str
    baseline: str
    launches: tuple[LaunchState, ...]
    schema_version: int = SCHEMA_VERSION

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
    def missing(self) -> list[int]:
        """Positions of the launches that are not done."""
        return [index for index, launch in enumerate(self.launches) if not launch.done]

    def with_run(self, index: int, run_id: str | None, *, done: bool) -> CompareState:
        """The state after a launch has ended."""
        launches = list(self.launches)
        launches[index] = replace(launches[index], run=run_id, done=done)
        return replace(self, launches=tuple(launches))

    def write(self, folder: Path) -> None:
        """Replace `compare.json`."""
        write_json(folder / STATE_FILE, self)


def plan_state(recipe: str, baseline: str, order: Sequence[PlannedLaunch], seeds: dict[str, int]) -> CompareState:
    """A state with nothing done; block r of an arm gets the arm's seed plus r, so that a pair shares its seed."""
    launches = tuple(LaunchState(launch.arm, launch.block, seeds[launch.arm] + launch.block) for launch in order)
    return CompareState(recipe, baseline, launches)


def read_state(folder: Path) -> CompareState:
    """The state in a comparison's folder.

    Raises:
        RecordError: no `compare.json`, or not one of this version.
    """
    return read_json(folder / STATE_FILE, CompareState, "Only what dynbench compare made can go on.", SCHEMA_VERSION)
