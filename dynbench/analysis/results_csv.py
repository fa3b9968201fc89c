"""A run as one line of `results.csv`, and an arm's mean and spread over such lines.

Columns here stand in the file's order; a measure that names a `column` of its own comes behind them. The line is also
the `record` of a summary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import polars as pl

from dynbench.analysis.communication import GRADIENT_BYTES
from dynbench.analysis.links import SPEEDS_GBPS
from dynbench.analysis.measure import (
    Launches,
    Measure,
    Measured,
    Summaries,
    lookup,
    measure,
    measures_of,
    number,
    ratio,
)
from dynbench.analysis.measures import MEASURES
from dynbench.analysis.record import MeanRecord
from dynbench.analysis.run_facts import fact
from dynbench.config.schema import Config
from dynbench.plugins import COMPRESSORS

RESULTS_FILE = "results.csv"
"""In the folder of a run, and in that of a comparison with a line per run."""
BY_ARM_FILE = "results_by_arm.csv"
"""In the folder of a comparison."""
FEWEST_FOR_SPREAD = 3
"""Launches from which on a spread says something."""


def _same(key: str, *, over_launches: bool = False) -> Any:
    """The number at a key of the summary, whose meaning it has."""

    def compute(at: Measured) -> Any:
        return None if at.of(key) is None else fact(at.summary, key)

    return measure(compute, same=key, over_launches=over_launches)


def _model(config: Config) -> str:
    workload = config.workload
    return workload.model if workload.reads_model else f"{workload.name}/{workload.shape}"


def _options(config: Config) -> str:
    entry = COMPRESSORS.get(config.compress.name)
    given = config.compress.model_dump(mode="json")
    return json.dumps(given if entry is None else {name: given[name] for name in entry.options.model_fields})


def _by_operation(at: Measured) -> str:
    rows: Any = at.summary.get("by_operation", [])
    return json.dumps({row["operation"]: row["ms"] * at.steps.height for row in rows if row["side"] == "worker"})


def _bandwidth(at: Measured, amount: float | None) -> float | None:
    """GB/s over the time in which a collective was under way."""
    return ratio(ratio(amount, at.total("comm_ms")), 1e6)


def _total(column: str, unit: str, *, over_launches: bool = False) -> float | None:
    """Sum over the steps."""
    return measure(lambda at: at.total(column), unit=unit, over_launches=over_launches)


def _uncompressed(at: Measured) -> float | None:
    """What a rank would have sent uncompressed, bytes."""
    wire, raw, sent = (at.total(name) for name in ("bytes_wire", *GRADIENT_BYTES))
    return wire - sent + raw if wire is not None and raw is not None and sent is not None else None


def _peak(at: Measured) -> float | None:
    return number(at.steps["bytes_wire"].max()) if "bytes_wire" in at.steps.columns else None


class ResultLine:
    """One run, over its measured steps; bytes and times are means over the ranks that train."""

    run_name: str = measure(lambda at: at.run.label)
    """Its name, else its id."""
    world_size: int = _same("world_size")
    model: str = measure(lambda at: _model(at.config))
    """What was trained: workload and size, or the model's name."""
    dataset: str = measure(lambda at: at.config.workload.dataset)
    """Data set."""
    max_length: int = measure(lambda at: at.config.workload.max_length)
    """Longest sample."""
    batch_size: int = _same("global_batch")
    strategy: str = measure(lambda at: at.config.sync.name)
    """Strategy of gradient synchronisation."""
    policy: str = measure(lambda at: at.facts.plan_name)
    """What its plans are called."""
    precision: str = measure(lambda at: at.config.train.precision)
    """Arithmetic."""
    link_gbps: float | None = _same("link_gbps")
    compress_method: str = measure(lambda at: at.config.compress.name)
    """Compressor."""
    compress_config: str = measure(lambda at: _options(at.config), unit="JSON")
    """Its options."""
    seed: int = measure(lambda at: at.config.train.seed)
    """Seed."""
    steps: int = _same("steps")
    step_time_ms_mean: float | None = _same("step_time_ms.mean", over_launches=True)
    step_time_ms_p50: float | None = _same("step_time_ms.p50")
    step_time_ms_p90: float | None = _same("step_time_ms.p90")
    step_time_ms_p95: float | None = _same("step_time_ms.p95")
    tokens_per_s: float | None = _same("throughput_tokens_per_s.mean", over_launches=True)
    comm_time_ms_total: float | None = _total("comm_ms", "ms", over_launches=True)
    """Time in which a collective was under way, waiting for other ranks included."""
    comm_ratio: float | None = _same("comm_ratio", over_launches=True)
    comm_time_ms_by_op: str = measure(_by_operation, unit="JSON")
    """Sum over calls of the time each was under way, by operation."""
    bytes_raw_total: float | None = _total("gradient_bytes_raw", "bytes", over_launches=True)
    """What a rank would have sent of gradients as they are; of strategies that average gradients."""
    bytes_compressed_total: float | None = _total("gradient_bytes_wire", "bytes", over_launches=True)
    """What it sent of them, indices, scales and norms among it."""
    bytes_wire_total: float | None = _total("bytes_wire", "bytes")
    """All that it sent, what is not gradients among it."""
    bytes_per_step_mean: float | None = _same("bytes_wire.mean")
    bytes_per_step_peak: float | None = measure(_peak, unit="bytes")
    """What it sent in the step that sent most."""
    compression_ratio: float | None = _same("compression_ratio", over_launches=True)
    traffic_compression_ratio: float | None = _same("traffic_compression_ratio")
    train_loss: float | None = _same("loss.last", over_launches=True)
    val_loss: float | None = _same("eval.loss", over_launches=True)
    val_ppl: float | None = _same("eval.perplexity", over_launches=True)
    compress_time_ms: float | None = _same("compression.compress_ms", over_launches=True)
    decompress_time_ms: float | None = _same("compression.decompress_ms", over_launches=True)
    extra_collectives: float | None = _same("compression.extra_collectives")
    extra_collective_time_ms: float | None = _same("compression.extra_collective_ms")
    index_bytes: float | None = _same("compression.index_bytes")
    index_share: float | None = _same("compression.index_share")
    density: float | None = _same("compression.density")
    residual_norm: float | None = _same("compression.residual_norm", over_launches=True)
    residual_mb: float | None = _same("compression.residual_mb")
    grad_rel_error: float | None = _same("compression.grad_rel_error", over_launches=True)
    grad_rel_error_max: float | None = _same("compression.grad_rel_error_max")
    grad_cos_sim: float | None = _same("compression.grad_cos_sim", over_launches=True)
    effective_bw_raw: float | None = measure(lambda at: _bandwidth(at, _uncompressed(at)), unit="GB/s")
    """What would have been sent uncompressed, over comm_time_ms_total."""
    effective_bw_compressed: float | None = measure(lambda at: _bandwidth(at, at.total("bytes_wire")), unit="GB/s")
    """What was sent over the same."""
    mem_peak_alloc_gb: float | None = measure(lambda at: ratio(at.of("peak_mem_mb.max"), 1e3), unit="GB")
    """Most memory of a rank: allocated on a GPU, resident on a CPU; 1e9 bytes."""
    mem_peak_reserved_gb: float | None = measure(lambda at: ratio(at.of("reserved_mem_mb.max"), 1e3), unit="GB")
    """Most memory that its allocator held; likewise."""
    target_ppl: float | None = _same("targets.target_perplexity")
    time_to_target_ppl_s: float | None = _same("targets.time_to_target_s", over_launches=True)
    steps_to_target_ppl: float | None = _same("targets.steps_to_target", over_launches=True)
    bytes_to_target_ppl: float | None = _same("targets.bytes_to_target", over_launches=True)
    time_budget_s: float | None = _same("targets.time_budget_s")
    ppl_at_fixed_time: float | None = _same("targets.perplexity_at_budget", over_launches=True)


