"""The measures of a run: what its summary holds, in the order of tables, each declared once (see `measure`).

Adding one: a field in the class of its subject, and its title and heading in `report/labels.zh.yaml` where people meet
it in tables.

`METRICS` are the numbers that people read and compare, as these declare them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any, TypedDict, cast

import polars as pl

from dynbench.analysis.communication import COMMUNICATION, BesideNull, Communication, Compression, compression_of
from dynbench.analysis.evaluations import QUALITY, Epochs, Evaluation, Targets, epochs_of, evaluation_of, targets_of
from dynbench.analysis.links import Links
from dynbench.analysis.measure import (
    Mean,
    Measured,
    Metric,
    Spread,
    Summaries,
    known_values,
    lookup,
    mean,
    mean_of,
    mean_over,
    measure,
    measures_of,
    metrics_of,
    number,
    of_step,
    ratio,
    shown,
    spread,
)
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pace import Proxy, SlowestRanks, proxy_error, slowest_ranks
from dynbench.analysis.profile import Profile, profile_of
from dynbench.analysis.run_facts import fact, oversubscribed
from dynbench.analysis.waste import Waste, waste_of
from dynbench.config.ranks import parameter_copies, ranks_of
from dynbench.runs.phrase import PhraseRecord

MEMORY = "memory"
"""Title of the family of metrics."""
MOMENTS = ("initialised", "before_step", "after_step")


class Held(TypedDict):
    """What was held at a moment, by kind."""

    parameters_mb: float | None
    """Parameters, this rank's part of those that are divided."""
    gradients_mb: float | None
    """Their gradients."""
    optimizer_mb: float | None
    """What the optimizer keeps."""
    strategy_mb: float | None
    """What the strategy holds besides."""
    peak_mb: float | None
    """Peak memory of the process or device up to there; null where it cannot be told apart from that of other arms."""


class MemoryParts(TypedDict):
    """Means over the ranks that train, in their first step."""

    initialised: Held
    """With model, strategy and optimizer made."""
    before_step: Held
    """With gradients synchronised."""
    after_step: Held
    """Behind the optimizer's step."""
    activations_mb: float | None
    """What autograd saved for the backward pass of the largest micro-batch, parameters left out."""
    model_mb: float | None
    """All parameters that are trained, whole."""
    formula_mb: float | None
    """What the registry of strategies says is held between steps, gradients included."""


def memory_parts(merged: MergedRun) -> MemoryParts | None:
    """The `memory_parts` object of a summary; None where nothing was counted."""
    facts = merged.facts
    counted = facts.env.get("memory_parts")
    ranks = [rank for rank in counted if rank["rank"] >= facts.servers] if isinstance(counted, list) else []
    if not ranks:
        return None
    kinds = Held.__annotations__
    parts = {moment: {kind: mean_over(ranks, f"{moment}.{kind}") for kind in kinds} for moment in MOMENTS}
    whole = mean_over(ranks, "whole_mb")
    copies = parameter_copies(facts.config, ranks_of(facts.config, merged.world_size))
    formula = None if whole is None else copies * whole
    beside = {"activations_mb": mean_over(ranks, "activations_mb"), "model_mb": whole, "formula_mb": formula}
    return cast(MemoryParts, {**parts, **beside})


def largest(merged: MergedRun, side: str, column: str) -> float | None:
    """Of a column over a side's ranks and measured steps; None where there are none, or it is not known."""
    peak = merged.measured_rows(side).select(pl.col(column).max()).collect().item()
    return None if peak is None else float(peak)


class MemoryOverRanks:
    """Spread of what ranks hold."""

    peak_mem_mb: Spread = spread(
        "peak_mem_mb",
        "peak memory",
        "MB",
        shown(MEMORY, "spread, mean", "", place=1),
        shown(MEMORY, "spread, P95", "", place=1),
    )
    """Of `peak_mem_mb`."""


