"""A `solve` as an entry of the run registry: the problem from the configuration, the lines, what the figures need.

The run folder holds results.json and results.csv (the lines), traces.csv (length statistics), rank_costs.csv (the
first step, rank by rank) and, where `prefix` ran, greedy_gaps.csv (step by step).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Unpack

from dynbench.config.schema import Config
from dynbench.engine.launching.probe_use import PROBE_AGAIN
from dynbench.engine.planning import (
    build_capacity,
    build_cost,
    build_objective,
    build_speeds,
    least_capacity_warning,
    load_probe,
    names_a_probe,
    probe_capacity,
    probe_speeds,
)
from dynbench.errors import ConfigError
from dynbench.lengths import padded_lengths
from dynbench.plugins import options_of
from dynbench.plugins.policies import PrefixOptions, plan_names, plan_of
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.probe_record import ProbeRecord
from dynbench.runs.recorder import new_run, recorded
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.partition_unequal import distinct_speeds
from dynbench.schedule.plan import FloatArray, IntArray
from dynbench.schedule.policy import Problem
from dynbench.schedule.solve import DEFAULT_WINDOW, Line, Skipped, SolveRequest, solve
from dynbench.schedule.traces import Trace, describe
from dynbench.table_text import csv_text

OnOutcome = Callable[[Line | Skipped], None]


@dataclass(frozen=True)
class OfflineRanks:
    """Capacities and speeds at any number of ranks.

    Args:
        config: may name a probe.
        root: results folder in which it is looked up.
        probe: what `probe.run` names, None where it names none.
        pad_to_multiple_of: padded lengths are multiples of this, tokens.
    """

    config: Config
    root: Path
    probe: ProbeRecord | None
    pad_to_multiple_of: int

    @classmethod
    def of(cls, config: Config, root: Path) -> OfflineRanks:
        """What the configuration and the probes that it names say.

        Raises:
            ConfigError: lengths padded to another multiple than a probe's.
            UsageError, RecordError: a probe run that cannot be used.
        """
        capacity, multiple = config.schedule.capacity, config.workload.pad_to_multiple_of
        probe = load_probe(config.probe.run, "probe.run", root) if names_a_probe(config) else None
        probes = {"probe.run": probe} if probe else {}
        if isinstance(capacity, str):
            probes["schedule.capacity"] = load_probe(capacity, "schedule.capacity", root)
        wanted = next((found.pad_to_multiple_of for found in probes.values()), 1) if multiple == "auto" else multiple
        problems = [
            f"workload.pad_to_multiple_of: {wanted}, but {key} was made with {found.pad_to_multiple_of}"
            for key, found in probes.items()
            if found.pad_to_multiple_of != wanted
        ]
        if problems:
            raise ConfigError(problems, PROBE_AGAIN)
        return cls(config, root, probe, wanted)

    def capacity(self, longest: int, world_size: int) -> Capacity:
        """As configured, else the probe's where it measured these ranks and samples as long as the longest."""
        if self._knows_capacity(world_size) and self._reaches(longest):
            assert self.probe is not None
            found = probe_capacity(self.probe, world_size, self.config.schedule.micro_batches)
            # Plans made offline know no positions: they pad the longest samples on to the next multiple.
            return type(found)(tuple((*row, (self._rounded(row[-1][0]), row[-1][1])) for row in found.rows))
        return build_capacity(self.config, world_size, self.root)

    def speeds(self, world_size: int) -> FloatArray | None:
        """As configured, else the probe's where it measured these ranks."""
        if self.config.schedule.speeds is None and self.probe is not None:
            return probe_speeds(self.probe, world_size)
        return build_speeds(self.config)

    def left_out(self, traces: Sequence[Trace], world_sizes: Sequence[int]) -> list[str]:
        """What of the probe is not used and why, one line each."""
        capacity, lines = self.config.schedule.capacity, list[str]()
        if isinstance(capacity, str):
            probe = load_probe(capacity, "schedule.capacity", self.root)
            lines += least_capacity_warning(capacity, probe, self.config)
        if self.probe is None:
            return lines
        named, measured = f"probe.run {self.config.probe.run}", len(self.probe.speeds)
        takes_capacity = capacity is None
        takes_speeds = self.config.schedule.speeds is None and distinct_speeds(self.probe.speeds) is not None
        if self.probe.layout != self.config.workload.layout:
            measured_so, layout = f"{named} measured {self.probe.layout} micro-batches", self.config.workload.layout
            if takes_capacity:
                lines.append(f"{measured_so}: its capacities are left out")
            if self.config.schedule.cost_type in ("auto", "measured") and not self.config.schedule.cost_coefficients:
                lines.append(f"{measured_so}: {layout} ones are priced as these; probe with --layout {layout} instead")
            takes_capacity = False
        for part, sizes in (
            ("capacities", [size for size in world_sizes if takes_capacity and not self._knows_capacity(size)]),
            ("speeds", [size for size in world_sizes if takes_speeds and size != measured]),
        ):
            if sizes:
                lines.append(
                    f"{named} measured {measured} ranks: its {part} are left out at G={', '.join(map(str, sizes))}; "
                    f"--world-size {measured} takes them"
                )
        if takes_capacity and len(self.probe.tables) in world_sizes:
            lines += least_capacity_warning(named, self.probe, self.config)
        long = [trace.name for trace in traces if not self._reaches(int(trace.lengths.max()))]
        if long and any(self._knows_capacity(size) for size in world_sizes):
            lines.append(
                f"{named} tried up to {self._longest} tokens: its capacities are left out for {', '.join(long)}; "
                f"--max-length {self._longest} takes them"
            )
        return lines

    @property
    def _longest(self) -> int:
        """Longest padded length that every rank of the probe tried with success, tokens."""
        assert self.probe is not None
        return min((table[-1][0] for table in self.probe.tables if table), default=0)

    def _knows_capacity(self, world_size: int) -> bool:
        if self.probe is None or self.config.schedule.capacity is not None:
            return False
        return self.probe.layout == self.config.workload.layout and len(self.probe.tables) in (1, world_size)

    def _reaches(self, longest: int) -> bool:
        assert self.probe is not None
        positions = self.probe.positions
        within = positions is None or longest <= positions
        return within and int(padded_lengths(longest, self.pad_to_multiple_of, positions)) <= self._longest

    def _rounded(self, length: int) -> int:
        return int(padded_lengths(length, self.pad_to_multiple_of, None))


