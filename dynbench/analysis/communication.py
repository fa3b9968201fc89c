"""What communication cost a run, in time and bytes, and what its compressor did to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypedDict, cast

import polars as pl

from dynbench.analysis.measure import Mean, Measured, Metric, mean_of, measure, number, of_step, ratio, shown, total
from dynbench.analysis.merge import SIDES, MergedRun, read_merged
from dynbench.analysis.rank_files import Operation, by_operation
from dynbench.analysis.run_facts import fact
from dynbench.config.schema import is_like
from dynbench.errors import DynbenchError
from dynbench.runs.phrase import Phrase, PhraseRecord
from dynbench.runs.records import COMM_COLUMNS, COMPRESSES, read_columns
from dynbench.runs.run import Run, is_folder_name
from dynbench.units import Unit

COMMUNICATION = "communication and planning"
"""Title of the family of metrics."""
GRADIENT_BYTES = ("gradient_bytes_raw", "gradient_bytes_wire")
HEADER_BYTES = 580
"""What gloo sends to each other rank for a collective beside its data, at most: 577 were counted of an all-reduce on
two and four ranks, up to 289 of an all-gather, 145 of the others."""
_UNCOUNTED_CALLS = 2
"""Collectives of a step beside the strategy's, at most: of what the samples weigh, and of gradients that overflow."""
OF_EVERY_RUN = frozenset(column.name for column in COMM_COLUMNS)


def _compression_ratios(merged: MergedRun) -> tuple[float | None, float | None]:
    """What would have been sent over what was, in steps that compress: of gradients, and of all traffic.

    The former is None where a strategy averages no gradients.
    """
    steps = merged.measured
    counted = steps.filter(pl.col(COMPRESSES.name)) if COMPRESSES.name in steps.columns else steps
    raw, gradient, wire = (total(counted, name) or 0.0 for name in (*GRADIENT_BYTES, "bytes_wire"))
    plain = total(counted, "bytes_uncompressed") if "bytes_uncompressed" in counted.columns else wire - gradient + raw
    return ratio(raw, gradient), ratio(plain, wire)


class Timed(TypedDict):
    """What is timed of communication, by column; means over ranks and measured steps."""

    workers: Annotated[dict[str, float], Unit("ms")]
    """Of the ranks that train: `comm_ms`, and what else the strategy and the compressor time in their rows."""
    servers: Annotated[dict[str, float], Unit("ms")]
    """Of those that serve them: the same, and `optimizer_ms`; empty where none do."""


def timed_columns(merged: MergedRun) -> list[str]:
    """The columns that hold milliseconds of a strategy or compressor, and how long it communicated at all."""
    declared, written = read_columns(merged.run.ranks_dir), merged.columns()
    chosen = [name for name in declared if name == "comm_ms" or name not in OF_EVERY_RUN]
    return [name for name in chosen if declared[name].unit == "ms" and name in written]


def timed_ms(merged: MergedRun) -> Timed:
    """The `timed_ms` object of a summary."""
    found = {}
    for side in SIDES:
        names = [*timed_columns(merged), *(["optimizer_ms"] if side == "servers" else [])]
        rows = merged.measured_rows(side).select(pl.col(name).mean() for name in names).collect().to_dicts()
        found[side] = {name: value for row in rows for name, value in row.items() if value is not None}
    return cast(Timed, found)


class Sent(NamedTuple):
    """What a rank sent over what the formulas say, or why that is not known."""

    ratio: float | None = None
    headers: float = 0.0
    """What headers of its messages are of that at most."""
    reason: Phrase | None = None


def sent_bytes(merged: MergedRun) -> Sent:
    """The bytes that the kernel counted held against those of the formulas, over the measured steps that have both."""
    steps = merged.measured
    both = steps.drop_nulls("bytes_sent") if "bytes_sent" in steps.columns else steps.clear()
    if not both.height:
        return Sent(reason=Phrase.of("bytes.uncounted"))
    wire, sent, calls = (total(both, name) or 0.0 for name in ("bytes_wire", "bytes_sent", "collectives"))
    if not wire:
        return Sent(reason=Phrase.of("bytes.none"))
    headers = HEADER_BYTES * (merged.workers - 1) * (calls + _UNCOUNTED_CALLS * both.height)
    return Sent(ratio=sent / wire, headers=headers / wire)