class PeakMemory:
    """Allocated on a GPU, resident on a CPU."""

    max: float | None = measure(
        lambda at: number(at.steps["peak_mem_mb_max"].max()),
        shown(MEMORY, "peak memory", "peak memory, maximum over ranks and steps", "MB"),
    )
    """Over the ranks that train and steps."""
    servers_max: float | None = measure(
        lambda at: largest(at.run, "servers", "peak_mem_mb"),
        shown(MEMORY, "of servers", "peak memory of servers, maximum over steps", "MB"),
    )
    """Over those that serve them; null where none do."""


class ReservedMemory:
    """Held by the allocator on a GPU, resident on a CPU."""

    max: float | None = measure(lambda at: largest(at.run, "workers", "reserved_mem_mb"))
    """Over the ranks that train and steps."""


class Memory:
    """What ranks hold."""

    std_over_ranks: MemoryOverRanks
    """Standard deviation over ranks within a step."""
    peak_mem_mb: PeakMemory
    """Peak memory."""
    reserved_mem_mb: ReservedMemory
    """Memory that a rank's allocator held."""
    memory_parts: MemoryParts | None = measure(lambda at: memory_parts(at.run))
    """What a rank held of the model in its first step; null without `train.memory_parts`."""


TIME, WAITING = "step time", "waiting and padding"
STEP = "step_time_max_ms"
SPREAD_MEAN, SPREAD_P95 = "spread over ranks, mean", "spread over ranks, P95"


def _said(at: Measured) -> PhraseRecord | None:
    return at.facts.comm_model.record() if at.facts.comm_model is not None else None


class Facts:
    """What the run was, and how much of it there is."""

    policy: str = measure(lambda at: at.facts.policy)
    """Name of the policy."""
    layout: str = measure(lambda at: at.config.workload.layout)
    """Of its micro-batches, padded, packed or flattened."""
    mode: str = measure(lambda at: at.config.schedule.mode)
    """static or dynamic."""
    launcher: str = measure(lambda at: at.config.launch.launcher)
    """torchrun or virtual."""
    comm_model: str | None = measure(lambda at: at.facts.comm_model)
    """What communication was taken to cost; null for real ranks."""
    comm_model_said: PhraseRecord | None = measure(_said)
    """The same as a phrase."""
    link_gbps: float | None = measure(lambda at: at.facts.link_gbps, unit="Gb/s")
    """Speed of the emulated link over which it sent (`launch.link_gbps`), of which then all its times are; null where
    there was none."""
    world_size: int = measure(lambda at: at.run.world_size)
    """Ranks of the launch."""
    workers: int = measure(lambda at: at.run.workers)
    """Ranks that train (G); the others serve them."""
    oversubscribed: bool | None = measure(lambda at: oversubscribed(at.facts))
    """Whether the computing threads of a node's ranks are more than its cores; null of devices, and where the cores are
    not known."""
    global_batch: int = measure(lambda at: at.config.train.global_batch)
    """Samples of a step over all ranks, as configured (B)."""
    steps: int = measure(lambda at: at.steps.height)
    """Complete measured steps."""
    warmup_steps: int = measure(lambda at: at.run.steps.height - at.steps.height - at.run.settling)
    """Complete warm-up steps."""
    rows: int = measure(lambda at: at.run.rows, unit="rows")
    """Rows of all ranks, warm-up included."""
    partial: bool = measure(lambda at: at.run.partial)
    """Whether something of the run is missing."""
    missing: list[str] = measure(lambda at: list(at.run.lacks))
    """What is missing."""
    samples: int = measure(lambda at: at.count("global_batch"))
    """Of all measured steps."""
    real_tokens: int = measure(lambda at: at.count("real_tokens"))
    """Of all measured steps, without padding."""
    skipped_steps: int = measure(lambda at: at.count("skipped"))
    """Steps whose optimizer step the loss scaler skipped."""


