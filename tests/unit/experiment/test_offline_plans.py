"""Plans made offline: of `solve` with a probe, and those of a comparison itself, never another's.

`solve` takes a probe's cost, capacities and speeds, and says what it leaves out and why.
"""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from languages import facts
from probes import make_probe
from unit.experiment.conftest import Json, MakeComparison

from dynbench.cli.solve_view import print_solution
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.engine.planning import build_problem
from dynbench.errors import ConfigError
from dynbench.experiment.offline_plans import STEPS, Solved, plan_offline, planned_speedup, read_solved, static_over
from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.solve_run import OfflineRanks, Solution, SolveOptions, run_solve
from dynbench.experiment.trace_sources import dataset_trace, run_trace, trained_trace
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.measure import run_policy
from dynbench.schedule.policy import make_policy
from dynbench.schedule.solve import cost_is_estimated
from dynbench.schedule.traces import Trace


def trained(store: RunStore, policy: str, *settings: str) -> Run:
    """A finished run with the resolved settings, as far as plans need them."""
    run = store.create("train", policy)
    data = ("workload.pad_to_multiple_of=1", "workload.max_length=24", "train.global_batch=24", "train.seed=5")
    mode = f"schedule.mode={'static' if policy == 'static' else 'dynamic'}"
    given = [*data, mode, f"schedule.policy={policy}", "schedule.cost_type=tokens", *settings]
    write_text(run.config_file, dump_config(load_config(None, given)))
    write_json(run.env_file, {})
    run.update(status=Status.COMPLETED)
    return run


def line(policy: str, layout: str, cost: float) -> Json:
    """Of the arm that is called as its policy."""
    sizes = {"world_size": 2, "global_batch": 32, "cost_type": "measured", "micro_batches": 1, "speeds": None}
    return {**sizes, "arm": policy, "policy": policy, "layout": layout, "fitted_on": layout, "cost_per_token": cost}


STATIC = line("static", "padded", 6.0)
FLAT = line("flattened", "flattened", 4.0) | {"speedup_vs_static": 2.23}
"""Static as each was probed takes 1.5 times as long as `flattened`, and 2.23 times where it is priced with its fit."""


ROWS: list[tuple[Json, Json, tuple[float, bool], list[str]]] = [
    ({}, {}, (1.5, False), []),
    ({}, {"fitted_on": "padded"}, (1.5, True), ["costs"]),
    ({"policy": "partition"}, {}, (2.23, True), ["static"]),
    ({"cost_type": "tokens", "fitted_on": None}, {}, (2.23, True), ["static"]),
    ({"speeds": [1.0, 2.0]}, {"layout": "padded", "fitted_on": "padded"}, (2.23, False), []),
]
"""What is laid over the two, static over the row and whether that is estimated, and of what a report says so."""