def _per_rank(column: str, *metrics: Metric, unit: str = "") -> Mean:
    return mean_of(column, *metrics, needs=column, unit=unit)


def _per_step(heading: str, title: str, unit: str = "ms") -> Metric:
    return of_step(COMMUNICATION, heading, title, unit)


def _operations(at: Measured) -> list[Operation]:
    run = at.run
    return [] if run.calls is None else by_operation(run.calls, at.steps["step"], run.facts.servers)


def _reason(at: Measured) -> PhraseRecord | None:
    return reason.record() if (reason := sent_bytes(at.run).reason) else None


class Communication:
    """Of runs that record it, in the order of rows of tables."""

    comm_ms: Mean = _per_rank("comm_ms", _per_step("comm.", "communication"))
    """Time in which a collective was under way, waiting for other ranks included."""
    comm_sum_ms: Mean = _per_rank("comm_sum_ms", _per_step("sum", "communication, sum over collectives"))
    """Sum over collectives of the time each was under way."""
    comm_wait_ms: Mean = _per_rank("comm_wait_ms", _per_step("waiting in it", "communication, waiting for other ranks"))
    """What of communication was waiting for the last rank to call; of runs that keep when ranks did."""
    comm_transfer_ms: Mean = _per_rank("comm_transfer_ms", _per_step("transfer", "communication, transfer"))
    """The rest of communication, in which something was transferred."""
    hidden_comm_ms: Mean = _per_rank("hidden_comm_ms")
    """Communication beside other work."""
    overlap_fraction: float | None = measure(
        lambda at: ratio(at.total("hidden_comm_ms"), at.total("comm_ms")),
        shown(COMMUNICATION, "hidden", "communication beside other work", "%", better="more"),
        needs="hidden_comm_ms",
    )
    """That over all communication."""
    collectives: Mean = _per_rank(
        "collectives", shown(COMMUNICATION, "collectives", "collectives per step", better=None)
    )
    """Collectives, sends and receives of the strategy."""
    sync_forward_ms: Mean = _per_rank("sync_forward_ms")
    """What forward passes waited for other ranks."""
    sync_backward_ms: Mean = _per_rank("sync_backward_ms")
    """What backward passes waited for other ranks."""
    sync_optimizer_ms: Mean = _per_rank("sync_optimizer_ms")
    """What the optimizer's step waited for other ranks."""
    bytes_raw: Mean = _per_rank("bytes_raw", unit="bytes")
    """What the strategy gave a rank's wire, before compression."""
    bytes_wire: Mean = _per_rank("bytes_wire", _per_step("sent", "sent per rank and step", "bytes"))
    """What was sent, by the formulas."""
    bytes_sent: Mean = _per_rank("bytes_sent", unit="bytes")
    """What the kernel counts; of runs that keep it."""
    bytes_sent_ratio: float | None = measure(
        lambda at: sent_bytes(at.run).ratio,
        shown(COMMUNICATION, "counted", "sent, as counted over as calculated", better=None),
        needs="hidden_comm_ms",
    )
    """Bytes that the kernel counted over those of the formulas."""
    bytes_sent_reason: str | None = measure(lambda at: sent_bytes(at.run).reason, needs="hidden_comm_ms")
    """Why that is not known."""
    bytes_sent_reason_said: PhraseRecord | None = measure(_reason, needs="hidden_comm_ms")
    """The same as a phrase."""
    gradient_bytes_raw: Mean = _per_rank("gradient_bytes_raw", unit="bytes")
    """What of gradients would have been sent as they are."""
    gradient_bytes_wire: Mean = _per_rank("gradient_bytes_wire", unit="bytes")
    """What was sent of them."""
    compression_ratio: float | None = measure(
        lambda at: _compression_ratios(at.run)[0],
        shown(COMMUNICATION, "compression", "compression, of the exchange of gradients", better="more"),
        needs="gradient_bytes_wire",
    )
    """Of the exchange of gradients, what would have been sent as they are over what was, without steps that are not
    compressed (`compress.start_step`); null where a strategy averages none."""
    traffic_compression_ratio: float | None = measure(
        lambda at: _compression_ratios(at.run)[1],
        shown(COMMUNICATION, "of all traffic", "compression, of all traffic", better="more"),
        needs="gradient_bytes_wire",
    )
    """The same of all traffic of a step."""
    comm_ratio: float | None = measure(
        lambda at: ratio(at.total("comm_ms"), at.total("step_time_ms_mean")),
        shown(COMMUNICATION, "share of time", "communication, share of the steps' time", "%"),
        needs="hidden_comm_ms",
    )
    """Time in which a collective was under way over the time of the steps."""
    by_operation: list[Operation] = measure(_operations, needs="hidden_comm_ms")
    """Communication by operation and side, means per rank of that side and step; empty where calls were not kept."""
    timed_ms: Timed = measure(lambda at: timed_ms(at.run))
    """What is timed of communication."""