class StepTime:
    """Over measured steps."""

    mean: float | None = measure(lambda at: at.mean(STEP), of_step(TIME, "mean", "step time, mean"))
    """Mean over steps."""
    p50: float | None = measure(lambda at: at.percentile(STEP, 50), of_step(TIME, "P50", "step time, P50"))
    """Median over steps."""
    p90: float | None = measure(lambda at: at.percentile(STEP, 90))
    """90th percentile over steps."""
    p95: float | None = measure(lambda at: at.percentile(STEP, 95), of_step(TIME, "P95", "step time, P95"))
    """95th percentile over steps."""
    total: float | None = measure(lambda at: at.time_ms)
    """The run's time, per contiguous block of steps the maximum over ranks."""


class Phases:
    """Means over ranks and steps."""

    compute: float | None = measure(lambda at: at.mean("compute_ms_mean"))
    """Forward and backward."""
    wait: float | None = measure(lambda at: at.mean("wait_ms_mean"))
    """Waiting for the slowest rank."""
    exposed_comm: float | None = measure(lambda at: at.mean("exposed_comm_ms_mean"))
    """Communication that no computing hides."""
    plan: float | None = measure(lambda at: at.mean("plan_ms_mean"))
    """Making plans."""
    data: float | None = measure(lambda at: at.mean("data_ms_mean"))
    """Making batches."""
    optimizer: float | None = measure(lambda at: at.mean("optimizer_ms_mean"))
    """The optimizer."""
    other: float | None = measure(lambda at: at.mean("other_ms_mean"))
    """What none of these accounts for."""


class Rate(TypedDict):
    """Amount over time."""

    mean: float | None
    """Ratio of totals."""
    p95: float | None
    """95th percentile of the steps' own."""


def _rate(amount: str, per_step: str, family: str, unit: str) -> Rate:
    def compute(at: Measured) -> Rate:
        if amount == "real_tokens" and not at.has_lengths:
            return Rate(mean=None, p95=None)
        return Rate(mean=at.rate(amount), p95=at.percentile(per_step, 95))

    mean = shown(family, "mean", "throughput", unit, ".mean", better="more")
    p95 = shown(family, "P95 over steps", "throughput, P95 over steps", unit, ".p95", better="more")
    return measure(compute, mean, p95)


def _per_step(heading: str) -> tuple[Metric, Metric]:
    return of_step(SPREAD_MEAN, heading, ""), of_step(SPREAD_P95, heading, "")


class OverRanks:
    """Of the measured steps."""

    compute_ms: Spread = spread("compute_ms", "compute", "ms", *_per_step("compute"))
    """Of `compute_ms` of the ranks' rows."""
    step_time_ms: Spread = spread("step_time_ms", "step time", "ms", *_per_step("step time"))
    """Of `step_time_ms`."""
    padded_tokens: Spread = spread("padded_tokens", "padded tokens", "tokens", *_per_step("padded"))
    """Of `padded_tokens`."""
    local_batch: Spread = spread("local_batch", "samples", "samples", shown(SPREAD_MEAN, "batch", "", better=None))
    """Of `local_batch`."""


class PaddedTokens:
    """Over measured steps."""

    mean: float | None = measure(
        lambda at: at.mean("padded_tokens_max") if at.has_lengths else None,
        of_step(WAITING, "most padded", "padded tokens, maximum over ranks", "tokens"),
    )
    """Mean over steps."""
    total: float | None = measure(lambda at: at.total("padded_tokens_max") if at.has_lengths else None, unit="tokens")
    """Sum over steps."""


def _lengths(at: Measured, statistic: str, **options: Any) -> float | None:
    lengths = at.steps["real_tokens"] / at.steps["global_batch"]
    return number(getattr(lengths, statistic)(**options)) if at.has_lengths else None