def _columns() -> Iterator[Measure]:
    yield from measures_of(ResultLine)
    for speed in SPEEDS_GBPS:
        name, key = f"step_ms_at_{speed}_gbps", f"links.predicted_ms.{speed}"
        yield replace(_same(key), key=name, type=float | None)
    for each in MEASURES:
        if each.column:
            yield replace(_same(each.key, over_launches=each.over_launches), key=each.column, type=each.type)


COLUMNS = tuple(_columns())


def record_of(at: Measured) -> dict[str, object]:
    """The line of a run whose summary is made."""
    return {column.key: column.compute(at) for column in COLUMNS}


def results_csv(summaries: Sequence[Mapping[str, object]]) -> str:
    """The lines of the summaries' runs, under the names of the columns."""
    lines = [summary["record"] for summary in summaries]
    names = [column.key for column in COLUMNS]
    return pl.DataFrame(lines, schema=names, infer_schema_length=None, strict=False).write_csv()


def over_launches(summaries: Summaries) -> dict[str, MeanRecord]:
    """By column of `COLUMNS`, over the launches that have a number there; what none has is left out."""
    found = {}
    for column in (column.key for column in COLUMNS if column.over_launches):
        known = [value for each in summaries if (value := lookup(each, f"record.{column}")) is not None]
        numbers = [value for value in known if math.isfinite(value)]
        if numbers:
            sd = stdev(numbers) if len(numbers) > 1 else None
            found[column] = MeanRecord(mean=fmean(numbers), sd=sd, launches=len(numbers))
    return found


def by_arm_csv(launches: Launches) -> str:
    """A row per arm and column: mean, sd, launches."""
    rows = [
        {"arm": name, "column": column, **found.model_dump()}
        for name, summaries in launches.items()
        for column, found in over_launches(summaries).items()
    ]
    schema = {"arm": pl.String, "column": pl.String, "mean": pl.Float64, "sd": pl.Float64, "launches": pl.Int64}
    return pl.DataFrame(rows, schema=schema).write_csv()
