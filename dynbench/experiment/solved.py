"""Exact against greedy: the offline run that a comparison makes, and where a report takes its numbers from."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dynbench.analysis.analyze import Report as Analysed
from dynbench.config.schema import Config, Schedule, Train
from dynbench.errors import NothingFits, UsageError
from dynbench.experiment.solving import SolveOptions, run_solve
from dynbench.experiment.state import CompareState
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import built_in_trace

TRACES = ("sst2", "gsm8k")
POLICIES = ("static", "prefix", "partition")
WIDE = 8
"""Ranks of a second, wider experiment: with two ranks there is hardly anything to be greedy about."""
STEPS = 50
"""Optimizer steps per line: enough for a mean, a second or two in all."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Solved:
    """A `solve` run and its lines, as `solve --json` prints them."""

    run: Run
    results: Sequence[Mapping[str, object]]


def solve_like(comparison: Run, state: CompareState, analysed: Analysed, store: RunStore) -> CompareState:
    """Plan the built-in length distributions offline, with the comparison's ranks, global batch and seed.

    Returns:
        The state that names the run; unchanged when the sizes cannot be planned, which is logged.
    """
    train = comparison.config().train
    batch, world_size = train.global_batch, analysed.runs[0].world_size
    options = SolveOptions(
        traces=[built_in_trace(name) for name in TRACES],
        world_sizes=sorted({world_size, WIDE} if batch % WIDE == 0 else {world_size}),
        policies=POLICIES,
        global_batch=batch,
        steps=STEPS,
        max_length=comparison.config().workload.max_length,
    )
    # A buffer of B samples per rank leaves `prefix` something to choose at every number of ranks.
    config = Config(schedule=Schedule(buffer=batch), train=Train(global_batch=batch, seed=train.seed))
    try:
        solution = run_solve(config, options, store, argv=comparison.record().argv)
    except (UsageError, NothingFits) as error:
        _log.warning("exact against greedy was not measured: %s", error.message)
        return state
    state = replace(state, solve=solution.run.id)
    state.write(comparison.path)
    return state


def solved_for(state: CompareState | None, store: RunStore) -> Solved | None:
    """The offline run of a comparison, else the latest one in the registry; None when there is none."""
    candidates = [run for run, record in reversed(store.entries()) if record.command == "solve"]
    if state is not None and state.solve is not None:
        candidates.sort(key=lambda run: run.id != state.solve)
    return next((Solved(run, results) for run in candidates if (results := _results(run))), None)


def _results(run: Run) -> list[Mapping[str, object]]:
    try:
        data = json.loads((run.path / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    lines = data.get("results") if isinstance(data, Mapping) else None
    return [line for line in lines if isinstance(line, Mapping)] if isinstance(lines, list) else []