def test_static_over_a_row_is_that_of_their_own_probes_or_says_whose_it_is(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    folder = make_comparison({"candidate": "flattened"})
    for static, flat, expected, notes in ROWS:
        lines = [STATIC | static, FLAT | flat]
        assert static_over(Solved("s", lines), lines[1], "static") == expected
        write_json(folder.path / "solve.json", {"run": "solve-1", "results": lines, "cost_types": []})
        estimated = facts(find_report_input(store, None))["method"]["estimated"]
        assert [kind for kind, true in estimated.items() if true] == notes


SPLIT, ATTENTION, SQUARED = {"micro_batches": 2}, {"cost_type": "attention"}, {"cost_type": "tokens_sq"}
PLANNED: list[tuple[Json, Json, float | None]] = [
    ({}, {}, 1.5),
    ({}, SPLIT, 1.5),
    ({}, ATTENTION, 2.23),
    ({}, {"speeds": [1.0, 2.0]}, 2.23),
    ({}, ATTENTION | SPLIT, None),
    ({"policy": "lpt"}, {}, 1.5),
    ({"policy": "lpt"}, ATTENTION, None),
    ({}, SQUARED, None),
    (SQUARED, SQUARED, None),
]
"""What is laid over the two, and the speed-up that was planned."""


def test_costs_of_another_unit_are_no_time() -> None:
    for before, after, expected in PLANNED:
        solved = Solved("s", [STATIC | before, FLAT | after])
        assert planned_speedup(solved, "static", "flattened") == expected, (before, after)
    for none in (Solved("s", [STATIC]), None):
        assert planned_speedup(none, "static", "flattened") is None


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
    measured = ("schedule.cost_type=measured", "schedule.cost_coefficients=3.0,0.1,0.01")
    arms = {
        "static": trained(store, "static"),
        "plain": trained(store, "partition"),
        "split": trained(store, "partition", "schedule.micro_batches=2"),
        "capped": trained(store, "partition", "schedule.capacity=9,20", "schedule.speeds=1.0,2.0"),
        "dear": trained(store, "partition", "schedule.cost_type=attention", "schedule.attention_a=0.5"),
        "greedy": trained(store, "prefix", "schedule.buffer=16", "schedule.solver=greedy"),
        "wide": trained(store, "window", "schedule.window=4"),
        "measured": trained(store, "partition", *measured),
        "packed": trained(store, "packed", "schedule.capacity=260"),
        "long": trained(store, "partition", "workload.pad_to_multiple_of=1000"),
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
    padded = trained(store, "static", "workload.pad_to_multiple_of=1000")
    arms = {"static": padded, "tight": trained(store, "partition", "schedule.capacity=2")}

    solved = plan_offline(folder, arms, 2, store)

    (found,) = solved.skipped
    assert (found["arm"], found["policy"]) == ("tight", "partition")
    assert read_solved(folder.path) == solved
    lines = [(line["arm"], line["policy"]) for line in solved.results]
    assert lines == [("static", "static"), (None, "prefix"), (None, "packed")]
    costs = [float(str(line["mean"])) for line in solved.cost_types if line["judge"] == "tokens"]
    assert {*costs} == {512 * 12}, "samples are padded to no more than the model takes"

    write_json(arms["static"].env_file, {"data": {"fingerprint": "another"}})
    assert plan_offline(folder, arms, 2, store) == read_solved(folder.path) == solved
    assert "no longer the data that it trained on" in caplog.text and str(solved.run) in caplog.text


def test_nothing_that_can_be_planned_is_told_with_the_reason(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})

    solved = plan_offline(folder, {"static": trained(store, "static", "train.global_batch=9000")}, 2, store)

    assert (solved.run, list(solved.results)) == (None, []) and "static: " in str(solved.reason)
    assert facts(find_report_input(store, None))["solve.reason"] == solved.reason


def test_traces_of_a_data_set_know_what_the_model_takes_and_that_of_a_run_its_subset(store: RunStore) -> None:
    run, part = trained(store, "static"), trained(store, "static", "workload.subset=300")
    for trace in (dataset_trace(run.config()), run_trace(run), whole := trained_trace(run)):
        assert (trace.positions, trace.cut(8).positions) == (512, 512)
    drawn = trained_trace(part).lengths
    assert len(drawn) == 300 and not np.array_equal(drawn, whole.lengths[:300])


def test_a_torn_file_counts_as_no_plan(tmp_path: Path) -> None:
    for text in ("", "[]", "{"):
        (tmp_path / "solve.json").write_text(text)
        assert read_solved(tmp_path) is None


SHORT = Trace("short", np.random.default_rng(0).integers(2, 60, size=400), "made up")
LONG = Trace("long", np.random.default_rng(1).integers(2, 400, size=400), "made up")
SPEEDS = [1.0, 0.5]
TABLES = [[(64, 9), (256, 2)]] * 2


def solved(store: RunStore, *overrides: str, traces: tuple[Trace, ...] = (SHORT,), **options: object) -> Solution:
    asked = SolveOptions(**{"traces": traces, "world_sizes": (2,), "policies": ("partition",), "steps": 3, **options})
    return run_solve(load_config(None, overrides or ["probe.run=probed"]), asked, store)


def ranks_of(store: RunStore, *settings: str) -> OfflineRanks:
    return OfflineRanks.of(load_config(None, settings), store.root)


def warnings(solution: Solution) -> list[str]:
    return solution.run.record().warnings


def test_speeds_are_taken_unless_given_and_nothing_without_a_probe(store: RunStore) -> None:
    make_probe(store, tables=TABLES, speeds=SPEEDS)
    assert ranks_of(store, "probe.run=probed").speeds(2).tolist() == SPEEDS
    given = ranks_of(store, "probe.run=probed", "schedule.speeds=[1.0, 1.0]", "schedule.capacity=20")
    assert given.speeds(2).tolist() == [1.0, 1.0]
    assert given.capacity(60, 2).limit(0, 60) == 20
    without = ranks_of(store)
    assert (without.pad_to_multiple_of, without.speeds(4), without.capacity(10**6, 4).unlimited) == (1, None, True)
    assert given.left_out([LONG], [2, 4]) == without.left_out([LONG], [2]) == []
    (line,) = solved(store).lines
    fast, slow = line.rank_counts.tolist()
    assert fast > slow and line.result["cost_type"] == "measured"


PACKED, CAPPED = "workload.layout=packed", "schedule.capacity=500"
PARTS = ("capacities", "speeds")
OF_TWO_RANKS = [f"measured 2 ranks: its {part} are left out at G=4, 8; --world-size 2 takes them" for part in PARTS]
OF_SHORT = "tried up to 256 tokens: its capacities are left out for long; --max-length 256 takes them"
OTHER_LAYOUT = "measured padded micro-batches: "
PRICED = f"{OTHER_LAYOUT}packed ones are priced as these; probe with --layout packed instead"


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ((), {"world_sizes": (2, 4, 8), "batch_per_rank": 16, "policies": ("static",)}, OF_TWO_RANKS),
        ((), {"traces": (SHORT, LONG)}, [OF_SHORT]),
        ((PACKED,), {"batch_per_rank": 8}, [f"{OTHER_LAYOUT}its capacities are left out", PRICED]),
        ((PACKED, CAPPED, "schedule.cost_type=tokens"), {"batch_per_rank": 8}, []),
        ((PACKED, CAPPED), {"batch_per_rank": 8}, [PRICED]),
    ],
)
def test_what_a_probe_did_not_measure_is_left_out_and_told(
    store: RunStore, caplog: pytest.LogCaptureFixture, settings: tuple[str, ...], options: Any, said: list[str]
) -> None:
    make_probe(store, tables=TABLES, speeds=SPEEDS)
    with caplog.at_level(logging.WARNING, "dynbench"):
        solution = solved(store, "probe.run=probed", *settings, **options)
    assert {line.result["world_size"] for line in solution.lines} == {*options.get("world_sizes", (2,))}
    assert warnings(solution) == caplog.messages == [f"probe.run probed {line}" for line in said]
    if "traces" in options:
        short, _ = solution.lines
        assert short.result["local_batch"]["max"] <= 9


