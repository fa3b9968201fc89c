"""The offline experiment: policies on length traces at any world size, against `static` and the proven bound.

Plans are made and priced one by one and never kept, so a trace may have millions of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from dynbench.errors import NothingFits, UsageError, unknown_name
from dynbench.plugins import POLICIES, PolicyEntry, outside
from dynbench.plugins.policies import ROWS, Layout, plan_name, plan_names, plan_of, whole_windows
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.measure import (
    GreedyGap,
    Series,
    adjacent_correlation,
    greedy_gap,
    length_spread,
    policy_window,
    run_policy,
)
from dynbench.schedule.plan import FloatArray, IntArray
from dynbench.schedule.policy import Policy, Problem, make_policy, policy_class
from dynbench.schedule.prefix import Prefix
from dynbench.schedule.traces import Trace

DEFAULT_STEPS = 100
DEFAULT_WINDOW = 8
LINE_LIMIT_S = 0.5
"""Without a number of steps, a line ends after this many seconds."""
_GAP_STEPS = 100
"""Steps over which `prefix`'s greedy gap is sampled."""


@dataclass(frozen=True)
class SolveRequest:
    """What is to be solved: every trace at every world size under every policy.

    Args:
        traces: already cut to `max_length`.
        world_sizes: workers (G), one experiment each.
        make_problem: the planning problem from lengths and workers; a trace's second numbers are added. Where
            its rows are packed, only packed lines are planned.
        policies: names as of `plan_name`, or None for all that can run.
        windows: numbers of global batches that `window` plans together (W), a line each.
        steps: optimizer steps, rounded up to whole windows; None is `DEFAULT_STEPS`, less where a policy is slow.
        max_length: for the record only, tokens.
    """

    traces: Sequence[Trace]
    world_sizes: Sequence[int]
    make_problem: Callable[[IntArray, int], Problem]
    policies: Sequence[str] | None = None
    windows: Sequence[int] = (DEFAULT_WINDOW,)
    steps: int | None = None
    max_length: int | None = None

    @property
    def least_steps(self) -> int:
        """Steps of a line that is not cut short, before they are rounded up to whole windows."""
        return DEFAULT_STEPS if self.steps is None else self.steps

    def whole_steps(self, problem: Problem) -> int:
        """Those steps in whole windows of all policies that are planned, so that all lines have the same samples."""
        names = self.policies or _plans(problem.layout)
        windows = {size for name in names for size in _windows(self, plan_of(name)[0])}
        return whole_windows(self.least_steps, windows, problem.data_order().steps_per_epoch)

    @property
    def line_limit_s(self) -> float | None:
        """Seconds after which a line is cut short; None where the number of steps was asked for."""
        return LINE_LIMIT_S if self.steps is None else None


