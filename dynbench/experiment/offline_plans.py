"""The offline plans of a comparison: its own data, ranks, batch and arms, without training; `solve.json`.

And how many plans `prefix` chooses among at that size, and where trying all of them ends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dynbench.analysis.figures import draw_figures
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import workers_of
from dynbench.config.schema import Config, changed
from dynbench.engine.planning import build_cost, build_problem
from dynbench.errors import DynbenchError, NothingFits, RecordError, UsageError
from dynbench.experiment.report_input import SOLVE_FIGURES, ReportInput
from dynbench.experiment.solve_run import keep_solution
from dynbench.experiment.trace_sources import trained_trace
from dynbench.plugins.policies import whole_windows
from dynbench.runs.atomic import read_json, write_json
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.cost import CostModel, CostType
from dynbench.schedule.measure import CostTypeLine, compare_cost_types
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import Problem, policy_class
from dynbench.schedule.solve import Line, Skipped, SolveRequest, cost_is_estimated, solve, speedup_is_estimated
from dynbench.schedule.traces import Trace

SOLVE_FILE = "solve.json"
ALWAYS = ("static", "prefix", "partition", "packed")
"""Policies planned with the baseline's settings where no arm has them."""
COST_POLICIES = ("prefix", "partition")
"""Policies whose plans are compared between cost types."""
STEPS = 100
"""Optimizer steps per line at most, in whole windows: enough for a tail, a second or two in all."""
LEAST_STEPS, WORK = 8, 2**26
"""Large problems are planned for fewer steps: ranks * samples * steps up to `WORK`, but never below `LEAST_STEPS`."""


_log = logging.getLogger(__name__)

Json = Mapping[str, object]


@dataclass(frozen=True)
class Solved:
    """What was planned offline for a comparison.

    Attributes:
        run: label of the entry that holds it; None where planning failed.
        results: lines as `solve --json` prints them, each with the `arm` that it stands for, or null.
        cost_types: lines of `compare_cost_types`.
        reason: why nothing could be planned; None where it was.
        skipped: `arm` (null for a policy that no arm has), `policy` and `reason` of what could not be planned.
    """

    run: str | None = None
    results: Sequence[Json] = ()
    cost_types: Sequence[Json] = ()
    reason: str | None = None
    skipped: Sequence[Json] = ()


def plan_offline(
    folder: Run, arms: Mapping[str, Run], workers: int, store: RunStore, argv: Sequence[str] | None = None
) -> Solved:
    """Plan what the arms trained on as they planned it, and keep the result in the folder and as a `solve` run.

    Args:
        folder: the comparison, or the run.
        arms: a launch of every arm, the baseline first.
        workers: ranks that train (G).
        store: registry of the `solve` run.
        argv: the command line to record.

    Returns:
        The plans; where the data or a probe is gone or nothing can be planned, the reason, which is logged too. Plans
        that the folder has already are kept then, and returned.
    """
    try:
        solved = _plan(folder, arms, workers, store, argv)
    except DynbenchError as error:
        _log.warning("exact against greedy was not measured: %s", error.message)
        stored = read_solved(folder.path)
        if stored is not None and stored.run is not None:
            _log.warning("%s: the plans made before stay (%s)", folder.path / SOLVE_FILE, stored.run)
            return stored
        solved = Solved(None, reason=error.message)
    write_json(folder.path / SOLVE_FILE, {"schema_version": SCHEMA_VERSION, **asdict(solved)})
    return solved


def plan_report(source: ReportInput, store: RunStore) -> Solved:
    """As `plan_offline`, for what a report is about.

    Raises:
        UsageError: the folders of its runs are not here.
    """
    runs = {name: [member.run for member in members if member.run is not None] for name, members in source.arms.items()}
    if gone := [name for name, found in runs.items() if not found]:
        raise UsageError(
            f"--solve: the run folders of {', '.join(gone)} are not here, so their data is not known",
            "Plan where the comparison was made, or report without --solve.",
        )
    workers = workers_of(source.first.summary) or 1
    if source.run.record().command != "train":
        store = store.within(source.run)
    return plan_offline(source.run, {name: found[0] for name, found in runs.items()}, workers, store)