class StepLength:
    """Over measured steps."""

    mean: float | None = measure(lambda at: _lengths(at, "mean"))
    """Mean over steps."""
    std: float | None = measure(
        lambda at: _lengths(at, "std", ddof=0),
        shown(WAITING, "length spread", "spread over steps of the mean length", "tokens", better=None),
    )
    """Standard deviation over steps; random batches differ a little."""


class Time:
    """Where time goes, and what it is spent on."""

    step_time_ms: StepTime
    """Time of a step, the maximum over ranks."""
    time_ms: Phases
    """Where a step's time goes."""
    throughput_samples_per_s: Rate = _rate(
        "global_batch", "throughput_samples_per_s", "throughput in samples", "samples/s"
    )
    """Samples over time."""
    throughput_tokens_per_s: Rate = _rate(
        "real_tokens", "throughput_tokens_per_s", "throughput in real tokens", "real tokens/s"
    )
    """Real tokens over time."""
    wait_fraction: float | None = measure(
        lambda at: at.share("wait_ms_mean"), shown(WAITING, "waiting", "waiting for the slowest rank", "%")
    )
    """Waiting for the slowest rank over the run's time."""
    waste: Waste = measure(lambda at: waste_of(at.run))
    """Where the step time goes that is no needed work."""
    padding_ratio: float | None = measure(
        lambda at: ratio(at.total("padded_tokens"), at.total("real_tokens")) if at.has_lengths else None,
        shown(WAITING, "padding", "padding, padded over real tokens"),
    )
    """Padded over real tokens."""
    padded_tokens_max: PaddedTokens
    """Padded tokens of the rank that has most of them in a step."""
    exposed_comm_ms: Mean = mean_of("exposed_comm_ms", of_step(COMMUNICATION, "exposed comm.", "exposed communication"))
    """Communication that no computing hides."""


class Balance:
    """How alike steps and ranks are."""

    plan_fraction: float | None = measure(
        lambda at: at.share("plan_ms_mean"), shown(COMMUNICATION, "planning", "planning", "%", better=None, place=1)
    )
    """Planning over the run's time."""
    std_over_ranks: OverRanks
    """Standard deviation over ranks within a step."""
    step_length_tokens: StepLength
    """Mean length of a step's samples."""
    slowest_ranks: SlowestRanks | None = measure(lambda at: slowest_ranks(at.run))
    """Who the steps wait for; null for a single worker."""
    proxy: Proxy = measure(lambda at: proxy_error(at.run))
    """How well a cost stood for measured time."""


def _of_loss(at: Measured, index: int) -> float | None:
    return number(at.steps["loss_global"][index]) if at.steps.height and at.facts.trains else None


class Loss:
    """Over all ranks' samples."""

    first: float | None = measure(lambda at: _of_loss(at, 0))
    """Of the first measured step."""
    last: float | None = measure(
        lambda at: _of_loss(at, -1),
        shown(QUALITY, "training loss", "training loss, last step", better=None),  # arms may end on different samples
    )
    """Of the last measured step."""


class Quality:
    """What training came to, and what compression did to it."""

    compression: Compression | None = measure(lambda at: compression_of(at.run))
    """What compression did; null of runs that compress nothing."""
    loss: Loss
    """Training loss."""
    eval: Evaluation | None = measure(
        lambda at: evaluation_of(at.run.evaluations, fact(at.facts.env, "data.unigram_perplexity"))
    )
    """The last evaluation; null where there was none."""
    epochs: Epochs | None = measure(lambda at: epochs_of(at.run))
    """What came of each epoch; null where `train.epochs` is not set."""
    targets: Targets | None = measure(lambda at: targets_of(at.run))
    """What the run took to a perplexity, and how far it came in a time; null where neither is asked for."""
    nan_steps: int = measure(
        lambda at: at.steps.filter(~pl.col("finite") | pl.col("skipped")).height, column="nan_steps"
    )
    """Steps with a loss, or norm of the gradient, that is no finite number, or left out by the loss scaler."""
    clipped_steps: int | None = measure(
        lambda at: at.count("clipped") if "clipped" in at.steps.columns else None, column="clipped_steps"
    )
    """Steps whose gradient was scaled down to `train.max_grad_norm`; null without one."""