class Compression(TypedDict):
    """Means per rank and step; steps that `compress.start_step` leaves as they are count in none of it."""

    compress_ms: float | None
    """Compressing, error feedback included."""
    decompress_ms: float | None
    """Decompressing and averaging."""
    extra_collectives: float | None
    """Collectives of a step beside those that carry what was compressed."""
    extra_collective_ms: float | None
    """Their time, from call to completion."""
    index_bytes: float | None
    """Of what a rank wrote, what says which elements are sent."""
    density: Annotated[float | None, Unit("fraction")]
    """Elements sent over elements of what was compressed."""
    index_share: float | None
    """Share of `index_bytes` in what a rank wrote."""
    residual_norm: float | None
    """2-norm of what error feedback kept when it was last measured (`compress.error_every`)."""
    grad_rel_error: Annotated[
        float | None, shown("communication and planning", "gradient error", "error of the mean gradient, relative")
    ]
    """2-norm of the mean gradient's difference from the uncompressed one, over its norm; mean over the steps after the
    warm-up in which it was measured (`compress.error_every`)."""
    residual_mb: Annotated[float | None, shown("memory", "error feedback", "memory of error feedback", "MB")]
    """Most memory of what error feedback kept."""
    grad_rel_error_max: float | None
    """Largest difference of an element over the largest element, of all these steps."""
    grad_cos_sim: float | None
    """Cosine of the angle between the two gradients; mean over these steps."""


def compression_of(merged: MergedRun) -> Compression | None:
    """The `compression` object of a summary; None of runs that compress nothing."""
    written = merged.columns()
    if COMPRESSES.name not in written:
        return None
    after = pl.col("step") >= merged.facts.config.train.warmup_steps
    sampled = merged.worker_rows().filter(after & (pl.col(COMPRESSES.name) > 0))
    measured = sampled.join(merged.measured.lazy().select("step"), on="step", how="semi")

    def of(rows: pl.LazyFrame, **columns: pl.Expr) -> dict[str, Any]:
        known = {name: column for name, column in columns.items() if column.meta.root_names()[0] in written}
        return dict.fromkeys(columns) | (rows.select(**known).collect().to_dicts()[0] if known else {})

    means = ("compress_ms", "decompress_ms", "extra_collectives", "extra_collective_ms", "index_bytes", "density")
    number = {name: pl.col(name).cast(pl.Float64) for name in (*means, "residual_mb", "grad_rel_error", "grad_cos_sim")}
    found = of(
        measured,
        **{name: number[name].mean() for name in means},
        residual_mb=number["residual_mb"].max(),
        index_share=pl.col("index_bytes").sum(),
        payload=pl.col("payload_bytes").sum(),
    )
    # No times, so that a step behind an evaluation, which counts in none, has them too.
    found |= of(
        sampled,
        **{name: number[name].mean() for name in ("grad_rel_error", "grad_cos_sim")},
        grad_rel_error_max=pl.col("grad_rel_error_max").cast(pl.Float64).max(),
        residual_norm=pl.col("residual_norm").sort_by("step").drop_nulls().last(),
    )
    payload = found.pop("payload")
    if found["index_share"] is not None:
        found["index_share"] = found["index_share"] / payload if payload else 0.0
    return cast(Compression, found)


