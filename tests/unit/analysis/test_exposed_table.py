"""Exposed communication told two ways side by side, and what ranks held, as tables for people in both languages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynbench.analysis.memory import memory_parts
from dynbench.analysis.merge import merge_run
from dynbench.analysis.table_specs import TABLES, two_ways_apart
from dynbench.report import load_template
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run

Summary = dict[str, object]
exposed_table, memory_table = TABLES["exposed"].table, TABLES["memory_parts"].table


def summary(own: float, beyond: float | None) -> Summary:
    found: Summary = {"exposed_comm_ms": {"mean": own}, "comm_ms": {"mean": 12.5}, "overlap_fraction": 0.25}
    return found if beyond is None else found | {"exposed_vs_null_ms": {"mean": beyond}}


def test_both_ways_stand_side_by_side_with_intervals() -> None:
    launches = {"ddp": [summary(9.0, 10.0), summary(11.0, 12.0)], "ps": [summary(5.0, None)]}
    found = exposed_table(launches)
    assert found is not None
    ddp, ps = found.rows
    assert ddp[:6] == ["ddp", "10.000", "[-2.706, 22.706]", "11.000", "[-1.706, 23.706]", "9.1 %"]
    assert "12.500" in ddp and "25.0 %" in ddp
    assert ps[:6] == ["ps", "5.000", "", "", "", ""]
    assert exposed_table({"ps": launches["ps"]}) is None, "nothing to hold it against"


@pytest.mark.parametrize(("own", "beyond", "apart"), [(10.0, 5.0, -0.5), (5.0, 10.0, 0.5), (0.0, 0.0, None)])
def test_how_far_they_are_apart(own: float, beyond: float, apart: float | None) -> None:
    assert two_ways_apart([summary(own, beyond)]) == apart


def test_every_heading_has_its_chinese() -> None:
    template = load_template("zh")
    found = exposed_table({"ddp": [summary(1.0, 1.0)]}, template.label)
    held = memory_table({"ddp": [{"memory_parts": PARTS}]}, template.label)
    assert found is not None and held is not None
    for text in (*found.columns, *held.columns, found.title, held.title, *(row[1] for row in held.rows)):
        assert not any(word in text for word in ("after", "held", "hidden", "arm", "activations")), text


PARTS = {
    moment: dict.fromkeys(("parameters_mb", "gradients_mb", "optimizer_mb", "strategy_mb"), 2.0)
    for moment in ("initialised", "before_step", "after_step")
} | {"activations_mb": 3.0, "model_mb": 2.0, "formula_mb": 8.0}


def test_what_ranks_held_is_a_mean_over_those_that_train(make_run: Callable[..., Run]) -> None:
    run = make_run("static", overrides=("sync.name=zero1",))
    assert memory_parts(merge_run(run)) is None
    kinds = {"parameters_mb": 4.0, "gradients_mb": 2.0, "optimizer_mb": 4.0, "strategy_mb": 4.0, "peak_mb": None}
    ranks = [
        {"rank": rank, "whole_mb": 4.0, "activations_mb": 1.0 + rank}
        | dict.fromkeys(("initialised", "before_step", "after_step"), kinds)
        for rank in range(2)
    ]
    write_json(run.env_file, run.env() | {"memory_parts": ranks})
    found = memory_parts(merge_run(run))
    assert found is not None
    assert (found["activations_mb"], found["model_mb"]) == (1.5, 4.0)
    assert found["after_step"] == {**kinds, "peak_mb": None}
    table = memory_table({"zero1": [{"memory_parts": found}]})
    assert table is not None
    assert [row[1] for row in table.rows] == ["initialised", "before step", "after step"]
    assert table.rows[2][2:7] == ["4.000", "2.000", "4.000", "4.000", "14.000"], "and their sum"
    assert table.rows[1][7] == "1.500" and not table.rows[2][7], "activations are freed by the backward pass"
