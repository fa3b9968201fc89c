"""Time, steps and bytes to a perplexity, and the perplexity at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.runs.run import Run

Make = Callable[..., Run]
REACHED = {9: 90.0, 19: 40.0, 29: 18.0, 39: 20.0, 49: 12.0}
"""Perplexities by step: the run comes below 20 and leaves it again."""


def evaluated(run: Run) -> Run:
    lines = [f"{step},1.0,{perplexity},100,10\n" for step, perplexity in REACHED.items()]
    (run.path / "eval.csv").write_text("step,loss,perplexity,tokens,samples\n" + "".join(lines))
    return run


def targets(make_run: Make, *asked: str, **changes: Any) -> dict[str, Any]:
    run = evaluated(make_run("static", overrides=asked, extra={"bytes_wire": 10}, noise=0.0, **changes))
    found = summary_of(merge_run(run))["targets"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("asked", "steps"), [(40.0, 20), (39.9, 30), (18.0, 30), (12.0, 50), (11.9, None)])
def test_a_target_is_reached_with_the_first_evaluation_at_or_below_it(
    make_run: Make, asked: float, steps: int | None
) -> None:
    found = targets(make_run, f"analysis.target_perplexity={asked}")
    assert (found["steps_to_target"], found["bytes_to_target"]) == (steps, None if steps is None else 10 * steps)
    if steps is None:
        assert found["time_to_target_s"] is None
        return
    run = evaluated(make_run("static", noise=0.0, overrides=(f"analysis.target_perplexity={asked}",)))
    spent = merge_run(run).steps["step_time_max_ms"][:steps].sum() / 1000
    assert found["time_to_target_s"] == pytest.approx(spent), "warm-up among it, evaluation not"


def test_at_a_time_stands_the_last_evaluation_within_it(make_run: Make) -> None:
    run = evaluated(make_run("static", noise=0.0))
    clock = merge_run(run).steps["step_time_max_ms"].cum_sum() / 1000
    for seconds, perplexity in ((clock[19] + 1e-6, 40.0), (clock[28], 40.0), (clock[0], None), (clock[49] + 9, None)):
        found = targets(make_run, f"analysis.time_budget_s={seconds!r}")
        assert (found["perplexity_at_budget"], found["target_perplexity"]) == (perplexity, None), seconds


def test_a_run_of_which_steps_are_missing_knows_no_time(make_run: Make) -> None:
    found = targets(make_run, "analysis.target_perplexity=12.0", steps_written=45, status="failed")
    assert found["time_to_target_s"] is None


def test_without_a_target_there_is_nothing_to_say(make_run: Make) -> None:
    assert summary_of(merge_run(make_run("static")))["targets"] is None
