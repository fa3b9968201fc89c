"""`solve` with a probe plans with its cost, its capacities and its speeds, and says what it leaves out and why."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from probes import make_probe

from dynbench.cli.solve_view import print_solution
from dynbench.config.layers import load_config
from dynbench.errors import ConfigError
from dynbench.experiment.solve_run import OfflineRanks, Solution, SolveOptions, run_solve
from dynbench.runs.store import RunStore
from dynbench.schedule.solve import cost_is_estimated, speedup_is_estimated
from dynbench.schedule.traces import Trace

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
    counted = ("probe.run=probed", "schedule.cost_type=tokens")
    (line,) = solved(store, *counted, policies=("packed",), batch_per_rank=8).lines
    assert line.result["fitted_on"] is None and not speedup_is_estimated(line.result)
