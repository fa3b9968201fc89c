"""The tables of a report, in the template's language: those of the analysis, and those that only reports have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import fmean, stdev

from dynbench.analysis import tables as comparison_tables
from dynbench.analysis.links import ONE, PARAMETER
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import METRICS, chosen_metrics
from dynbench.analysis.record import ScalingRecord
from dynbench.analysis.table_specs import TABLES
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.offline_plans import Solved, float_of, static_over
from dynbench.experiment.report_conclusions import never_compressed, qualities, trained
from dynbench.experiment.report_facts import STEPS, buckets_of, served_arms
from dynbench.experiment.report_input import (
    Json,
    ReportInput,
    finding_texts,
    loss_difference,
    loss_drift,
    marked,
    mean_of,
    saved_hours,
    status,
)
from dynbench.experiment.report_settings import arms_rows, common_rows, cost_of, settings
from dynbench.report import Template, interval, number, percent, ratio, signed_interval, signed_percent
from dynbench.runs.phrase import NBSP
from dynbench.schedule.solve import cost_is_estimated
from dynbench.table_text import Markdown, Table, format_value
from dynbench.units import format_ms

NOT_MEASURED, MISSING = "words.not_measured", "words.missing"
NONE = "words.none"
SIZE = ("world_size", "global_batch")
ABOUT = ("", f"≈{NBSP}")
"""Before a number that is none, or is an estimate."""


Rows = Iterable[Mapping[str, str | None]]
"""Key of a heading in the template, or after `=` the heading itself, to the cell; None is empty."""


@dataclass(frozen=True)
class Sources:
    """Everything a report is filled from.

    Attributes:
        subject: the comparison or run.
        solved: what was planned offline for it, None where nothing was.
        template: its texts.
        folder: figures are linked relative to it.
    """

    subject: ReportInput
    solved: Solved | None
    template: Template
    folder: Path


def report_tables(sources: Sources) -> dict[str, str]:
    """Placeholder of every table to its Markdown; empty where it has nothing to say."""
    subject, label = sources.subject, sources.template.label
    values = {
        name: {metric.key: mean_of(members, metric.key) for metric in METRICS} for name, members in subject.arms.items()
    }
    gains = {item.candidate: item.improvement_percent for item in subject.comparisons}
    found = {
        **{name: spec.table(subject.launches, label) for name, spec in TABLES.items()},
        "scaling": comparison_tables.SCALING.table(subject.scaling, label),
        "pairs": replace(comparison_tables.RANKING, title="").table(subject.pairs, label),
    }
    if len(subject.arms) > comparison_tables.SIDE_BY_SIDE:
        about = values, subject.comparisons, subject.question, label
        found["overview"] = comparison_tables.overview(*about, details=False)
    metrics = comparison_tables.metric_tables(values, gains, chosen_metrics(subject.question.metrics), label)
    return {
        "table.overview": "",
        **{f"table.{name}": table.markdown(whole=True) if table else "" for name, table in found.items()},
        "table.metrics": Markdown("\n\n".join(table.markdown(whole=True) for table in metrics)),
        **{f"table.{name}": _markdown(sources, *spec) for name, spec in REPORT_TABLES.items()},
    }


def _markdown(sources: Sources, rows: Callable[[Sources], Rows], left: int | None, missing: str) -> str:
    """A table whose headings the template has, empty without rows; `missing` is the label of cells that are None."""
    lines, label = list(rows(sources)), sources.template.label
    headings = [
        key[1:] if key[0] == "=" else label(f"headings.{key}", label(f"server.{key}", key))
        for key in (lines[0] if lines else ())
    ]
    nothing = label(missing) if missing else ""
    cells = [[nothing if cell is None else cell for cell in line.values()] for line in lines]
    return Table(headings, cells, texts=left).markdown() if lines else ""


def _setting_rows(sources: Sources) -> Rows:
    for label, text in settings(sources.subject, sources.template).items():
        yield {"item": sources.template.label(f"settings.{label}"), "value": text}


def _comparisons(sources: Sources) -> Rows:
    """What the first page lacks of a candidate: its launches, its loss, and what the question wants to know of it."""
    subject, label = sources.subject, sources.template.label
    drifts = subject.question.loss_drift is not None
    loss, of_loss = ("loss_drift", loss_drift) if drifts else ("loss_parity", loss_difference)
    for item in subject.comparisons:
        chosen = {
            "recovered": percent(item.recovered_share),
            "saved": saved_hours(item, subject) or "",
            "efficiency": percent(item.efficiency),
        }
        yield {
            "comparison": f"{item.candidate} / {item.baseline}",
            "verdict": label(f"verdicts.{item.verdict}"),
            **{key: chosen[key] for key in subject.question.columns},
            "launches": f"{item.launches}",
            loss: of_loss(item) or label("words.not_compared"),
        }


def _verdicts(sources: Sources) -> Rows:
    """One line per candidate for the first page: verdict, speed, and what it costs in loss and, where known, memory."""
    subject, label = sources.subject, sources.template.label
    measure, arms = qualities(subject)
    evaluated = any(arm.change for arm in arms.values())
    drifts = subject.question.loss_drift is not None
    gains = {item.candidate: item.improvement_percent.get("peak_mem_mb.max") for item in subject.comparisons}
    for item in subject.comparisons:
        if evaluated:
            loss = signed_interval(arms[item.candidate].change)
        else:
            loss = loss_drift(item) if drifts else loss_difference(item)
        gain = gains[item.candidate]
        memory = {"memory_change": None if gain is None else signed_percent(-gain / 100)}
        yield {
            "=" + label("headings.verdict_arm").format(f"`{item.baseline}`"): item.candidate,
            "verdict": label(f"verdicts.{item.verdict}"),
            "speedup": ratio(item.speedup),
            "interval": interval(item.interval) or label(NONE),
            "level": label(NONE if item.verdict is Verdict.INCOMPARABLE else f"levels.{item.level}"),
            f"eval_{measure}" if evaluated else "loss_drift" if drifts else "loss_parity": loss
            or label("words.not_compared"),
            **(memory if any(value is not None for value in gains.values()) else {}),
        }


def _checks(sources: Sources) -> Rows:
    for check in sources.subject.checks or ():
        told = finding_texts(sources.template, check)
        yield dict(zip(("severity", "check", "seen", "limit", "hint"), told, strict=True))


def _runs(sources: Sources) -> Rows:
    for name, members in sources.subject.arms.items():
        for member in members:
            yield {
                "arm": name,
                "run": f"`{member.id}`",
                "seed": None if member.config is None else str(member.config.get("train.seed")),
                "status": None if member.status is None else status(sources.template, member.status),
            }


def _planned(line: Json, template: Template) -> tuple[str, dict[str, str]]:
    """The arm that a line stands for, none for a policy planned beside the arms, and its size."""
    return str(line.get("arm") or template.label(NONE)), {key: str(line.get(key)) for key in SIZE}


def _solve(sources: Sources) -> Rows:
    """The lines that were planned offline for a comparison."""
    solved, label = sources.solved or Solved(None), sources.template.label
    for line in solved.results:
        speed, estimated = static_over(solved, line, sources.subject.baseline)
        median_ms, exact = lookup(line, "plan_ms.p50"), str(line.get("exact") or "none")
        arm, size = _planned(line, sources.template)
        yield {
            "arm": arm,
            "cost": str(line.get("cost_type")),
            "policy": str(line.get("policy")),
            "exact": label(f"exactness.{exact}", exact),
            **size,
            "mean_max_cost": ABOUT[cost_is_estimated(line)] + format_value(lookup(line, "mean_max_cost"), ""),
            "gap_to_bound": percent(lookup(line, "gap_to_bound")),
            "speedup_vs_static": None if speed is None else f"{ABOUT[estimated]}{speed:.2f}",
            "plan_ms": None if median_ms is None else format_ms(median_ms).replace(" ", NBSP),
        }


def _greedy(sources: Sources) -> Rows:
    """Greedy and equal counts against the exact ones, for the lines of `prefix`."""

    def gap(line: Json, objective: str) -> str | None:
        mean, worst = (lookup(line, f"greedy_gap.{objective}.{key}") for key in ("mean", "max"))
        if mean is None or worst is None:
            return None
        return f"{100 * mean:.2f} / {100 * worst:.2f} %".replace(" ", NBSP)

    for line in sources.solved.results if sources.solved else ():
        if line.get("greedy_gap"):
            arm, size = _planned(line, sources.template)
            yield {
                "arm": arm,
                **size,
                "naive_max": gap(line, "naive_max_cost.equal_counts"),
                "greedy_max": gap(line, "max_cost"),
                "greedy_variance": gap(line, "variance"),
            }


def _buckets(sources: Sources) -> Rows:
    """The arms, where they differ in buckets."""
    subject, label = sources.subject, sources.template.label
    against = {item.candidate: item for item in subject.comparisons}
    for point in found.points if (found := buckets_of(subject)) else ():
        item, named = against.get(point.arm), point.size in (ONE, PARAMETER)
        yield {
            "arm": point.arm,
            "bucket_size": label(f"words.bucket_{point.size}") if named else f"{float(point.size):g}",
            "buckets": number(round(point.calls)),
            "step_ms": number(point.step_ms),
            "overhead_ms": number(point.overhead_ms),
            "exposed_ms": number(mean_of(subject.arms[point.arm], "exposed_comm_ms.mean")) or "",
            "speedup": ratio(item.speedup) if item else None,
            "interval": interval(item.interval) if item else None,
        }


def _quality(sources: Sources) -> Rows:
    """Each arm's perplexity or loss beside the baseline's, where the arms were evaluated."""
    subject, label = sources.subject, sources.template.label
    measure, arms = qualities(subject)
    for name, arm in arms.items():
        word = "never" if never_compressed(subject.arms[name]) else arm.judgement
        yield {
            "arm": name,
            "compression": number(arm.compression),
            "seeds": f"{len(arm.values)}",
            f"eval_{measure}": f"{fmean(arm.values.values()):.4f}",
            "quality_change": signed_interval(arm.change),
            "quality_within": label(f"quality.{word}") if word else None,
        }


def _steps(sources: Sources) -> Rows:
    """Steps and evaluation losses, where all arms were evaluated."""
    label = sources.template.label
    for name, arm in (trained(sources.subject) or {}).items():
        losses = list(arm.losses.values())
        yield {
            "arm": name,
            "layout": label(f"layouts.{'padded' if arm.padded else 'rows'}"),
            "global_batch": f"{arm.batch:,}",
            "optimizer_steps": f"{arm.steps:,}",
            "seeds": f"{len(losses)}",
            "eval_loss": f"{fmean(losses):.4f}",
            "eval_loss_spread": f"{stdev(losses):.4f}" if len(losses) > 1 else None,
        }


def _proxy(sources: Sources) -> Rows:
    """How well padded tokens and the planner's cost stood for compute, of the arms that know."""
    for name, members in sources.subject.arms.items():
        cells: dict[str, str | None] = {}
        for short, proxy in (("tokens", "padded_tokens"), ("cost", "cost")):
            related, error = (mean_of(members, f"proxy.{proxy}.{key}") for key in ("correlation", "mape"))
            cells[f"{short}_correlation"] = None if related is None else f"{related:.3f}"
            cells[f"{short}_mape"] = percent(error)
        if any(cells.values()):
            known = next((cost for member in members if (cost := cost_of(member, sources.subject))), None)
            yield {"arm": name, "cost": known, **cells}