@dataclass(frozen=True, slots=True)
class Line:
    """One policy on one trace at one world size: an entry of `results`, plus what the figures need.

    Attributes:
        result: the entry as `--json` prints it.
        rank_costs: predicted cost per rank in the first step, shape [G].
        rank_counts: samples per rank in the first step, shape [G].
        gap: `prefix` only, the sampled gaps of greedy and naive counts to the exact ones.
        whole_steps: steps that the line has if it is not cut short.
    """

    result: dict[str, object]
    rank_costs: FloatArray
    rank_counts: IntArray
    gap: GreedyGap | None
    whole_steps: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A combination that could not run, and why."""

    trace: str
    """Name of the trace."""
    world_size: int
    """Ranks that train (G)."""
    policy: str | None
    """The policy; None for all of them."""
    reason: str
    """Why."""


def cost_is_estimated(result: Mapping[str, object]) -> bool:
    """Whether a line was priced by a fit of another layout."""
    return result.get("fitted_on") not in (None, result.get("layout"))


def speedup_is_estimated(result: Mapping[str, object]) -> bool:
    """The same of the line, or of the padded static that it is held against."""
    return cost_is_estimated(result) or result.get("fitted_on") not in (None, "padded")


def solve(request: SolveRequest) -> Iterator[Line | Skipped]:
    """One line per trace, world size and policy, in that order, as they are found.

    What cannot work at all is refused at once, before the first line is asked for.

    Raises:
        UsageError: an unknown policy, an impossible combination that was asked for by name, or nothing that can run.
        NothingFits: a sample longer than any capacity allows, or, while iterating, a batch that does not fit.
    """
    known = plan_names("padded", *ROWS)
    for name in request.policies or ():
        if name not in known:
            end = f"; or all{outside.or_your_own()}"
            raise unknown_name(f"--policy: {name!r} is not a policy", name, known, end=end)
    places = [_place(request, trace, size) for trace in request.traces for size in request.world_sizes]
    refusals = [refusal for _, _, refusal in places if refusal is not None]
    if len(refusals) == len(places):
        raise refusals[0] if refusals else UsageError("nothing to solve", "Name a trace and a world size.")
    for _, problem, refusal in places:
        for name in request.policies or () if refusal is None else ():
            policy, judged = _planned(name, problem)
            for window in _windows(request, policy):
                make_policy(policy, replace(_as_seen_by(policy, judged), window=window))
    return _solve_places(request, places)


_Place = tuple[Trace, Problem, UsageError | None]
"""A trace at one world size, and why it cannot be solved there."""


def _place(request: SolveRequest, trace: Trace, world_size: int) -> _Place:
    problem = replace(request.make_problem(trace.lengths, world_size), second=trace.second)
    if trace.positions is not None:
        problem = replace(problem, cost=replace(problem.cost, positions=trace.positions))
    _check_fits(problem, trace)
    try:
        problem.data_order()
    except UsageError as error:
        # One trace too short for one world size must not lose the other results.
        return trace, problem, error
    return trace, problem, None


def _solve_places(request: SolveRequest, places: Sequence[_Place]) -> Iterator[Line | Skipped]:
    for trace, problem, refusal in places:
        if refusal is not None:
            yield Skipped(trace.name, problem.workers, None, refusal.message)
            continue
        steps = request.whole_steps(problem)
        baseline = None  # what all policies are compared with, run even where it is not asked for
        if problem.global_batch % problem.workers == 0:
            padded = _in_layout("padded", problem)
            static = make_policy("static", _as_seen_by("static", padded))
            baseline = run_policy(static, padded, steps, request.line_limit_s)
        for name in request.policies or _plans(problem.layout):
            entry = POLICIES[plan_of(name)[0]]
            reason = None if request.policies else _too_slow(entry, problem) or entry.missing
            if reason is not None:
                yield Skipped(trace.name, problem.workers, name, reason)
            else:
                yield from _solve_policy(request, trace, problem, name, steps, baseline)


def _solve_policy(
    request: SolveRequest, trace: Trace, problem: Problem, name: str, steps: int, baseline: Series | None
) -> Iterator[Line | Skipped]:
    """One line, or one per window for a policy that plans several global batches together."""
    planned, problem = _planned(name, problem)
    for size in _windows(request, planned):
        try:
            policy = make_policy(planned, replace(_as_seen_by(planned, problem), window=size))
        except UsageError as error:
            yield Skipped(trace.name, problem.workers, name, error.message)
            return
        if isinstance(policy, Prefix):
            policy.warn_of_little_choice()
        series = baseline if planned == "static" and not problem.packed else None
        if series is None:
            series = run_policy(policy, problem, steps, request.line_limit_s)
        yield _line(request, trace, problem, policy, steps, series, baseline)


def _windows(request: SolveRequest, name: str) -> Sequence[int]:
    return request.windows if policy_class(name).level == "window" else (1,)


def _plans(layout: Layout) -> tuple[str, ...]:
    """What is planned where nothing is named: of padded batches packed rows too, of another layout that one alone."""
    return plan_names("padded", "packed") if layout == "padded" else plan_names(layout)


def _planned(name: str, problem: Problem) -> tuple[str, Problem]:
    """The policy that a name means, and the problem in its layout."""
    policy, layout = plan_of(name)
    return policy, _in_layout(problem.layout if problem.packed else layout, problem)


def _in_layout(layout: Layout, problem: Problem) -> Problem:
    """The problem in a layout; capacities, which count samples in one and tokens in the other, do not go along."""
    return problem if layout == problem.layout else replace(problem, layout=layout, capacity=Capacity())


def _as_seen_by(name: str, problem: Problem) -> Problem:
    """The problem without capacities for policies that know none; their violations are counted against `problem`.

    With `auto`, it is the capacities that make static split its shares.
    """
    capped = POLICIES[name].capped and name != "static"
    return problem if capped or problem.micro_batches == "auto" else replace(problem, capacity=Capacity())


def _too_slow(entry: PolicyEntry, problem: Problem) -> str | None:
    """Why `all` leaves a policy out at this size."""
    limit = entry.slow_above
    size = problem.workers * problem.global_batch
    if limit is None or size <= limit:
        return None
    return f"one plan takes seconds at G*B = {size:,}; ask for it by name"


def _check_fits(problem: Problem, trace: Trace) -> None:
    """Refuse capacities that some sample of the trace exceeds on every rank."""
    longest = int(problem.padded_lengths.argmax())
    length = problem.padded_lengths[longest : longest + 1]
    if not problem.capacity.hold(problem.workers, length).any():
        of_rows = problem.capacity.limits(problem.workers, length).max()
        most = int(of_rows) if problem.packed else max(row[-1][0] for row in problem.capacity.rows)
        raise NothingFits(
            f"{trace.source}: sample {longest} of {int(length[0])} {problem.layout} tokens is longer than any rank's "
            f"capacity allows (at most {most} tokens)",
            "Cut it with --max-length, or probe capacities at this length.",
        )


def _line(
    request: SolveRequest,
    trace: Trace,
    problem: Problem,
    policy: Policy,
    whole_steps: int,
    series: Series,
    baseline: Series | None,
) -> Line:
    gap = greedy_gap(policy, min(len(series), _GAP_STEPS), LINE_LIMIT_S) if isinstance(policy, Prefix) else None
    counts = series.local_batches
    mean_max, mean_bound = float(series.max_cost.mean()), float(series.bound.mean())
    speedup = None
    if baseline is not None:
        common = min(len(series), len(baseline))
        speedup = baseline.cost_per_token(common) / series.cost_per_token(common)
    result: dict[str, object] = {
        "trace": trace.name,
        "samples": len(trace.lengths),
        "world_size": problem.workers,
        "global_batch": problem.global_batch,
        "max_length": request.max_length,
        "cut_samples": trace.cut_samples,
        "train_max_length": trace.train_max_length,
        "longer_than_train": trace.longer_than_train,
        "steps": len(series),
        "seed": problem.seed,
        "cost_type": problem.cost.cost_type,
        "fitted_on": problem.cost.fitted_on,
        "second_weight": None if problem.second is None else problem.second_weight,
        "window": policy_window(policy),
        "micro_batches": problem.micro_batches,
        "objective": problem.objective,
        "policy": plan_name(policy.name, problem.layout),
        "layout": problem.layout,
        "solver": problem.solver if isinstance(policy, Prefix) else None,
        "exact": series.exact,
        "mean_max_cost": mean_max,
        "cost_per_token": series.cost_per_token(len(series)),
        "p95_max_cost": float(np.percentile(series.max_cost, 95)),
        "mean_cost_variance": float(series.variance.mean()),
        "padding_ratio": float(series.padded_tokens.sum() / series.real_tokens.sum()),
        "speedup_vs_static": speedup,
        "mean_bound": mean_bound,
        "gap_to_bound": mean_max / mean_bound - 1,
        "plan_ms": {"p50": float(np.percentile(series.plan_ms, 50)), "p95": float(np.percentile(series.plan_ms, 95))},
        "capacity_violations": series.capacity_violations,
        "epoch_samples": asdict(policy.coverage),
        "adjacent_length_correlation": adjacent_correlation(series),
        "step_length_spread": length_spread(series, problem),
        "local_batch": {"min": int(counts.min()), "p50": float(np.median(counts)), "max": int(counts.max())},
        "greedy_gap": gap.summary() if gap else None,
    }
    return Line(result, series.rank_costs, counts[0], gap, whole_steps)