def read_solved(folder: Path) -> Solved | None:
    """What was planned offline for the comparison or run of a folder; None where nothing was, or it cannot be read."""
    try:
        return read_json(folder / SOLVE_FILE, Solved, "Plan it again.")
    except RecordError:
        return None


def planned_speedup(solved: Solved | None, baseline: str, candidate: str) -> float | None:
    """Baseline's planned cost per real token over the candidate's; None where they have no common unit of time.

    Where they were planned with other costs or speeds, a baseline of equal counts has the same plans under the
    candidate's, as long as it takes as many micro-batches: then it is what the candidate was planned against.
    """
    lines = {str(line["arm"]): line for line in solved.results if line.get("arm") is not None} if solved else {}
    before, after = lines.get(baseline), lines.get(candidate)
    if before is None or after is None or "tokens_sq" in (before.get("cost_type"), after.get("cost_type")):
        return None
    if (own := _cost_ratio(before, after)) is not None:
        return own
    same_static = before.get("policy") == "static" and before.get("micro_batches") == after.get("micro_batches")
    return lookup(after, "speedup_vs_static") if same_static else None


def static_over(solved: Solved, line: Json, baseline: str) -> tuple[float | None, bool]:
    """Cost per real token of padded `static` over that of a line, and whether it is an estimate.

    Both are of their own plans, each by its own costs, where the baseline is `static` and has the same unit; else
    `static` was priced as the line is, whatever its layout.
    """
    static = next((each for each in solved.results if each.get("arm") == baseline), None)
    if static is not None and static.get("policy") == "static" and (own := _cost_ratio(static, line)) is not None:
        return own, cost_is_estimated(static) or cost_is_estimated(line)
    return lookup(line, "speedup_vs_static"), speedup_is_estimated(line)


def _cost_ratio(before: Json, after: Json) -> float | None:
    """Cost per real token of one line over another's; None where it is in no common unit of time."""
    top, bottom = (lookup(line, "cost_per_token") for line in (before, after))
    alike = all(before.get(key) == after.get(key) for key in ("cost_type", "speeds"))
    return top / bottom if top and bottom and alike and before.get("cost_type") != "tokens_sq" else None


def _plan(folder: Run, arms: Mapping[str, Run], workers: int, store: RunStore, argv: Sequence[str] | None) -> Solved:
    baseline = next(iter(arms.values()))
    root, trace = baseline.path.parent, trained_trace(baseline)
    configs = {name: run.config() for name, run in arms.items()}
    planned: list[tuple[str | None, str, Config]] = [
        (name, config.plan_name, config) for name, config in configs.items()
    ]
    first = configs[next(iter(arms))]
    present = {policy for _, policy, _ in planned}
    planned += [(None, policy, _without_arm(first)) for policy in ALWAYS if policy not in present]
    lines: list[Line] = []
    skipped: list[Skipped] = []
    unplanned: list[Json] = []
    windows = {
        config.schedule.window_size
        for config in configs.values()
        if policy_class(config.schedule.policy_name).level == "window"
    }
    for arm, policy, config in planned:
        steps = _steps(config, workers, windows, trace)
        for outcome in _solve(_named(trace, arm, policy, planned), policy, config, workers, steps, root):
            if isinstance(outcome, Line):
                if outcome.result["policy"] == policy:
                    speeds = config.schedule.speeds
                    outcome.result["arm"] = arm
                    outcome.result["speeds"] = list(speeds) if isinstance(speeds, tuple) else speeds
                    lines.append(outcome)
            else:
                skipped.append(outcome)
                unplanned.append({"arm": arm, "policy": policy, "reason": outcome.reason})
    if not lines:
        reasons = "; ".join(f"{item['arm'] or item['policy']}: {item['reason']}" for item in unplanned)
        raise UsageError(f"nothing could be planned: {reasons}", "Plan with settings that can be met.")
    costs = list(_cost_types(configs, trace, workers, root))
    run = keep_solution(first, trace, lines, skipped, store, argv)
    draw_figures("solve", run, folder.figures_dir, SOLVE_FIGURES)
    return Solved(run.label, [line.result for line in lines], [asdict(line) for line in costs], skipped=unplanned)


