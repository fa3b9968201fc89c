"""What a report says of plans made offline: those of the comparison itself, never another's."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from languages import facts
from unit.experiment.conftest import Json, MakeComparison

from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.engine.planning import build_problem
from dynbench.experiment.offline_plans import STEPS, Solved, plan_offline, planned_speedup, read_solved, static_over
from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.trace_sources import dataset_trace, run_trace, trained_trace
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.measure import run_policy
from dynbench.schedule.policy import make_policy


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


def line(policy: str, layout: str, cost: float) -> Json:
    """Of the arm that is called as its policy."""
    sizes = {"world_size": 2, "global_batch": 32, "cost_type": "measured", "speeds": None}
    return {**sizes, "arm": policy, "policy": policy, "layout": layout, "fitted_on": layout, "cost_per_token": cost}


STATIC = line("static", "padded", 6.0)
FLAT = line("flattened", "flattened", 4.0) | {"speedup_vs_static": 2.23}
"""Static as each was probed takes 1.5 times as long as `flattened`, and 2.23 times where it is priced with its fit."""


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
    static: Json,
    flat: Json,
    expected: tuple[float, bool],
    notes: list[str],
) -> None:
    lines = [STATIC | static, FLAT | flat]
    assert static_over(Solved("s", lines), lines[1], "static") == expected

    folder = make_comparison({"candidate": "flattened"})
    write_json(folder.path / "solve.json", {"run": "solve-1", "results": lines, "cost_types": []})
    estimated = facts(find_report_input(store, None))["method"]["estimated"]
    assert [kind for kind, true in estimated.items() if true] == notes


def test_a_solve_run_of_something_else_is_never_used(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({})
    write_json(store.create("solve", "solve").path / "results.json", {"results": [STATIC]})
    found = facts(find_report_input(store, None))
    assert found["solve.run"] is None and found["table.solve"] == ""


@pytest.mark.slow
def test_every_arm_is_planned_as_it_was_trained(store: RunStore) -> None:
    """The planned costs are those of the training problem: its lengths, G, B, K, W, cost, capacity, speeds, seed.

    And a planned speedup is that of two arms' own plans: what `static` would take with the candidate's micro-batches
    does not stand for the baseline. Every sample of `long` is padded to more than the model takes, so to its positions.
    """
    folder = store.create("analyze", "comparison")
    measured = {"schedule__cost_type": "measured", "schedule__cost_coefficients": (3.0, 0.1, 0.01)}
    arms = {
        "static": trained(store, "static"),
        "plain": trained(store, "partition"),
        "split": trained(store, "partition", schedule__micro_batches=2),
        "capped": trained(store, "partition", schedule__capacity=(9, 20), schedule__speeds=(1.0, 2.0)),
        "dear": trained(store, "partition", schedule__cost_type="attention", schedule__attention_a=0.5),
        "greedy": trained(store, "prefix", schedule__buffer=16, schedule__solver="greedy"),
        "wide": trained(store, "window", schedule__window=4),
        "measured": trained(store, "partition", **measured),
        "packed": trained(store, "packed", schedule__capacity=260),
        "long": trained(store, "partition", workload__pad_to_multiple_of=1000),
    }

    solved = plan_offline(folder, arms, 2, store)

    assert solved.reason is None
    assert read_solved(folder.path) == solved
    assert [line["arm"] for line in solved.results] == list(arms)
    costs, trace = {}, trained_trace(arms["static"])
    lengths, positions = trace.lengths, trace.positions
    assert (lengths.max(), positions) == (24, 512), "truncated as in training"
    for (name, run), line in zip(arms.items(), solved.results, strict=True):
        config = run.config()
        multiple = 1000 if name == "long" else 1
        problem = build_problem(config, lengths, 2, multiple, store.root, positions)
        series = run_policy(make_policy(config.schedule.policy_name, problem), problem, STEPS)
        costs[name] = series.cost_per_token(STEPS)
        assert line["mean_max_cost"] == pytest.approx(series.max_cost.mean()), name
        planned = (line["window"], line["policy"], line["layout"], line["seed"])
        assert planned == (config.schedule.window, config.plan_name, config.workload.layout, 5)
    for name in ("plain", "split"):
        assert planned_speedup(solved, "static", name) == pytest.approx(costs["static"] / costs[name])
    assert store.resolve(str(solved.run)).status is Status.COMPLETED
    planned = {(line["cost_type"], line["policy"]) for line in solved.cost_types}
    assert planned == {*product(("tokens", "tokens_sq", "attention", "measured"), ("prefix", "partition"))}
    assert (folder.figures_dir / "solve_greedy_gap.png").is_file()


def test_an_arm_that_cannot_be_planned_is_named_and_plans_that_fail_leave_those_made_before(
    store: RunStore, unreported: None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = store.create("analyze", "comparison")
    padded = trained(store, "static", workload__pad_to_multiple_of=1000)
    arms = {"static": padded, "tight": trained(store, "partition", schedule__capacity=2)}

    solved = plan_offline(folder, arms, 2, store)

    (found,) = solved.skipped
    assert (found["arm"], found["policy"]) == ("tight", "partition")
    assert read_solved(folder.path) == solved
    lines = [(line["arm"], line["policy"]) for line in solved.results]
    assert lines == [("static", "static"), (None, "prefix"), (None, "packed")]
    costs = [float(str(line["mean"])) for line in solved.cost_types if line["judge"] == "tokens"]
    assert 0 < max(costs) <= 512 * 24, "samples are padded to no more than the model takes"

    write_json(arms["static"].env_file, {"data": {"fingerprint": "another"}})
    assert plan_offline(folder, arms, 2, store) == read_solved(folder.path) == solved
    assert "no longer the data that it trained on" in caplog.text and str(solved.run) in caplog.text


def test_nothing_that_can_be_planned_is_told_with_the_reason(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})

    solved = plan_offline(folder, {"static": trained(store, "static", train__global_batch=9000)}, 2, store)

    assert (solved.run, list(solved.results)) == (None, []) and "static: " in str(solved.reason)
    assert facts(find_report_input(store, None))["solve.reason"] == solved.reason


def test_traces_of_a_data_set_know_what_the_model_takes_and_that_of_a_run_its_subset(store: RunStore) -> None:
    run, part = trained(store, "static"), trained(store, "static", workload__subset=300)
    for trace in (dataset_trace(run.config()), run_trace(run), whole := trained_trace(run)):
        assert (trace.positions, trace.cut(8).positions) == (512, 512)
    drawn = trained_trace(part).lengths
    assert len(drawn) == 300 and not np.array_equal(drawn, whole.lengths[:300])


def test_a_torn_file_counts_as_no_plan(tmp_path: Path) -> None:
    for text in ("", "[]", "{"):
        (tmp_path / "solve.json").write_text(text)
        assert read_solved(tmp_path) is None
