"""The metrics of a summary that people read and compare, as `measures` declares them, and what compares them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from dynbench.analysis.measure import Metric, Summaries, known_values, lookup, mean, mean_over, metrics_of
from dynbench.analysis.measures import MEASURES

METRICS = tuple(metrics_of(MEASURES))
FAMILIES: Mapping[str, Mapping[str, str]] = {
    family: {
        metric.key: metric.heading
        for metric in sorted(METRICS, key=lambda metric: metric.place)
        if metric.family == family
    }
    for family in dict.fromkeys(metric.family for metric in METRICS)
}
"""Name of the family to key of the metric to its heading as a column."""
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
    chosen = {metric.key: metric for metric in metrics}
    found = {name: [chosen[key] for key in keys if key in chosen] for name, keys in FAMILIES.items()}
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
    told = [metric for metric in METRICS if metric.of is None or not unlike[metric.of]]
    found = {}
    for metric in told:
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
