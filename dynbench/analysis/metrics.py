"""The metrics of a summary that people read and compare: where they stand, how they are called, which way is better.

Adding one: a key in `summary.summary_of` and one line here; tables, comparisons and reports pick it up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of a table.

    Attributes:
        key: dotted path in the summary.
        title: what a person reads.
        unit: unit, empty for pure numbers; `%` shows a fraction as percent.
        better: the direction that counts as an improvement, None where there is none.
    """

    key: str
    title: str
    unit: str
    better: Literal["less", "more"] | None = "less"


METRICS: tuple[Metric, ...] = (
    Metric("step_time_ms.mean", "step time, mean", "ms"),
    Metric("step_time_ms.p50", "step time, P50", "ms"),
    Metric("step_time_ms.p95", "step time, P95", "ms"),
    Metric("throughput_samples_per_s.mean", "throughput", "samples/s", "more"),
    Metric("throughput_samples_per_s.p95", "throughput, P95 over steps", "samples/s", "more"),
    Metric("throughput_tokens_per_s.mean", "throughput", "real tokens/s", "more"),
    Metric("throughput_tokens_per_s.p95", "throughput, P95 over steps", "real tokens/s", "more"),
    Metric("wait_fraction", "waiting for the slowest rank", "%"),
    Metric("padding_ratio", "padding, padded over real tokens", ""),
    Metric("padded_tokens_max.mean", "padded tokens, maximum over ranks", "tokens"),
    Metric("exposed_comm_ms.mean", "exposed communication", "ms"),
    Metric("plan_fraction", "planning", "%", None),
    Metric("std_over_ranks.compute_ms.mean", "spread over ranks of compute, mean", "ms"),
    Metric("std_over_ranks.compute_ms.p95", "spread over ranks of compute, P95", "ms"),
    Metric("std_over_ranks.step_time_ms.mean", "spread over ranks of step time, mean", "ms"),
    Metric("std_over_ranks.step_time_ms.p95", "spread over ranks of step time, P95", "ms"),
    Metric("std_over_ranks.padded_tokens.mean", "spread over ranks of padded tokens, mean", "tokens"),
    Metric("std_over_ranks.padded_tokens.p95", "spread over ranks of padded tokens, P95", "tokens"),
    Metric("std_over_ranks.local_batch.mean", "spread over ranks of samples, mean", "samples", None),
    Metric("step_length_tokens.std", "spread over steps of the mean length", "tokens", None),
    Metric("std_over_ranks.peak_mem_mb.mean", "spread over ranks of peak memory, mean", "MB"),
    Metric("std_over_ranks.peak_mem_mb.p95", "spread over ranks of peak memory, P95", "MB"),
    Metric("peak_mem_mb.max", "peak memory, maximum over ranks and steps", "MB"),
    Metric("comm_ms.mean", "communication", "ms"),
    Metric("bytes_wire.mean", "sent per rank and step", "bytes"),
    Metric("compression_ratio", "compression", "", "more"),
    Metric("loss.last", "training loss, last step", "", None),  # arms may end on different samples
    Metric("eval.loss", "evaluation loss", ""),
    Metric("eval.accuracy", "evaluation accuracy", "%", "more"),
    Metric("eval.perplexity", "evaluation perplexity", ""),
)


def workers_of(summary: Mapping[str, object]) -> int | None:
    """Ranks that train (G), by a run's summary; where it does not say, all of them do."""
    found = lookup(summary, "workers") or lookup(summary, "world_size")
    return None if found is None else int(found)


def chosen_metrics(keys: Sequence[str]) -> Sequence[Metric]:
    """The metrics of the keys, in their order; all for none."""
    by_key = {metric.key: metric for metric in METRICS}
    return [by_key[key] for key in keys] or METRICS


def lookup(summary: Mapping[str, object], key: str) -> float | None:
    """The number at a dotted path of a summary, or under the path as a key; None where the summary has none."""
    value: object = summary
    if key in summary:
        return _number(summary[key])
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return _number(value)


def means(summaries: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Mean over summaries of every metric that all of them have, by metric key."""
    found = {}
    for metric in METRICS:
        values = [value for summary in summaries if (value := lookup(summary, metric.key)) is not None]
        if summaries and len(values) == len(summaries):
            found[metric.key] = sum(values) / len(values)
    return found


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


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
