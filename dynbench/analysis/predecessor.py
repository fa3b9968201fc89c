"""Where arms take turns: whether a step depends on which arm ran before it.

What an arm leaves behind (caches, the allocator, clocks, work that it did not end) would be charged to the next one.
Within their rounds orders are balanced, so it reaches all arms about alike; a large effect still says that arms are not
timed by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dynbench.analysis.arms import Arm
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pace import step_paces


@dataclass(frozen=True, slots=True)
class Effect:
    """How much longer an arm's steps take after one arm than after the others.

    Attributes:
        arm: whose steps.
        before: the arm that ran before.
        share: the mean over launches, as a part of the arm's step time.
        p: of Student's t test over launches that it is none, times the number of effects looked at (Bonferroni).
        launches: with both kinds of steps.
    """

    arm: str
    before: str
    share: float
    p: float
    launches: int


def effects(arms: Sequence[Arm]) -> list[Effect]:
    """The effect of every arm on every arm's next step; a step after the arm's own counts too.

    Steps are held against what their tokens let expect (`pace`). Inference is over launches, so two are the least.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for launch in _launches(arms):
        owners = {int(turn): label for label, run in launch.items() for turn in run.steps["turn"].unique()}
        for label, run in launch.items():
            paces, before = step_paces(run), _before(run, owners)
            for name in launch:
                after, others = paces[before == name], paces[before != name]
                if len(after) and len(others):
                    found[label, name].append(float(after.mean() - others.mean()))
    tested = {pair: values for pair, values in found.items() if len(values) > 1}
    return [
        Effect(arm, before, float(np.mean(values)), min(1.0, _p_value(values) * len(tested)), len(values))
        for (arm, before), values in tested.items()
    ]


def _launches(arms: Sequence[Arm]) -> Iterator[Mapping[str, MergedRun]]:
    """Label to run of every launch that several arms shared."""
    shared: dict[str, dict[str, MergedRun]] = defaultdict(dict)
    for arm in arms:
        for run in arm.whole:
            if run.facts.together is not None and "turn" in run.steps.columns and run.measured.height > 2:
                shared[run.facts.together][arm.label] = run
    return (runs for runs in shared.values() if len(runs) > 1)


def _before(run: MergedRun, owners: Mapping[int, str]) -> np.ndarray:
    """The arm that had the turn before each measured step, the step's own arm within a turn; shape [steps]."""
    steps = run.measured
    turns = steps["turn"].to_numpy()
    first = np.ones(len(turns), dtype=bool)
    first[1:] = turns[1:] != turns[:-1]
    return np.array([owners.get(int(turn) - 1, "") if new else "" for turn, new in zip(turns, first, strict=True)])


def _p_value(values: Sequence[float]) -> float:
    from scipy.stats import ttest_1samp

    spread = float(np.std(values))
    if spread == 0:
        return 1.0 if np.mean(values) == 0 else 0.0
    return float(ttest_1samp(values, 0.0).pvalue)
