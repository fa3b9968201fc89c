"""Arms in turns: an effect of the arm before is found and named, and chance is not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.arms import Arm
from dynbench.analysis.checks import comparisons
from dynbench.analysis.checks.evidence import worded
from dynbench.analysis.pace import effects
from dynbench.config.schema import Analysis
from dynbench.engine.turn_order import Turns

STEPS, WARMUP = 30, 3


After = dict[tuple[str, str], float]
"""An arm and the one before it, to the part by which its step takes longer."""


def launched(arms: str, launch: int, rng: np.random.Generator, after: After) -> dict[str, object]:
    """Runs of a shared launch whose steps take longer, by a part, after some arms."""
    order = Turns(tuple(arms), seed=7, launch=launch).rounds()
    rows: dict[str, list[dict[str, object]]] = {arm: [] for arm in arms}
    turn, before = 0, ""
    for step in range(WARMUP + STEPS):
        for position in next(order):
            arm = arms[position]
            tokens = int(rng.integers(400, 800))
            time = (20 + 0.1 * tokens) * rng.lognormal(0, 0.03) * (1 + after.get((arm, before), 0.0))
            rows[arm].append(
                {
                    "step": step,
                    "turn": turn,
                    "warmup": step < WARMUP,
                    "padded_tokens_max": tokens,
                    "step_time_max_ms": time,
                }
            )
            turn, before = turn + 1, arm
    made = {}
    for arm, steps in rows.items():
        table = pl.DataFrame(steps)
        made[arm] = SimpleNamespace(
            steps=table,
            measured=table.filter(~pl.col("warmup")),
            partial=False,
            facts=SimpleNamespace(together=f"launch{launch}"),
        )
    return made


def arms_of(arms: str, after: After, launches: int = 4, seed: int = 0) -> list[Arm]:
    rng = np.random.default_rng(seed)
    made = [launched(arms, launch, rng, after) for launch in range(launches)]
    return [Arm(arm, tuple(launch[arm] for launch in made)) for arm in arms]  # type: ignore[arg-type]


def seen(arms: list[Arm]) -> list[str]:
    evidence = SimpleNamespace(arms=arms, settings=Analysis())
    return [worded("predecessor", found).seen for found in comparisons.predecessor(evidence)]  # type: ignore[arg-type]


@pytest.mark.parametrize("arms", ["ab", "abc", "abcd"])
def test_what_an_arm_leaves_to_the_next_is_named(arms: str) -> None:
    said = seen(arms_of(arms, {("b", "a"): 0.15}))
    assert any(line.startswith("b: its steps take +1") and "after a than" in line for line in said), said
    assert not any(line.startswith("a:") for line in said)


@pytest.mark.slow
def test_equal_arms_are_hardly_ever_told_to_disturb_each_other() -> None:
    found = [seen(arms_of(arms, {}, seed=seed)) for seed in range(40) for arms in ("ab", "abc")]
    assert sum(map(bool, found)) <= 3


def test_one_launch_or_launches_apart_say_nothing() -> None:
    assert effects(arms_of("ab", {("b", "a"): 0.5}, launches=1)) == []
    alone = arms_of("ab", {("b", "a"): 0.5})
    for arm in alone:
        for run in arm.runs:
            run.facts.together = None
    assert effects(alone) == []