def _named(trace: Trace, arm: str | None, policy: str, planned: Sequence[tuple[str | None, str, Config]]) -> Trace:
    """The trace, with the arm in its name where several arms have the policy: lines are told apart by both."""
    rivals = [name for name, other, _ in planned if other == policy]
    return trace if len(rivals) == 1 else replace(trace, name=f"{trace.name}, {arm}")


def _solve(trace: Trace, policy: str, config: Config, workers: int, steps: int, root: Path) -> Iterator[Line | Skipped]:
    """The line of one policy on the problem that its runs planned; why not, where it cannot be planned."""

    def make_problem(lengths: IntArray, ranks: int) -> Problem:
        return problem_of(config, lengths, ranks, root, trace.positions)

    request = SolveRequest(
        traces=[trace],
        world_sizes=[workers],
        make_problem=make_problem,
        policies=[policy],
        windows=[config.schedule.window_size],
        steps=steps,
        max_length=config.workload.max_length,
    )
    try:
        yield from solve(request)
    except (UsageError, NothingFits) as error:
        yield Skipped(trace.name, workers, policy, error.message)


def _cost_types(configs: Mapping[str, Config], trace: Trace, workers: int, root: Path) -> Iterator[CostTypeLine]:
    """Every cost type on the baseline's problem; `measured` where an arm has its coefficients."""
    config = _padded(next(iter(configs.values())))
    problem = replace(problem_of(config, trace.lengths, workers, root, trace.positions), second=trace.second)
    multiple, positions = problem.cost.pad_to_multiple_of, trace.positions
    unmeasured: tuple[CostType, ...] = ("tokens", "tokens_sq", "attention")
    costs: dict[str, CostModel] = {
        name: CostModel(name, config.schedule.attention_a, pad_to_multiple_of=multiple, positions=positions)
        for name in unmeasured
    }
    measured = next((each for each in configs.values() if each.schedule.cost_type == "measured"), None)
    if measured is not None:
        costs["measured"] = build_cost(measured, multiple, root, positions)
    return compare_cost_types(problem, COST_POLICIES, costs, _steps(config, workers, (), trace))


def problem_of(config: Config, lengths: IntArray, workers: int, root: Path, positions: int | None = None) -> Problem:
    """The planning problem of a run, from its resolved configuration; `positions` as in `build_problem`."""
    multiple = config.workload.pad_to_multiple_of
    return build_problem(config, lengths, workers, 1 if multiple == "auto" else multiple, root, positions)


def _steps(config: Config, workers: int, windows: Collection[int], trace: Trace) -> int:
    """Optimizer steps of a line: whole windows of every arm, so that the lines have the same samples."""
    batch = config.train.global_batch
    affordable = max(WORK // (workers * batch), LEAST_STEPS)
    least = min(config.train.warmup_steps + config.train.steps, affordable, STEPS)
    return whole_windows(least, windows, len(trace.lengths) // batch)


def _without_arm(config: Config) -> Config:
    """The baseline's settings for policies that no arm has: one global batch at a time, one micro-batch per rank."""
    config = _padded(config)
    return changed(config, {"schedule.window": 1, "schedule.micro_batches": 1, "schedule.solver": "exact"})


def _padded(config: Config) -> Config:
    """The settings for padded micro-batches; the capacities of packed rows are left out."""
    if config.workload.layout == "padded":
        return config
    return changed(config, {"workload.layout": "padded", "schedule.capacity": None})