@dataclass(frozen=True)
class SolveOptions:
    """What the configuration does not say.

    Args:
        traces: what to plan.
        world_sizes: workers (G), one experiment each.
        policies: names as of `plan_name`, or None for all that can run.
        windows: numbers of global batches that `window` plans together (W).
        batch_per_rank: samples per rank and step; B is G times it.
        global_batch: B itself, in place of `batch_per_rank`.
        steps: optimizer steps, rounded up to whole windows; None decides by time.
        order: `shuffle`, or `file` for the order in which the samples stand.
        max_length: cut every sample to this many tokens; None cuts nothing.
    """

    traces: Sequence[Trace]
    world_sizes: Sequence[int]
    policies: Sequence[str] | None = None
    windows: Sequence[int] = (DEFAULT_WINDOW,)
    batch_per_rank: int = 8
    global_batch: int | None = None
    steps: int | None = None
    order: Literal["shuffle", "file"] = "shuffle"
    max_length: int | None = None


@dataclass(frozen=True)
class Solution:
    """A finished `solve`: its run, the planned traces, its lines, what could not run, and the requested steps."""

    run: Run
    traces: Sequence[Trace]
    lines: Sequence[Line]
    skipped: Sequence[Skipped]
    steps: int


def run_solve(
    config: Config,
    options: SolveOptions,
    store: RunStore,
    *,
    on_outcome: OnOutcome = lambda _: None,
    warnings: Sequence[str] = (),
    **naming: Unpack[Naming],
) -> Solution:
    """Solve and keep the results in the registry.

    Args:
        config: cost, capacity, speeds, solver, buffer, micro-batches and seed.
        options: traces, sizes, policies.
        store: registry that the run is put into.
        on_outcome: called with every line as it is found.
        warnings: what is warned of beforehand; the run's record says it too.
        naming: what the run is called.

    Raises:
        UsageError: settings that cannot work; nothing was made.
        NothingFits: a sample beyond the capacities (nothing was made), or a batch (the run is recorded as failed).
    """
    ranks = OfflineRanks.of(config, store.root)
    request = solve_request(config, options, ranks)
    outcomes = solve(request)
    left_out = ranks.left_out(request.traces, request.world_sizes)
    messages = [*warnings, *left_out, *_not_in_tokens(request)]
    run = _new_run(config, request.traces, store, messages, **naming)
    with recorded(run, at_its_end=True):
        found = []
        for outcome in outcomes:
            found.append(outcome)
            on_outcome(outcome)
        lines = [outcome for outcome in found if isinstance(outcome, Line)]
        skipped = [outcome for outcome in found if isinstance(outcome, Skipped)]
        _write(run, request.traces, lines, skipped)
    return Solution(run, request.traces, lines, skipped, request.least_steps)


def keep_solution(
    config: Config,
    trace: Trace,
    lines: Sequence[Line],
    skipped: Sequence[Skipped],
    store: RunStore,
    argv: Sequence[str] | None = None,
) -> Run:
    """Lines solved elsewhere as an entry of the registry, as `run_solve` makes one."""
    run = _new_run(config, [trace], store, argv=argv)
    with recorded(run):
        _write(run, [trace], lines, skipped)
    return run