def _cost_types(sources: Sources) -> Rows:
    """Every policy and cost type, judged by padded tokens and, where known, by measured time."""
    for line in sources.solved.cost_types if sources.solved else ():
        yield {
            "policy": str(line.get("policy")),
            "cost": f"`{line.get('cost_type')}`",
            "judge": sources.template.label(f"costs.judge_{line.get('judge')}", str(line.get("judge"))),
            "judged_mean": number(float_of(line.get("mean"))),
            "judged_p95": number(float_of(line.get("p95"))),
        }


def _server_steps(sources: Sources) -> Rows:
    """The six steps of a server's batch with their code and times, where an arm has a server."""
    label = sources.template.label
    arms = {name: sources.subject.arms[name] for name in served_arms(sources.subject)}
    for index, (step, (code, keys)) in enumerate(STEPS.items() if arms else (), start=1):
        yield {
            "number": f"{index}",
            "happens": label(f"server.{step}"),
            "side": label(f"server.side_of.{step}"),
            "code": f"`{code}`",
            **{
                f"={name} (ms)": " / ".join(number(mean_of(arm, key)) or "" for key in keys)
                for name, arm in arms.items()
            },
        }


def _growth(sources: Sources) -> Rows:
    """Arms with a server beside those without, at as many workers and at as many processes."""
    scaled = [one for one in sources.subject.scaling if one.kind != "weak"]

    def cell(one: ScalingRecord) -> str:
        name = marked(sources.subject, sources.template, one.arm)
        return f"{name}: {number(one.step_ms) or ''} ({number(one.comm_ms) or ''})"

    with_server, without = ([one for one in scaled if (one.world_size != one.workers) == serves] for serves in (1, 0))
    for basis, counted in (("workers", attrgetter("workers")), ("processes", attrgetter("world_size"))):
        for server, other in product(sorted(with_server, key=counted), without):
            if counted(other) == counted(server):
                yield {
                    "equal": sources.template.label(f"server.{basis}"),
                    "count": f"{counted(server)}",
                    "without": cell(other),
                    "with": cell(server),
                    "times": ratio(other.step_ms / server.step_ms) if server.step_ms and other.step_ms else None,
                }


REPORT_TABLES: Mapping[str, tuple[Callable[[Sources], Rows], int | None, str]] = {
    "setting": (_setting_rows, 2, ""),
    "verdicts": (_verdicts, None, NOT_MEASURED),
    "comparisons": (_comparisons, 2, NOT_MEASURED),
    "checks": (_checks, 5, ""),
    "runs": (_runs, 4, MISSING),
    "solve": (_solve, 4, ""),
    "greedy": (_greedy, 1, NOT_MEASURED),
    "buckets": (_buckets, 2, NONE),
    "quality": (_quality, 1, NONE),
    "steps": (_steps, 2, NONE),
    "proxy": (_proxy, 2, NOT_MEASURED),
    "cost_types": (_cost_types, 3, ""),
    "server_steps": (_server_steps, 4, ""),
    "growth": (_growth, 1, ""),
    "arms": (lambda of: arms_rows(of.subject, of.template), 99, ""),
    "common": (lambda of: common_rows(of.subject, of.template), 3, ""),
}
"""Placeholder of a table that only reports have to what `_markdown` takes of it."""
