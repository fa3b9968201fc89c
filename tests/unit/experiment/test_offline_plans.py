"""What a report says of plans made offline: those of the comparison itself, never another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from languages import facts

from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.engine.planning import build_problem
from dynbench.experiment.offline_plans import (
    STEPS,
    Solved,
    plan_offline,
    planned_speedup,
    problem_of,
    read_solved,
    static_over,
)
from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.trace_sources import dataset_trace, run_trace, trained_trace
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.measure import run_policy
from dynbench.schedule.policy import make_policy
from dynbench.schedule.traces import Trace
from dynbench.workloads.registry import build_workload

MakeComparison = Callable[..., Run]


def dataset_trace_of(run: Run) -> Trace:
    return dataset_trace(run.config())


def keep(folder: Run, solved: dict[str, object]) -> None:
    write_json(folder.path / "solve.json", {"run": "solve-1", "results": [], "cost_types": [], **solved})


def trained(store: RunStore, policy: str, **flags: object) -> Run:
    """A finished run with the resolved settings, as far as plans need them."""
    run = store.create("train", policy)
    settings = {
        "workload.pad_to_multiple_of": 1,
        "workload.max_length": 24,
        "schedule.mode": "static" if policy == "static" else "dynamic",
        "schedule.policy": policy,
        "schedule.cost_type": "tokens",
        "train.global_batch": 24,
        "train.seed": 5,
        **{key.replace("__", "."): value for key, value in flags.items()},
    }
    write_text(run.config_file, dump_config(load_config(flags=settings)))
    write_json(run.env_file, {})
    run.update(status=Status.COMPLETED)
    return run


PROBED = {"world_size": 2, "global_batch": 32, "cost_type": "measured", "speeds": None}
STATIC = {
    "arm": "static",
    "policy": "static",
    "layout": "padded",
    "fitted_on": "padded",
    "cost_per_token": 6.0,
    **PROBED,
}
FLAT = {"arm": "flat", "policy": "flattened", "layout": "flattened", "fitted_on": "flattened", **PROBED}
FLAT |= {"cost_per_token": 4.0, "speedup_vs_static": 2.23}
"""Static as each was probed takes 1.5 times as long as `flat`, and 2.23 times where it is priced with `flat`'s fit."""


@pytest.mark.parametrize(
    ("static", "flat", "expected", "notes"),
    [
        ({}, {}, (1.5, False), []),
        ({}, {"fitted_on": "padded"}, (1.5, True), ["costs"]),
        ({"policy": "partition"}, {}, (2.23, True), ["static"]),
        ({"cost_type": "tokens", "fitted_on": None}, {}, (2.23, True), ["static"]),
        ({"speeds": [1.0, 2.0]}, {"layout": "padded", "fitted_on": "padded"}, (2.23, False), []),
    ],
)
def test_static_over_a_row_is_that_of_their_own_probes_or_says_whose_it_is(
    store: RunStore,
    make_comparison: MakeComparison,
    static: dict[str, object],
    flat: dict[str, object],
    expected: tuple[float, bool],
    notes: list[str],
) -> None:
    lines = [STATIC | static, FLAT | flat]
    assert static_over(Solved("s", lines), lines[1], "static") == expected

    keep(make_comparison({"candidate": "flat"}), {"results": lines})
    estimated = facts(find_report_input(store, None))["method"]["estimated"]
    assert [kind for kind, true in estimated.items() if true] == notes