def _new_run(
    config: Config,
    traces: Sequence[Trace],
    store: RunStore,
    warnings: Sequence[str] = (),
    **naming: Unpack[Naming],
) -> Run:
    data = {"traces": [_trace_facts(trace) for trace in traces]}
    return new_run(store, "solve", "solve", config, decisions={}, data=data, warnings=warnings, **naming)


def solve_request(config: Config, options: SolveOptions, ranks: OfflineRanks) -> SolveRequest:
    """The experiment that configuration and options describe, on these ranks."""
    schedule, stream = config.schedule, options_of(config.schedule, PrefixOptions)
    cost = build_cost(config, ranks.pad_to_multiple_of, ranks.root)

    def make_problem(lengths: IntArray, workers: int) -> Problem:
        return Problem(
            lengths=lengths,
            workers=workers,
            global_batch=options.global_batch or options.batch_per_rank * workers,
            cost=cost,
            capacity=ranks.capacity(int(lengths.max(initial=0)), workers),
            speeds=ranks.speeds(workers),
            seed=config.train.seed,
            order=options.order,
            solver=stream.solver,
            buffer=None if stream.buffer == "auto" else stream.buffer,
            micro_batches=schedule.micro_batches,
            objective=build_objective(config),
            settings=schedule,
            layout=config.workload.layout,
            second_weight=schedule.second_weight,
        )

    return SolveRequest(
        traces=[_as_trained(trace, config).cut(options.max_length) for trace in options.traces],
        world_sizes=options.world_sizes,
        make_problem=make_problem,
        policies=options.policies,
        windows=options.windows,
        steps=options.steps,
        max_length=options.max_length,
    )


def _not_in_tokens(request: SolveRequest) -> list[str]:
    """That lines of packed rows beside padded ones know no capacities, where there are any."""
    problems = [request.make_problem(trace.lengths, size) for trace in request.traces for size in request.world_sizes]
    packed = [name for name in request.policies or plan_names("packed") if plan_of(name)[1] != "padded"]
    if not packed or all(problem.packed or problem.capacity.unlimited for problem in problems):
        return []
    return [
        f"schedule.capacity: counts samples here, and rows of {', '.join(packed)} are limited in tokens: these lines "
        "leave it out; --layout packed plans them alone, with capacities in tokens"
    ]


def _as_trained(trace: Trace, config: Config) -> Trace:
    """The trace with the length at which `train` would cut it under the same settings, unless it knows its own."""
    return replace(trace, train_max_length=trace.train_max_length or config.workload.max_length)


def _trace_facts(trace: Trace) -> dict[str, object]:
    second = b"" if trace.second is None else trace.second.tobytes()
    digest = hashlib.sha256(trace.lengths.tobytes() + second).hexdigest()[:16]
    cut = {key: getattr(trace, key) for key in ("cut_samples", "train_max_length", "longer_than_train")}
    return {"name": trace.name, "source": trace.source, "fingerprint": digest, **asdict(describe(trace.lengths)), **cut}


def _write(run: Run, traces: Sequence[Trace], lines: Sequence[Line], skipped: Sequence[Skipped]) -> None:
    results = [line.result for line in lines]
    write_json(
        run.path / "results.json",
        {"schema_version": SCHEMA_VERSION, "command": "solve", "results": results, "skipped": skipped},
    )
    write_csv(run.path / "results.csv", [flat(result) for result in results])
    write_csv(run.path / "traces.csv", [_trace_facts(trace) for trace in traces])
    write_csv(run.path / "rank_costs.csv", [row for line in lines for row in _rank_rows(line)])
    gaps = [row for line in lines for row in _gap_rows(line)]
    if gaps:
        write_csv(run.path / "greedy_gaps.csv", gaps)


def flat(result: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested objects as columns `outer_inner`; a null object leaves its column empty."""
    row: dict[str, object] = {}
    for key, value in result.items():
        row |= flat(value, f"{prefix}{key}_") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return row


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows as a CSV file, see `csv_text`."""
    write_text(path, csv_text(rows))


def _keys(line: Line) -> dict[str, object]:
    return {key: line.result[key] for key in ("trace", "world_size", "policy", "window")}


def _rank_rows(line: Line) -> list[dict[str, object]]:
    ranks = zip(line.rank_costs.tolist(), line.rank_counts.tolist(), strict=True)
    return [{**_keys(line), "rank": rank, "cost": cost, "samples": n} for rank, (cost, n) in enumerate(ranks)]


def _gap_rows(line: Line) -> list[dict[str, object]]:
    if line.gap is None:
        return []
    rows: list[dict[str, object]] = []
    for name, max_costs in line.gap.max_cost.items():
        pairs = zip(max_costs.tolist(), line.gap.variance[name].tolist(), strict=True)
        for step, (max_cost, variance) in enumerate(pairs):
            gaps = {"max_cost_gap": max_cost, "variance_gap": None if math.isnan(variance) else variance}
            rows.append({**_keys(line), "step": step, "heuristic": name, **gaps})
    return rows
