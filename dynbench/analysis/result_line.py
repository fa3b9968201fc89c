"""A run as one line of `results.csv`: what it was, what it took, what it sent, what it reached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import polars as pl

from dynbench.analysis.communication import GRADIENT_BYTES
from dynbench.analysis.links import SPEEDS_GBPS
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.metrics import lookup
from dynbench.config.schema import Config
from dynbench.plugins import COMPRESSORS

RESULTS_FILE = "results.csv"
"""In the folder of a run, and in that of a comparison with a line per run."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One run, over its measured steps; bytes and times are means over the ranks that train."""

    run_name: str
    """Its name, else its id."""
    world_size: int
    """Ranks of the launch."""
    model: str
    """What was trained: workload and size, or the model's name."""
    dataset: str
    """Data set."""
    max_length: int
    """Longest sample, tokens."""
    batch_size: int
    """Samples of a step over all ranks."""
    strategy: str
    """How gradients meet."""
    policy: str
    """What its plans are called."""
    precision: str
    """Arithmetic."""
    link_gbps: float | None
    """Gb/s of the emulated link, of which then all its times are; empty where it was none."""
    compress_method: str
    """Compressor."""
    compress_config: str
    """Its options, as JSON."""
    seed: int
    """Seed."""
    steps: int
    """Measured steps."""
    step_time_ms_mean: float | None
    """A step lasts the maximum over ranks; mean over steps."""
    step_time_ms_p50: float | None
    """Median over steps."""
    step_time_ms_p90: float | None
    """90th percentile over steps."""
    step_time_ms_p95: float | None
    """95th percentile over steps."""
    tokens_per_s: float | None
    """Real tokens in a second."""
    comm_time_ms_total: float | None
    """Time in which a collective was under way, waiting for other ranks included."""
    comm_ratio: float | None
    """That time over the steps' time."""
    comm_time_ms_by_op: str
    """Sum over calls of the time each was under way, by operation, as JSON."""
    bytes_raw_total: float | None
    """What a rank would have sent of gradients as they are; of strategies that average gradients."""
    bytes_compressed_total: float | None
    """What it sent of them, indices, scales and norms among it."""
    bytes_wire_total: float | None
    """All that it sent, what is not gradients among it."""
    bytes_per_step_mean: float | None
    """The same of a step."""
    bytes_per_step_peak: float | None
    """Of the step that sent most."""
    compression_ratio: float | None
    """bytes_raw_total over bytes_compressed_total, without steps that are not compressed (compress.start_step)."""
    traffic_compression_ratio: float | None
    """The same of all traffic: what would have been sent over what was."""
    train_loss: float | None
    """Of the last step."""
    val_loss: float | None
    """Of the last evaluation."""
    val_ppl: float | None
    """Perplexity of the last evaluation; of language models."""
    compress_time_ms: float | None
    """Compressing, of a step."""
    decompress_time_ms: float | None
    """Decompressing and averaging, of a step."""
    extra_collectives: float | None
    """Collectives of a step beside those that carry what was compressed."""
    extra_collective_time_ms: float | None
    """Their time, of a step."""
    index_bytes: float | None
    """Of what a rank wrote in a step, what says which elements are sent."""
    index_share: float | None
    """Its share of what a rank wrote."""
    density: float | None
    """Elements sent over elements of what was compressed."""
    residual_norm: float | None
    """2-norm of what error feedback kept when it was last measured (compress.error_every)."""
    residual_mb: float | None
    """Most memory of the same."""
    grad_rel_error: float | None
    """2-norm of the mean gradient's difference from the uncompressed one, over its norm; mean of steps measured."""
    grad_rel_error_max: float | None
    """Largest difference of an element over the largest element; of all steps measured."""
    grad_cos_sim: float | None
    """Cosine of the angle between the two; mean of steps measured."""
    effective_bw_raw: float | None
    """What would have been sent uncompressed, over comm_time_ms_total, GB/s."""
    effective_bw_compressed: float | None
    """What was sent over the same, GB/s."""
    mem_peak_alloc_gb: float | None
    """Most memory of a rank: allocated on a GPU, resident on a CPU; 1e9 bytes."""
    mem_peak_reserved_gb: float | None
    """Most memory that its allocator held; likewise."""
    target_ppl: float | None
    """Perplexity asked for (analysis.target_perplexity)."""
    time_to_target_ppl_s: float | None
    """Time of the steps up to the first evaluation at or below it, warm-up among them; empty where none was."""
    steps_to_target_ppl: float | None
    """Steps up to it."""
    bytes_to_target_ppl: float | None
    """What a rank sent up to it."""
    time_budget_s: float | None
    """Training time asked about (analysis.time_budget_s)."""
    ppl_at_fixed_time: float | None
    """Perplexity of the last evaluation within it; empty where the run ended before."""
    step_ms_at_1_gbps: float | None
    """Step time predicted for a link of 1 Gb/s."""
    step_ms_at_10_gbps: float | None
    """The same of 10 Gb/s."""
    step_ms_at_25_gbps: float | None
    """The same of 25 Gb/s."""
    step_ms_at_100_gbps: float | None
    """The same of 100 Gb/s."""
    step_ms_at_400_gbps: float | None
    """The same of 400 Gb/s."""
    nan_steps: int
    """Steps with a loss or norm of the gradient that is no finite number, or left out by the loss scaler."""
    clipped_steps: int | None
    """Steps whose gradient was scaled down to train.max_grad_norm."""


