"""The metrics of a report's arms as Markdown: a few arms as columns, many as rows under an overview."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.analysis.metrics import METRICS, Metric, chosen_metrics
from dynbench.analysis.overview import SIDE_BY_SIDE, by_arm, overview
from dynbench.analysis.tables import format_gain, format_value
from dynbench.analysis.timed import timed_table
from dynbench.experiment.subject import Subject, mean_of, whole
from dynbench.report import Template, table


def overview_table(subject: Subject, template: Template) -> str:
    """An arm a row, with its verdict and the metrics that the question is about; empty for a few arms."""
    if len(subject.arms) <= SIDE_BY_SIDE:
        return ""
    shown = overview(_values(subject), subject.comparisons, subject.question, template.label, details=False)
    return shown.markdown(whole=True)


def communication_table(subject: Subject, template: Template) -> str:
    """What is timed of communication, on both sides where some ranks serve; empty where nothing is of its own."""
    launches = {name: [member.summary for member in whole(members)] for name, members in subject.arms.items()}
    found = timed_table(launches, template.label)
    return found.markdown(whole=True) if found else ""


def metrics_table(subject: Subject, template: Template) -> str:
    """One line per metric: the mean over each arm's launches, then every candidate's improvement in percent.

    Of many arms a table per family of metrics, one line per arm.
    """
    gains = {item.candidate: item.improvement_percent for item in subject.comparisons}
    metrics = chosen_metrics(subject.question.metrics)
    if len(subject.arms) > SIDE_BY_SIDE:
        families = by_arm(_values(subject), gains, metrics, template.label)
        return "\n\n".join(family.markdown(whole=True) for family in families)
    headings = [
        template.label("headings.metric"),
        *subject.arms,
        *(template.label("headings.improvement").replace("…", name) for name in gains),
    ]
    rows = []
    for metric in metrics:
        means = [mean_of(arm, metric.key) for arm in subject.arms.values()]
        if any(mean is not None for mean in means):
            values = [format_value(mean, metric.unit) for mean in means]
            better = (format_gain(gain.get(metric.key)) for gain in gains.values())
            rows.append([_title(metric, template), *values, *better])
    return table(headings, rows)


def _values(subject: Subject) -> Mapping[str, Mapping[str, object]]:
    return {
        name: {metric.key: mean_of(members, metric.key) for metric in METRICS} for name, members in subject.arms.items()
    }


def _title(metric: Metric, template: Template) -> str:
    unit = f" ({template.label(f'units.{metric.unit}', metric.unit)})" if metric.unit not in ("", "%") else ""
    return template.label(f"metrics.{metric.key}", metric.title) + unit
