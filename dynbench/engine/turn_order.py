"""In which order the arms of one launch are built and take turns; drawn from the seed, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dynbench.config.schema import Train
from dynbench.runs.atomic import read_json, write_json

TURNS_FILE = "turns.json"
"""In the folder of a launch's first run: how its arms take turns."""


@dataclass(frozen=True)
class Turns:
    """How the arms of a launch take turns."""

    arms: tuple[str, ...]
    """Names, in the order of their run folders."""
    block: int = 1
    """Steps of one turn."""
    seed: int = 0
    """Of the orders."""
    launch: int = 0
    """Which launch of the comparison this is, from 0."""

    def write(self, folder: Path) -> None:
        """Keep it for the ranks, which read it before they do anything."""
        write_json(folder / TURNS_FILE, asdict(self))

    def facts(self, runs: Sequence[str]) -> dict[str, object]:
        """What env.json says of a launch that several arms share; `runs` are their ids, in the order of `arms`."""
        return {"id": runs[0], "runs": list(runs), **asdict(self)}

    def building(self) -> list[int]:
        """The order in which the arms are built, as positions in `arms`.

        What is built first may come to lie better or worse in memory: the order is drawn for every second launch, and
        the launch after it takes the reverse.
        """
        return self._drawn(0)

    def rounds(self) -> Iterator[list[int]]:
        """Without end, the order of the arms in every round, each a permutation of their positions.

        Two arms alternate A B, B A (ABBA). More go through a Williams square (Williams, Aust. J. Sci. Res. A 2, 1949),
        in whose rows every arm follows every other equally often and stands at every place equally often; the rows are
        drawn anew whenever all have been used. Which arm follows which from one round to the next is left to that draw.
        Which arm is which is drawn as in `building`.
        """
        names, square = self._drawn(1), williams_square(len(self.arms))
        rng = np.random.default_rng((self.seed, self.launch, 2))
        while True:
            rows = square if len(square) <= 2 else [square[row] for row in rng.permutation(len(square))]
            yield from ([names[place] for place in row] for row in rows)

    def _drawn(self, stream: int) -> list[int]:
        rng = np.random.default_rng((self.seed, self.launch // 2, stream))
        order: list[int] = rng.permutation(len(self.arms)).tolist()
        return order[::-1] if self.launch % 2 else order


def read_turns(folder: Path) -> Turns | None:
    """What `Turns.write` wrote; None for a launch of one arm.

    Raises:
        RecordError: the file is damaged.
    """
    path = folder / TURNS_FILE
    return read_json(path, Turns, "Launch it again.") if path.exists() else None


def williams_square(n: int) -> list[list[int]]:
    """Orders of 0 … n-1 within which every number directly follows every other equally often.

    n orders where n is even, 2n where it is odd; each number stands at each place equally often.
    """
    first = [0]
    for step in range(1, n):
        first.append((first[-1] + (step if step % 2 else n - step)) % n)
    rows = [[(number + shift) % n for number in first] for shift in range(n)]
    return rows if n % 2 == 0 or n == 1 else rows + [row[::-1] for row in rows]


@dataclass(frozen=True, slots=True)
class Round:
    """Steps that every arm runs before another round begins."""

    steps: range
    measured: bool
    evaluated: bool
    """Some arm evaluates after it."""


def plan_rounds(train: Train, due: Callable[[int], bool], block: int, *, alone: bool) -> Iterator[Round]:
    """The rounds of a run: blocks of steps, cut where the warm-up ends and where an arm evaluates.

    Where arms take turns, a round of one step that does not count follows every evaluation, which has moved what the
    caches hold. One arm alone runs on until it evaluates.

    Args:
        train: how many steps.
        due: whether some arm evaluates after a step.
        block: most steps in a round of several arms.
        alone: there is one arm.
    """
    last = train.warmup_steps + train.steps
    start, settling = 0, False
    while start < last:
        segment = train.warmup_steps if start < train.warmup_steps else last
        end = segment if alone else min(segment, start + (1 if settling else block))
        end = next((step + 1 for step in range(start, end) if due(step)), end)
        evaluated = due(end - 1)
        yield Round(range(start, end), start >= train.warmup_steps and not settling, evaluated)
        start, settling = end, evaluated and not alone