def result_line(merged: MergedRun, summary: Mapping[str, object]) -> ResultLine:
    """The line of a run.

    Args:
        merged: the run.
        summary: of it.
    """
    config, steps = merged.facts.config, merged.measured

    def total(name: str) -> float | None:
        return float(steps[name].sum()) if name in steps.columns and steps.height else None

    def of(key: str) -> float | None:
        return lookup(summary, key)

    def per_time(amount: float | None) -> float | None:
        ms = total("comm_ms")
        return amount / ms / 1e6 if amount is not None and ms else None

    raw, sent = (total(name) for name in GRADIENT_BYTES)
    wire = total("bytes_wire")
    as_they_are = wire - sent + raw if wire is not None and raw is not None and sent is not None else None
    compression = ("compress_ms", "decompress_ms", "extra_collectives", "extra_collective_ms")
    timed = [of(f"compression.{name}") for name in compression]
    memory = [of(f"{name}.max") for name in ("peak_mem_mb", "reserved_mem_mb")]
    peak, reserved = (None if found is None else found / 1e3 for found in memory)
    return ResultLine(
        run_name=merged.label,
        world_size=merged.world_size,
        model=_model(config),
        dataset=config.workload.dataset,
        max_length=config.workload.max_length,
        batch_size=config.train.global_batch,
        strategy=config.sync.name,
        policy=merged.facts.plan_name,
        precision=config.train.precision,
        link_gbps=merged.facts.link_gbps,
        compress_method=config.compress.name,
        compress_config=json.dumps(_options(config)),
        seed=config.train.seed,
        steps=steps.height,
        step_time_ms_mean=of("step_time_ms.mean"),
        step_time_ms_p50=of("step_time_ms.p50"),
        step_time_ms_p90=of("step_time_ms.p90"),
        step_time_ms_p95=of("step_time_ms.p95"),
        tokens_per_s=of("throughput_tokens_per_s.mean"),
        comm_time_ms_total=total("comm_ms"),
        comm_ratio=of("comm_ratio"),
        comm_time_ms_by_op=json.dumps(_by_operation(summary, steps.height)),
        bytes_raw_total=raw,
        bytes_compressed_total=sent,
        bytes_wire_total=wire,
        bytes_per_step_mean=of("bytes_wire.mean"),
        bytes_per_step_peak=_peak(steps),
        compression_ratio=of("compression_ratio"),
        traffic_compression_ratio=of("traffic_compression_ratio"),
        train_loss=of("loss.last"),
        val_loss=of("eval.loss"),
        val_ppl=of("eval.perplexity"),
        compress_time_ms=timed[0],
        decompress_time_ms=timed[1],
        extra_collectives=timed[2],
        extra_collective_time_ms=timed[3],
        index_bytes=of("compression.index_bytes"),
        index_share=of("compression.index_share"),
        density=of("compression.density"),
        residual_norm=of("compression.residual_norm"),
        residual_mb=of("compression.residual_mb"),
        grad_rel_error=of("compression.grad_rel_error"),
        grad_rel_error_max=of("compression.grad_rel_error_max"),
        grad_cos_sim=of("compression.grad_cos_sim"),
        effective_bw_raw=per_time(as_they_are),
        effective_bw_compressed=per_time(wire),
        mem_peak_alloc_gb=peak,
        mem_peak_reserved_gb=reserved,
        target_ppl=of("targets.target_perplexity"),
        time_to_target_ppl_s=of("targets.time_to_target_s"),
        steps_to_target_ppl=of("targets.steps_to_target"),
        bytes_to_target_ppl=of("targets.bytes_to_target"),
        time_budget_s=of("targets.time_budget_s"),
        ppl_at_fixed_time=of("targets.perplexity_at_budget"),
        **{f"step_ms_at_{speed}_gbps": of(f"links.predicted_ms.{speed}") for speed in SPEEDS_GBPS},
        nan_steps=int(of("nan_steps") or 0),
        clipped_steps=None if (clipped := of("clipped_steps")) is None else int(clipped),
    )


def results_csv(summaries: Sequence[Mapping[str, object]]) -> str:
    """The lines of the summaries' runs, under the names of the columns."""
    names = [field.name for field in fields(ResultLine)]
    lines = [summary["record"] for summary in summaries]
    return pl.DataFrame(lines, schema=names, infer_schema_length=None, strict=False).write_csv()


def _model(config: Config) -> str:
    workload = config.workload
    return workload.model if workload.reads_model else f"{workload.name}/{workload.shape}"


def _options(config: Config) -> dict[str, object]:
    entry = COMPRESSORS.get(config.compress.name)
    told = config.compress.model_dump(mode="json")
    return told if entry is None else {name: told[name] for name in entry.options.model_fields}


def _by_operation(summary: Mapping[str, object], steps: int) -> dict[str, float]:
    found = summary.get("by_operation")
    rows = found if isinstance(found, list) else []
    return {row["operation"]: row["ms"] * steps for row in rows if row["side"] == "worker"}


def _peak(steps: pl.DataFrame) -> float | None:
    if "bytes_wire" not in steps.columns or not steps.height:
        return None
    return float(steps["bytes_wire"].to_numpy().max())
