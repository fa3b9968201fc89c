"""How many launches follow the first stage of a comparison that is to reach a half-width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynbench.analysis.arms import log_ratios, named_arms, pair_launches
from dynbench.analysis.comparability import all_differences
from dynbench.analysis.merge import merge_run
from dynbench.analysis.questions import find_question
from dynbench.analysis.stats import Plan, plan_launches
from dynbench.config.launches import MOST_LAUNCHES, Launches
from dynbench.config.recipes import Recipe
from dynbench.experiment.state import CompareState
from dynbench.runs.run import duration_s
from dynbench.runs.store import RunStore
from dynbench.units import format_ms


@dataclass(frozen=True)
class SecondStage:
    """What follows the first stage.

    Attributes:
        launches: per arm, the first stage among them.
        said: what is shown of it.
        warning: what a limit costs; None where none bites.
    """

    launches: int
    said: str
    warning: str | None


def plan_second_stage(state: CompareState, recipe: Recipe, store: RunStore) -> SecondStage:
    """The launches that the widest interval against the baseline needs, by the spread of the first stage.

    Args:
        state: with the first stage done.
        recipe: what is asked for.
        store: registry of the runs.

    Raises:
        RecordError: a run that cannot be read.
    """
    asked = recipe.launches
    assert asked.half_width is not None, "it is asked for"
    settings = recipe.arms[recipe.baseline].analysis
    names = [recipe.baseline, *(name for name in recipe.arms if name != recipe.baseline)]
    runs = {name: [merge_run(store.resolve(run)) for run in state.arms[name]] for name in names}
    baseline, *candidates = named_arms(runs)
    differences = [all_differences(baseline.runs[0], arm.runs[0]) for arm in candidates]
    unit = find_question(differences, recipe.question).unit
    by_seed = []
    for arm in candidates:
        pairs = pair_launches(baseline, arm).pairs
        seeds = [base.facts.seed for base, _ in pairs]
        by_seed.append(dict(zip(seeds, log_ratios(pairs, unit), strict=True)))
    common = sorted(set(by_seed[0]).intersection(*by_seed))[: asked.first]
    fewest = len(common)
    if fewest < 2:
        text = (
            f"the first stage left {fewest} paired launches, 2 are the least: no number of launches follows from them"
        )
        return SecondStage(state.blocks, text, text)
    block_s = sum(_seconds(state, store, members) for members in state.together) / state.blocks
    plan = plan_launches(
        [[logs[seed] for seed in common] for logs in by_seed],
        asked.half_width,
        settings.confidence,
        most_launches=asked.max_launches or MOST_LAUNCHES,
        most_s=asked.max_time_s,
        launch_s=block_s,
    )
    launches = plan.launches
    if state.mode == "apart" and launches % 2:
        launches += 1 if _allows(asked, launches + 1, block_s) else -1
    return SecondStage(
        launches, _said(plan, launches, block_s, asked.half_width), _warning(plan, launches, asked.half_width)
    )


def _allows(asked: Launches, launches: int, block_s: float) -> bool:
    """Whether the limits allow so many launches."""
    in_number = launches <= (asked.max_launches or MOST_LAUNCHES)
    return in_number and (asked.max_time_s is None or launches * block_s <= asked.max_time_s)


def _seconds(state: CompareState, store: RunStore, members: list[int]) -> float:
    """How long a launch took; its arms ran at the same time."""
    runs = [state.launches[index].run for index in members]
    return max(duration_s(store.resolve(run).record()) or 0.0 for run in runs if run is not None)


def _said(plan: Plan, launches: int, block_s: float, half_width: float) -> str:
    more = launches - plan.first
    if more == 0:
        return f"the first {plan.first} launches are enough for intervals of ±{half_width:.1%}"
    left = format_ms(1000 * math.ceil(more * block_s))
    return f"±{half_width:.1%} needs {plan.needed} launches: {more} more, about {left}"


def _warning(plan: Plan, launches: int, half_width: float) -> str | None:
    if launches >= plan.needed:
        return None
    reached = math.expm1(math.log1p(plan.half_width) * math.sqrt(plan.launches / launches))
    return (
        f"launches.half_width: ±{half_width:.1%} needs {plan.needed} launches, the limit allows {launches}, which "
        f"give about ±{reached:.1%}; raise launches.max_launches, to {MOST_LAUNCHES} at most, or max_time_s "
        "(--max-launches, --max-time)"
    )