def test_a_solve_run_of_something_else_is_never_used(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({})
    write_json(store.create("solve", "solve").path / "results.json", {"results": [STATIC]})
    found = facts(find_report_input(store, None))
    assert found["solve.run"] is None and found["table.solve"] == ""


@pytest.mark.slow
def test_every_arm_is_planned_as_it_was_trained(store: RunStore) -> None:
    """The planned costs are those of the training problem: its lengths, G, B, K, W, cost, capacity, speeds, seed."""
    folder = store.create("analyze", "comparison")
    arms = {
        "static": trained(store, "static"),
        "capped": trained(store, "partition", schedule__capacity=(9, 20), schedule__speeds=(1.0, 2.0)),
        "dear": trained(store, "partition", schedule__cost_type="attention", schedule__attention_a=0.5),
        "greedy": trained(store, "prefix", schedule__buffer=16, schedule__solver="greedy"),
        "wide": trained(store, "window", schedule__window=4),
        "measured": trained(
            store, "partition", schedule__cost_type="measured", schedule__cost_coefficients=(3.0, 0.1, 0.01)
        ),
        "packed": trained(store, "packed", schedule__capacity=260),
    }

    solved = plan_offline(folder, arms, 2, store)

    assert solved.reason is None
    assert read_solved(folder.path) == solved
    assert [line["arm"] for line in solved.results] == list(arms)
    for (name, run), line in zip(arms.items(), solved.results, strict=True):
        config = run.config()
        lengths = trained_trace(run).lengths
        assert lengths.max() == 24  # truncated as in training
        problem = replace(problem_of(config, lengths, 2, store.root), window=config.schedule.window)
        series = run_policy(make_policy(config.schedule.policy_name, problem), problem, STEPS)
        assert line["mean_max_cost"] == pytest.approx(series.max_cost.mean()), name
        assert line["window"] == config.schedule.window
        assert (line["policy"], line["layout"]) == (config.plan_name, config.workload.layout)
        assert line["seed"] == 5
    record = store.resolve(str(solved.run))
    assert (record.record().command, record.status) == ("solve", Status.COMPLETED)
    costs = {str(line["cost_type"]) for line in solved.cost_types}
    assert costs == {"tokens", "tokens_sq", "attention", "measured"}
    assert {line["policy"] for line in solved.cost_types} == {"prefix", "partition"}
    assert (folder.figures_dir / "solve_greedy_gap.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_planned_speedup_is_that_of_the_arms_own_plans(store: RunStore, micro_batches: int) -> None:
    """What `static` would take with the candidate's micro-batches does not stand for the baseline."""
    arms = {
        "static": trained(store, "static"),
        "own": trained(store, "partition", schedule__micro_batches=micro_batches),
    }

    solved = plan_offline(store.create("analyze", "comparison"), arms, 2, store)

    costs = []
    for run in arms.values():
        problem = build_problem(run.config(), trained_trace(run).lengths, 2, 1, store.root)
        policy = make_policy(run.config().schedule.policy_name, problem)
        costs.append(run_policy(policy, problem, STEPS).cost_per_token(STEPS))
    assert planned_speedup(solved, "static", "own") == pytest.approx(costs[0] / costs[1])


POSITIONS = {"workload__pad_to_multiple_of": 1000}
"""Every sample is padded to more than the small model takes, so to its 512 positions."""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "prefix", "partition", "window"])
def test_plans_pad_to_what_the_model_takes_as_training_does(store: RunStore, policy: str) -> None:
    run = trained(store, policy, **POSITIONS)
    config = run.config()
    workload = build_workload(config)
    problem = build_problem(config, workload.train.lengths, 2, 1000, store.root, workload.positions)
    expected = run_policy(make_policy(policy, problem), problem, STEPS).max_cost.mean()

    solved = plan_offline(store.create("analyze", "comparison"), {policy: run}, 2, store)

    line = next(line for line in solved.results if line["arm"] == policy)
    assert line["mean_max_cost"] == pytest.approx(expected)
    judged = [item["mean"] for item in solved.cost_types if item["judge"] == "tokens"]
    assert judged
    assert max(map(float, map(str, judged))) <= 512 * 24


@pytest.mark.parametrize("source", [dataset_trace_of, run_trace, trained_trace])
def test_every_trace_of_a_data_set_knows_what_the_model_takes(store: RunStore, source: Callable[[Run], Trace]) -> None:
    trace = source(trained(store, "static"))

    assert (trace.positions, trace.cut(8).positions) == (512, 512)


@pytest.mark.slow
def test_an_arm_that_cannot_be_planned_is_named_with_the_reason(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    folder = make_comparison({"candidate": "tight"})
    arms = {"static": trained(store, "static"), "tight": trained(store, "partition", schedule__capacity=2)}

    solved = plan_offline(folder, arms, 2, store)

    (found,) = solved.skipped
    assert (found["arm"], found["policy"]) == ("tight", "partition")
    assert read_solved(folder.path) == solved
    assert [(line["arm"], line["policy"]) for line in solved.results] == [
        ("static", "static"),
        (None, "prefix"),
        (None, "packed"),
    ]


def test_nothing_that_can_be_planned_is_told_with_the_reason(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})

    solved = plan_offline(folder, {"static": trained(store, "static", train__global_batch=9000)}, 2, store)

    assert (solved.run, list(solved.results)) == (None, [])
    assert "static: " in str(solved.reason)
    assert facts(find_report_input(store, None))["solve.reason"] == solved.reason


@pytest.mark.slow
def test_plans_that_fail_leave_those_made_before(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    folder, run = store.create("analyze", "comparison"), trained(store, "static")
    good = plan_offline(folder, {"static": run}, 2, store)
    write_json(run.env_file, {"data": {"fingerprint": "another"}})

    again = plan_offline(folder, {"static": run}, 2, store)

    assert good.run is not None
    assert again == read_solved(folder.path) == good
    assert "no longer the data that it trained on" in caplog.text
    assert str(good.run) in caplog.text


def test_subsets_are_those_of_the_run(store: RunStore) -> None:
    run = trained(store, "static", workload__subset=300)

    assert len(trained_trace(run).lengths) == 300
    assert not np.array_equal(trained_trace(run).lengths, trained_trace(trained(store, "static")).lengths[:300])


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_torn_file_counts_as_no_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "solve.json").write_text(text, encoding="utf-8")

    assert read_solved(tmp_path) is None
