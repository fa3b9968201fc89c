"""A whole probe: capacities, cost model, soak and predictions, stored as a run of the registry."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from dynbench.config.ranks import copies_text, parameter_copies, ranks_of
from dynbench.config.schema import Config, changed, decided
from dynbench.config.unread import unread
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.launching.probe_use import measured_settings
from dynbench.engine.launching.resolve import Resolved, resolve, this_machine, use_of
from dynbench.errors import UsageError
from dynbench.lengths import padded_lengths
from dynbench.probe import fit
from dynbench.probe.capacity import capacity_tables, find_capacities, length_grid, refuse_if_nothing_fits, soak
from dynbench.probe.children import Children, Report, memory_limit_bytes, served_mb
from dynbench.runs.atomic import write_json
from dynbench.runs.probe_record import PROBE_FILE, CostFit, ProbeRecord
from dynbench.runs.recorder import new_run, recorded
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore
from dynbench.schedule.capacity import capacity_of
from dynbench.schedule.cost import CostModel
from dynbench.schedule.partition_unequal import distinct_speeds
from dynbench.schedule.policy import Problem
from dynbench.units import mb
from dynbench.workloads.base import Workload
from dynbench.workloads.inputs import check_inputs
from dynbench.workloads.registry import build_workload

log = logging.getLogger(__name__)


def run_probe(
    config: Config,
    store: RunStore,
    *,
    report: Report,
    asked: Config | None = None,
    **naming: Unpack[Naming],
) -> Run:
    """Probe this machine for a configuration and keep the record.

    Args:
        config: settings; `auto` values are decided here.
        store: the registry.
        report: called with what is being done, one line at a time.
        asked: the settings, to warn of those that no probe reads; None where they are those of a training run.
        naming: what the run is called.

    Raises:
        UsageError: lengths beyond what the model takes, a path or file that cannot be used.
        NothingFits: not one sample of the longest length fits on some rank, or not even the model.
        WorkerFailed: trial processes kept dying.

    What ends it after the run was made is recorded, see `recorder.recorded`.
    """
    check_inputs(config)
    resolved = resolve(_to_be_probed(config), this_machine(), store)
    if (nodes := resolved.config.launch.nnodes) > 1:
        least = 1 + resolved.world_size - resolved.workers
        one = f"Probe one worker, which stands for all: --nproc {least} --set launch.nnodes=1."
        raise UsageError(f"launch.nnodes: {nodes}, but a probe starts the ranks of one machine only", one)
    lengths, limit_bytes = _length_grid(resolved.config), memory_limit_bytes(resolved)
    if resolved.config.launch.launcher == "virtual":
        build_comm_model(resolved.config.launch.comm_model, store.root)
    warnings = [] if asked is None else unread("probe", [use_of(asked, resolved)])
    run = new_run(
        store, "probe", "probe", resolved.config, decisions=resolved.decisions, data={}, warnings=warnings, **naming
    )
    with recorded(run, at_its_end=True):
        record = probe(run, resolved, lengths, limit_bytes, report)
        write_json(run.path / PROBE_FILE, record.model_dump())
        refuse_if_nothing_fits(record.capacity)
    return run


def _to_be_probed(config: Config) -> Config:
    """Without what comes from an earlier probe, measured anew here, and without what only a training's steps decide."""
    schedule = config.schedule
    changes: dict[str, object] = {"probe.run": None, "train.epochs": None, "train.lr_warmup_steps": 0}
    if isinstance(schedule.capacity, str):
        changes["schedule.capacity"] = None
    if schedule.cost_type == "measured" and schedule.cost_coefficients is None:
        changes["schedule.cost_type"] = "auto"
    return changed(config, changes)