@pytest.mark.parametrize(("positions", "taken"), [(250, True), (None, False)])
def test_samples_are_padded_to_the_model_s_positions(store: RunStore, positions: int | None, taken: bool) -> None:
    make_probe(store, tables=[[(250, 3)]] * 2, pad_to_multiple_of=8, positions=positions)
    ranks = ranks_of(store, "probe.run=probed")
    assert ranks.capacity(249, 2).unlimited is not taken
    full = Trace("full", np.full(64, 250), "made up")
    assert (ranks.left_out([full], [2]) == []) is taken
    assert ranks.capacity(251, 2).unlimited
    (line,) = solved(store, traces=(full,), batch_per_rank=3).lines
    assert line.result["local_batch"]["max"] == 3


def test_one_device_that_played_all_ranks_speaks_for_any_number(store: RunStore) -> None:
    make_probe(store, ranks=1, tables=[[(64, 9)]])
    solution = solved(store, world_sizes=(2, 4))
    assert warnings(solution) == []
    assert max(line.result["local_batch"]["max"] for line in solution.lines) <= 9


@pytest.mark.parametrize("key", ["probe.run", "schedule.capacity"])
def test_lengths_are_padded_as_the_probe_did(store: RunStore, key: str) -> None:
    make_probe(store, pad_to_multiple_of=8)
    assert ranks_of(store, f"{key}=probed").pad_to_multiple_of == 8
    with pytest.raises(ConfigError, match=f"workload.pad_to_multiple_of: 4, but {key} was made with 8"):
        ranks_of(store, f"{key}=probed", "workload.pad_to_multiple_of=4")


@pytest.mark.parametrize("key", ["probe.run", "schedule.capacity"])
@pytest.mark.parametrize("micro_batches", [2, "auto"])
def test_with_micro_batches_the_least_capacity_of_the_ranks_holds(
    store: RunStore, key: str, micro_batches: object
) -> None:
    make_probe(store, tables=[[(256, 5)], [(256, 4)]])
    asked = (f"{key}=probed", f"schedule.micro_batches={micro_batches}", "train.global_batch=16")
    solution = solved(store, *asked, policies=("static", "partition"))
    assert [line.result["capacity_violations"] for line in solution.lines] == [0, 0]
    (line,) = warnings(solution)
    assert line.endswith("the least at each length holds for all; schedule.micro_batches=1 plans with each rank's own")


@pytest.mark.parametrize("probed", ["padded", "packed"])
def test_every_line_says_by_whose_fit_it_was_priced(
    store: RunStore, probed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_probe(store, tables=[[(64, 90), (256, 20)]] * 2, layout=probed)
    solution = solved(store, policies=("static", "partition", "packed"), batch_per_rank=8)
    results = {str(line.result["policy"]): line.result for line in solution.lines}
    assert {result["fitted_on"] for result in results.values()} == {probed}
    estimated = {name for name, result in results.items() if cost_is_estimated(result)}
    assert estimated == ({"packed"} if probed == "padded" else {"static", "partition"})
    print_solution(solution, (), ())
    shown = {line.split()[3]: line for line in capsys.readouterr().out.splitlines() if line.startswith("short  ")}
    assert {name for name, line in shown.items() if "~" in line} == ({"packed"} if probed == "padded" else {*results})