class Explained:
    """What follows from the others, and from profiles."""

    links: Links
    """Steps over links of other speeds."""
    profile: Profile | None = measure(lambda at: profile_of(at.run))
    """What the time of profiled steps went to; null without `train.profile_steps`."""


SUBJECTS = (Facts, Time, BesideNull, Balance, Memory, Communication, Quality, Explained)
MEASURES = tuple(each for declaring in SUBJECTS for each in measures_of(declaring))
"""In the order of rows of tables."""


METRICS = tuple(metrics_of(MEASURES))
_OF_TIME = ("ms", "s", "samples/s", "real tokens/s")
"""Units of times and rates."""


def workers_of(summary: Mapping[str, object]) -> int | None:
    """Ranks that train (G), by a run's summary; where it does not say, all of them do."""
    found = lookup(summary, "workers") or lookup(summary, "world_size")
    return None if found is None else int(found)


def chosen_metrics(keys: Sequence[str]) -> Sequence[Metric]:
    """The metrics of the keys, in their order; all for none."""
    by_key = {metric.key: metric for metric in METRICS}
    return [by_key[key] for key in keys] or METRICS


def by_family(metrics: Sequence[Metric]) -> dict[str, list[Metric]]:
    """The metrics by name of their family, in the order of families."""
    found: dict[str, list[Metric]] = {metric.family: [] for metric in METRICS}
    for metric in sorted(METRICS, key=lambda metric: metric.place):
        found[metric.family] += [metric] if metric in metrics else []
    return {name: members for name, members in found.items() if members}


def means(summaries: Summaries) -> dict[str, float]:
    """Mean over summaries of every metric that all of them have, by metric key."""
    return {metric.key: value for metric in METRICS if (value := mean_over(summaries, metric.key)) is not None}


def improvement_percent(metric: Metric, baseline: float | None, candidate: float | None) -> float | None:
    """By how many percent the candidate is better: reduction where less is better, increase where more is.

    None where there is nothing to compare or to divide by, as after a loss that became NaN.
    """
    if baseline is None or candidate is None or metric.better is None or baseline == 0:
        return None
    if not (math.isfinite(baseline) and math.isfinite(candidate)):
        return None
    change = 100 * (candidate / baseline - 1)
    return -change if metric.better == "less" else change


def improvements(before: Summaries, after: Summaries, *, leak: bool = False) -> dict[str, float]:
    """Improvement in percent of every metric that both arms have, by metric key.

    Of times and rates it is the geometric mean of the pairs' ratios, as the speed-up is, so that twice the time is half
    the rate however much launches differ; of all else, and where one of them is zero, the ratio of the means.

    Args:
        before: summaries of the baseline's launches.
        after: those of the candidate's, which are paired with these.
        leak: the arms train different things, as samples of a row see each other in one of them.
    """
    unlike = {"step": not equal_batches(before, after), "model": leak}
    comparable = [metric for metric in METRICS if metric.of is None or not unlike[metric.of]]
    found = {}
    for metric in comparable:
        old, new = known_values(before, metric.key), known_values(after, metric.key)
        if not old or not new or len(old) < len(before) or len(new) < len(after):
            continue
        if metric.unit in _OF_TIME and all(value > 0 for value in (*old, *new)):
            gain = improvement_percent(metric, geometric_mean(old), geometric_mean(new))
        else:
            gain = improvement_percent(metric, mean(metric.key, old), mean(metric.key, new))
        if gain is not None:
            found[metric.key] = gain
    return found


def equal_batches(*arms: Summaries) -> bool:
    """Whether the steps of all launches have one global batch, as far as their summaries say."""
    return len({lookup(summary, "global_batch") for arm in arms for summary in arm}) <= 1