_PARTS = {"compute_ms": ["compute_ms"], "sync_ms": ["wait_ms", "exposed_comm_ms"], "optimizer_ms": ["optimizer_ms"]}
"""Of a step, and the columns that each is the sum of."""


class AgainstNull(TypedDict):
    """A step held against the same without communication, which took turns with it in its launch; means, ms."""

    run: str
    """Id of the run without communication."""
    steps: int
    """Measured steps that both have."""
    exposed_ms: float
    """What the step takes more."""
    null_ms: float
    """The step without communication."""
    compute_ms: float
    """What forward and backward passes take more, mean over ranks."""
    sync_ms: float
    """What synchronising takes more, waiting for other ranks among it, mean over ranks."""
    optimizer_ms: float
    """What the optimizer takes more, mean over ranks."""
    other_ms: float
    """What the rest takes more, planning and data among it, mean over ranks."""


def against_null(merged: MergedRun) -> AgainstNull | None:
    """The `against_null` object of a summary; None where the run sends nothing itself, or nothing ran beside it."""
    other = _null_of(merged)
    if other is None:
        return None
    same = merged.blocks.join(other.blocks, on=["first_step", "steps"], suffix="_null")
    steps = int(same["steps"].sum())
    if not steps:
        return None
    with_, without = float(same["time_ms"].sum()) / steps, float(same["time_ms_null"].sum()) / steps
    more = {name: _part(merged, columns) - _part(other, columns) for name, columns in _PARTS.items()}
    rest = _part(merged, ["step_time_ms"]) - _part(other, ["step_time_ms"]) - sum(more.values())
    beyond = {"run": other.run.id, "steps": steps, "exposed_ms": with_ - without, "null_ms": without}
    return cast(AgainstNull, {**beyond, **more, "other_ms": rest})


class BesideNull:
    """Of runs that took turns with one without communication (`train.exposed`)."""

    against_null: AgainstNull | None = measure(lambda at: against_null(at.run), optional=True)
    """What a step takes beyond one without communication, and what of; means per step."""
    exposed_vs_null_ms: Mean = measure(
        lambda at: Mean(mean=at.of("against_null.exposed_ms")),
        of_step(COMMUNICATION, "exposed vs none", "exposed communication, against a step without any", key=".mean"),
        needs="against_null",
    )
    """What a step takes beyond one without communication, of the steps that both have."""


def _part(merged: MergedRun, columns: Sequence[str]) -> float:
    return sum(number(merged.measured[f"{column}_mean"].mean()) or 0.0 for column in columns)


def _null_of(merged: MergedRun) -> MergedRun | None:
    null = null_run(merged.run)
    try:
        return None if null is None else read_merged(null)[0]
    except DynbenchError:  # without a row: as if it had not been
        return None


def null_run(run: Run) -> Run | None:
    """The run of the same launch that differs in nothing but that its ranks sent nothing; None where none is there."""
    try:
        ids, config = fact(run.env(), "together.runs"), run.config()
    except DynbenchError:  # of a run that ended before it was written
        return None
    for other in filter(is_folder_name, map(str, ids if isinstance(ids, list) else ())):
        beside = Run(run.path.parent / other)
        try:
            if other != run.id and is_like(beside.config(), config):
                return beside
        except DynbenchError:  # gone
            continue
    return None
