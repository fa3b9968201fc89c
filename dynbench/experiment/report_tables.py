"""The tables of a report, in the template's language: those of the analysis, and those that only reports have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from dynbench.analysis import tables as comparison_tables
from dynbench.analysis.buckets import ONE, PARAMETER
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import METRICS, chosen_metrics
from dynbench.analysis.table_specs import TABLES
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.offline_plans import Solved, static_over
from dynbench.experiment.report_conclusions import never_compressed, qualities, trained
from dynbench.experiment.report_facts import buckets_of, link_map_of, shown_tail
from dynbench.experiment.report_input import (
    Json,
    ReportInput,
    finding_texts,
    loss_difference,
    loss_drift,
    mean_of,
    saved_hours,
    status,
)
from dynbench.experiment.report_settings import arms_rows, common_rows, cost_of, run_rows
from dynbench.report import Template, interval, number, percent, ratio, signed_ends, signed_interval, signed_percent
from dynbench.runs.phrase import NBSP
from dynbench.schedule.solve import cost_is_estimated
from dynbench.table_text import Markdown, Table, format_value, signed
from dynbench.units import format_ms

NOT_MEASURED, MISSING = "words.not_measured", "words.missing"
NONE = "words.none"
SIZE = ("world_size", "global_batch")
CHANGES: Mapping[str, str] = {
    "tail": "step_time_ms.p95",
    "traffic": "exposed_comm_ms.mean",
    "imbalance": "std_over_ranks.padded_tokens.mean",
    "unequal": "std_over_ranks.compute_ms.mean",
    "memory": "std_over_ranks.peak_mem_mb.mean",
}
"""What `table.changes` has of the metrics; less is better in all."""
ABOUT = ("", f"≈{NBSP}")
"""Before a number that is none, or is an estimate."""


Rows = Iterable[Mapping[str, str | None]]
"""Key of a heading in the template, or after `=` the heading itself, to the cell; None is empty."""


@dataclass(frozen=True)
class Sources:
    """Everything a report is filled from.

    Attributes:
        input: the comparison or run.
        solved: what was planned offline for it, None where nothing was.
        template: its texts.
        folder: figures are linked relative to it.
    """

    input: ReportInput
    solved: Solved | None
    template: Template
    folder: Path


def report_tables(sources: Sources) -> dict[str, str]:
    """Placeholder of every table to its Markdown; empty where it has nothing to say."""
    source, label = sources.input, sources.template.label
    values = {
        name: {metric.key: mean_of(members, metric.key) for metric in METRICS} for name, members in source.arms.items()
    }
    gains = {item.candidate: item.improvement_percent for item in source.comparisons}
    found = {
        **{name: spec.table(source.launches, label) for name, spec in TABLES.items()},
        "scaling": comparison_tables.SCALING.table(source.scaling, label),
        "pairs": replace(comparison_tables.RANKING, title="").table(source.pairs, label),
    }
    if len(source.arms) > comparison_tables.SIDE_BY_SIDE:
        about = values, source.comparisons, source.question, label
        found["overview"] = comparison_tables.overview(*about, details=False)
    metrics = comparison_tables.metric_tables(values, gains, chosen_metrics(source.question.metrics), label)
    return {
        "table.overview": "",
        **{f"table.{name}": table.markdown(whole=True) if table else "" for name, table in found.items()},
        "table.metrics": Markdown("\n\n".join(table.markdown(whole=True) for table in metrics)),
        **{f"table.{name}": _markdown(sources, *spec) for name, spec in REPORT_TABLES.items()},
    }


def _markdown(sources: Sources, rows: Callable[[Sources], Rows], left: int | None, missing: str) -> str:
    """A table whose headings the template has, empty without rows; `missing` is the label of cells that are None."""
    lines, label = list(rows(sources)), sources.template.label
    headings = [key[1:] if key[0] == "=" else label(f"headings.{key}", key) for key in (lines[0] if lines else ())]
    nothing = label(missing) if missing else ""
    cells = [[nothing if cell is None else cell for cell in line.values()] for line in lines]
    return Table(headings, cells, texts=left).markdown() if lines else ""


def _comparisons(sources: Sources) -> Rows:
    """What the first page lacks of a candidate: its launches, its loss, and what the question wants to know of it."""
    source, label = sources.input, sources.template.label
    drifts = source.question.loss_drift is not None
    loss, of_loss = ("loss_drift", loss_drift) if drifts else ("loss_parity", loss_difference)
    trained = any(item.weights_max_diff is not None for item in source.comparisons)
    for item in source.judged:
        apart = item.weights_max_diff
        chosen = {
            "recovered": percent(item.recovered),
            "saved": saved_hours(item, source) or "",
            "efficiency": percent(item.efficiency),
        }
        yield {
            "comparison": f"{item.candidate} / {item.baseline}",
            "verdict": label(f"verdicts.{item.verdict}"),
            **{key: chosen[key] for key in source.question.columns},
            "launches": f"{item.launches}",
            loss: of_loss(item) or label("words.not_compared"),
            **({"weights": None if apart is None else f"{apart:.1e}"} if trained else {}),
        }


def _verdicts(sources: Sources) -> Rows:
    """One line per candidate for the first page: verdict, speed, and what it costs in loss and, where known, memory."""
    source, label = sources.input, sources.template.label
    measure, arms = qualities(source)
    evaluated = any(arm.change for arm in arms.values())
    drifts = source.question.loss_drift is not None
    gains = {item.candidate: item.improvement_percent.get("peak_mem_mb.max") for item in source.judged}
    for item in source.judged:
        if evaluated:
            arm = arms[item.candidate]
            loss = signed_interval(arm.change)
            if source.question.name == "steps" and arm.difference is not None:  # where differences are the answer
                mean, *ends = arm.difference
                loss = f"{signed(mean, 4)} {signed_ends(ends, 4)}"
        else:
            loss = loss_drift(item) if drifts else loss_difference(item)
        fewer = {"traffic": number(arms[item.candidate].traffic)} if source.question.name == "compress" and arms else {}
        memory = {"memory_change": _less(gains[item.candidate])}
        yield {
            "=" + label("headings.verdict_arm").format(f"`{item.baseline}`"): item.candidate,
            "verdict": label(f"verdicts.{item.verdict}"),
            "speedup": ratio(item.speedup),
            "interval": interval(item.interval) or label(NONE),
            "level": label(NONE if item.verdict is Verdict.INCOMPARABLE else f"levels.{item.level}"),
            **fewer,
            f"eval_{measure}" if evaluated else "loss_drift" if drifts else "loss_parity": loss
            or label("words.not_compared"),
            **(memory if any(value is not None for value in gains.values()) else {}),
        }


def _checks(sources: Sources) -> Rows:
    for check in sources.input.checks or ():
        texts = finding_texts(sources.template, check)
        yield dict(zip(("severity", "check", "seen", "limit", "hint"), texts, strict=True))


def _runs(sources: Sources) -> Rows:
    for name, members in sources.input.arms.items():
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
        speed, estimated = static_over(solved, line, sources.input.baseline)
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
    source, label = sources.input, sources.template.label
    against = {item.candidate: item for item in source.comparisons}
    if (found := buckets_of(source)) is None:
        return
    for point in found.points:
        item, named, held_out = against.get(point.arm), point.size in (ONE, PARAMETER), point in found.fit.held_out
        yield {
            "arm": point.arm,
            "bucket_size": label(f"words.bucket_{point.size}") if named else f"{float(point.size):g}",
            "buckets": number(round(point.calls)),
            "step_ms": number(point.step_ms),
            "predicted_ms": number(found.fit.step_ms(point)),
            "miss": signed_percent(found.fit.miss(point)) if held_out else label("words.fitted"),
            "exposed_ms": number(mean_of(source.arms[point.arm], "exposed_comm_ms.mean")) or "",
            "speedup": ratio(item.speedup) if item else None,
            "interval": interval(item.interval) if item else None,
        }


def _link_map(sources: Sources) -> Rows:
    """Share of communication, without emulated links and over them, by the model and as measured."""
    found = link_map_of(sources.input)
    for point in (*found.bases, *found.points) if found else ():
        yield {
            "arm": point.arm,
            "link": number(point.gbps) or sources.template.label(NONE),
            "rank_tokens": number(point.tokens),
            "compute_ms": number(point.compute_ms),
            "waited_ms": number(point.waited_ms),
            "waited_backward_ms": number(point.backward_ms),
            "share_predicted": percent(found.predicted(point)) if found else None,
            "share_measured": percent(point.share),
            "share_error": f"{100 * found.errors[point.arm]:+.1f}" if found and point.gbps else "",
        }


def _quality(sources: Sources) -> Rows:
    """Each arm's perplexity or loss beside the baseline's, where the arms were evaluated."""
    source, label = sources.input, sources.template.label
    measure, arms = qualities(source)
    for name, arm in arms.items():
        word = "never" if never_compressed(source.arms[name]) else arm.judgement
        yield {
            "arm": name,
            "compression": number(arm.compression),
            "traffic": number(arm.traffic),
            "seeds": f"{len(arm.values)}",
            f"eval_{measure}": f"{fmean(arm.values.values()):.4f}",
            "quality_change": signed_interval(arm.change),
            "quality_within": label(f"quality.{word}") if word else None,
        }


def _steps(sources: Sources) -> Rows:
    """Steps and evaluation losses, where all arms were evaluated."""
    label = sources.template.label
    for name, arm in (trained(sources.input) or {}).items():
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
    for name, members in sources.input.arms.items():
        cells: dict[str, str | None] = {}
        for short, proxy in (("tokens", "padded_tokens"), ("cost", "cost")):
            related, error = (mean_of(members, f"proxy.{proxy}.{key}") for key in ("correlation", "mape"))
            cells[f"{short}_correlation"] = None if related is None else f"{related:.3f}"
            cells[f"{short}_mape"] = percent(error)
        if any(cells.values()):
            known = next((cost for member in members if (cost := cost_of(member, sources.input))), None)
            yield {"arm": name, "cost": known, **cells}


def _cost_types(sources: Sources) -> Rows:
    """Every policy and cost type, judged by padded tokens and, where known, by measured time."""
    for line in sources.solved.cost_types if sources.solved else ():
        yield {
            "policy": str(line.get("policy")),
            "cost": f"`{line.get('cost_type')}`",
            "judge": sources.template.label(f"costs.judge_{line.get('judge')}", str(line.get("judge"))),
            "judged_mean": number(lookup(line, "mean")),
            "judged_p95": number(lookup(line, "p95")),
        }


def _less(gain: float | None) -> str | None:
    """A gain in percent, of what is better where there is less of it, as a change."""
    return None if gain is None else signed_percent(-gain / 100)


def _changes(sources: Sources) -> Rows:
    """How each candidate changed beside the baseline, in percent; columns that no arm has are left out."""
    label, found = sources.template.label, sources.input.comparisons
    known = {name: key for name, key in CHANGES.items() if any(key in item.improvement_percent for item in found)}
    for item in found if known else ():
        changes = {name: _less(item.improvement_percent.get(key)) for name, key in known.items()}
        if (tail := shown_tail(item)) is not None and tail.interval is not None:
            changes["tail"] = signed_interval(tail.change)
        yield {"arm": item.candidate, **{"=" + label(f"changes.{name}"): text for name, text in changes.items()}}


REPORT_TABLES: Mapping[str, tuple[Callable[[Sources], Rows], int | None, str]] = {
    "setting": (lambda of: run_rows(of.input, of.template), 2, ""),
    "verdicts": (_verdicts, None, NOT_MEASURED),
    "comparisons": (_comparisons, 2, NOT_MEASURED),
    "checks": (_checks, 5, ""),
    "runs": (_runs, 4, MISSING),
    "solve": (_solve, 4, ""),
    "greedy": (_greedy, 1, NOT_MEASURED),
    "buckets": (_buckets, 2, NONE),
    "link_map": (_link_map, 1, NONE),
    "quality": (_quality, 1, NONE),
    "steps": (_steps, 2, NONE),
    "proxy": (_proxy, 2, NOT_MEASURED),
    "cost_types": (_cost_types, 3, ""),
    "changes": (_changes, 1, "words.not_compared"),
    "arms": (lambda of: arms_rows(of.input, of.template), 99, ""),
    "common": (lambda of: common_rows(of.input, of.template), 3, ""),
}
"""Placeholder of a table that only reports have to what `_markdown` takes of it."""