def probe(run: Run, resolved: Resolved, lengths: Sequence[int], limit_bytes: int | None, report: Report) -> ProbeRecord:
    """All parts in order; each needs the one before.

    Args:
        run: receives what the trial processes print.
        resolved: settings without `auto`.
        lengths: length grid, padded tokens.
        limit_bytes: budget of one trial process on CPU; None on GPUs, where a fraction is set instead.
        report: called with what is being done, one line at a time.
    """
    config, workers = resolved.config, resolved.workers
    settings, seed, virtual = config.probe, config.train.seed, config.launch.launcher == "virtual"
    processes = 1 if virtual else workers  # virtual ranks share one device and one answer
    limit_mb = None if limit_bytes is None else mb(limit_bytes)
    ranks = ranks_of(config, resolved.world_size)
    slowdown = ranks.by_worker(config.launch.slowdown)
    ceiling = config.train.global_batch - workers + 1
    workload = build_workload(config)
    lengths = _within(lengths, workload.positions)

    unlimited = partial(Children, run, config.launch, processes)
    children = partial(unlimited, limit_bytes)
    start = partial(children, tidy=True)
    rows, trials = find_capacities(start, lengths, processes, ceiling, settings, report)
    points = fit.grid(rows, ceiling)
    if not points:  # there is nothing to time
        refuse_if_nothing_fits(rows)
    memory = fit.fit_memory(trials)
    share = config.train.global_batch // workers
    start_splits = None if ranks.servers else partial(unlimited, splits=True)
    timings = fit.time_grid(unlimited, start_splits, points, settings.repeats, seed, report, slowdown, share)
    server_mb = served_mb(config, timings.allreduce.megabytes, limit_mb)
    overhead_ms = timings.allreduce.ms  # what every step pays alike
    if virtual:
        comm_model = build_comm_model(config.launch.comm_model, run.path.parent)
        overhead_ms = comm_model.allreduce_ms(timings.allreduce.megabytes, workers)
    speeds = fit.rank_speeds(timings.points, workers, slowdown)
    classes = distinct_speeds(speeds)
    further_ms = fit.further_at_full_speed(timings.further, classes)
    cost = fit.fit_cost(fit.at_full_speed(timings.points, classes), seed, config.schedule.attention_a, further_ms)
    problem = _problem(resolved, workload, cost, speeds)
    soaked = None
    if settings.soak_steps and all(row.max_batch for row in rows):
        soaked, rows = soak(children, problem, rows, memory, settings.soak_steps, report, limit_mb, settings.margin)
    report("predicting what scheduling gains")
    tables = capacity_tables(rows, memory, processes)
    if all(row.max_batch for row in rows):
        problem = replace(problem, capacity=capacity_of(tables, config.workload.layout))
    break_even, tried = fit.break_even_batch(problem, overhead_ms, config.analysis.noise_threshold)
    return ProbeRecord(
        device=str(config.launch.device),
        device_name=resolved.device_name,
        precision=config.train.precision,
        memory_limit_mb=limit_mb,
        world_size=workers,
        global_batch=config.train.global_batch,
        pad_to_multiple_of=problem.cost.pad_to_multiple_of,
        positions=workload.positions,
        workload=measured_settings(config.workload),
        layout=config.workload.layout,
        sync=config.sync.name,
        copies_held=parameter_copies(config, ranks, in_step=True),
        assumes=copies_text(config, ranks),
        server_mb=server_mb,
        slowdown=dict(config.launch.slowdown),
        capacity=rows,
        tables=tables,
        trials=trials,
        timings=fit.timing_rows(timings.points, seed),
        cost_model=cost,
        memory_model=memory,
        speeds=speeds,
        allreduce=None if virtual else timings.allreduce,
        overhead_ms=overhead_ms,
        soak=soaked,
        predicted_speedup=fit.predicted_speedups(problem, overhead_ms),
        predicted_window=fit.WINDOW,
        break_even_batch=break_even,
        break_even_tried=list(tried),
    )


def _problem(resolved: Resolved, workload: Workload, cost: CostFit, speeds: Sequence[float]) -> Problem:
    """Without capacities."""
    config = resolved.config
    return Problem(
        lengths=workload.train.lengths,
        workers=resolved.workers,
        global_batch=config.train.global_batch,
        cost=CostModel(
            "measured",
            alpha=cost.alpha_ms,
            beta=cost.beta_ms_per_token,
            gamma=cost.gamma_ms_per_token2,
            further=cost.further_ms,
            pad_to_multiple_of=decided(config.workload.pad_to_multiple_of),
            positions=workload.positions,
        ),
        speeds=distinct_speeds(speeds) if len(speeds) == resolved.workers else None,
        seed=config.train.seed,
        layout=config.workload.layout,
        second=workload.train.second,
        second_weight=config.schedule.second_weight,
    )


def _within(lengths: Sequence[int], positions: int | None) -> tuple[int, ...]:
    """Lengths as the model takes them: what is beyond its positions is padded to these."""
    return tuple(sorted({int(padded_lengths(length, 1, positions)) for length in lengths}))


def _length_grid(config: Config) -> tuple[int, ...]:
    longest = int(padded_lengths(config.workload.max_length, decided(config.workload.pad_to_multiple_of), None))
    lengths = length_grid(longest, config.probe.lengths)
    if lengths[-1] > longest:
        raise UsageError(
            f"probe.lengths: {lengths[-1]} is above workload.max_length, {longest}",
            f"Use lengths up to {longest}, or raise workload.max_length.",
        )
    return lengths
