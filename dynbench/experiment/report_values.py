"""The value of every placeholder of a report template; None where nothing was measured."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

from dynbench import __version__
from dynbench.analysis.comparison_tables import families
from dynbench.analysis.measure import lookup
from dynbench.analysis.metrics import workers_of
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis
from dynbench.experiment import (
    memory_safety,
    report_arms,
    report_communication,
    report_layouts,
    report_quality,
    report_server,
    report_time,
)
from dynbench.experiment import report_texts as texts
from dynbench.experiment.enumeration import Plans, plan_counts
from dynbench.experiment.figure_numbers import number_figures
from dynbench.experiment.offline_plans import Solved, static_over
from dynbench.experiment.report_compression import compressors
from dynbench.experiment.report_conclusions import best_of, claim_of, conclusion
from dynbench.experiment.report_formats import (
    interval,
    loss_difference,
    percent,
    quoted,
    ratio,
    saved_hours,
    saved_interval,
)
from dynbench.experiment.report_layouts import packed_pairs
from dynbench.experiment.report_settings import data_facts
from dynbench.experiment.report_tables import Sources, ranks_kind, report_tables
from dynbench.experiment.subject import Subject, mean_of
from dynbench.report import Template
from dynbench.runs.store import results_option
from dynbench.schedule.solve import cost_is_estimated
from dynbench.schedule.streams import MIN_BUFFER

Values = dict[str, Any]


def report_values(sources: Sources) -> Values:
    """Every placeholder that a template may use, with its text or what its sentences are of."""
    return {
        **_identity(sources),
        **_arms(sources.subject, sources.template),
        **_tables(sources),
        **number_figures(sources.subject, sources.template, sources.folder),
        **_facts(sources),
        "figure.number": None,
        "chapters": "",
    }


def _identity(sources: Sources) -> Values:
    run = sources.subject.run
    own = quoted(run.id)
    return {
        "report.subject": f"`{own}`" if run.label == run.id else f"{run.label} (`{own}`)",
        "report.date": f"{datetime.now(UTC):%Y-%m-%d}",
        "report.version": __version__,
        "report.command": f"`dynbench report {quoted(shlex.quote(run.label) + results_option(run.path.parent))}`",
    }


def _arms(subject: Subject, template: Template) -> Values:
    """The baseline, and the best candidate of the comparisons."""
    best, members = best_of(subject), subject.arms[subject.baseline]
    return {
        "analysis.confidence": f"{100 * (best.confidence if best else Analysis().confidence):g} %",
        "analysis.first_stage": next((str(item.first_stage) for item in subject.comparisons if item.first_stage), None),
        "analysis.together": str(max((item.judged_together or 1 for item in subject.comparisons), default=1)),
        "analysis.other_pairs": str(families(subject.pairs)[1]),
        "arms.oversubscribed": ", ".join(f"`{name}`" for name in subject.oversubscribed),
        "baseline.name": f"`{subject.baseline}`",
        "baseline.launches": str(len(members)),
        "baseline.wait_percent": percent(mean_of(members, "wait_fraction")),
        "baseline.padding_ratio": _decimals(mean_of(members, "padding_ratio")),
        "best.name": f"`{best.candidate}`" if best else None,
        "best.speedup": ratio(best.speedup) if best else None,
        "best.interval": interval(best) if best else None,
        "best.saved": saved_hours(best, subject) if best else None,
        "best.saved_interval": saved_interval(best, subject) if best else None,
        "best.efficiency": percent(best.efficiency) if best else None,
        "best.launches": str(best.launches) if best else None,
        "best.reason": texts.reason(template, best) if best else None,
        "best.recovered": texts.recovered(template, best) if best else None,
        "best.loss_difference": (loss_difference(best) or template.label("words.not_compared")) if best else None,
    }


def _tables(sources: Sources) -> Values:
    subject, template, solved = sources.subject, sources.template, sources.solved
    tables = report_tables(sources)
    return {
        "setting.launcher": ranks_kind(subject, template),
        "setting.comm_model": texts.comm_model(template, subject),
        "setting.link_gbps": ", ".join(f"{speed:g}" for speed in subject.links_gbps) or None,
        **tables,
        "table.comparisons": tables["table.comparisons"] or None,
        "solve.run": f"`{solved.run}`" if solved and solved.run else None,
        "solve.reason": solved.reason if solved else None,
        "solve.steps": _most(solved, "steps"),
    }


def _plans(subject: Subject) -> Plans:
    """The numbers of plans at the report's own size."""
    summary = subject.first.summary
    workers, size = workers_of(summary), lookup(summary, "global_batch")
    batch = None if size is None else int(size)
    held = [member.config.get("schedule.buffer") for member in subject.members if member.config is not None]
    buffer = next((value for value in held if isinstance(value, int)), None)
    if buffer is None and workers is not None and batch is not None:
        buffer = max(MIN_BUFFER, batch - workers + 1)
    return plan_counts(workers, batch, buffer)


def _facts(sources: Sources) -> Values:
    """What the blocks of report/sentences say in words, by topic."""
    subject, template, solved = sources.subject, sources.template, sources.solved
    arms = [*subject.arms, *(one.arm for one in subject.scaling)]
    return {
        "question.name": subject.question.name,
        "packed_pairs": list(packed_pairs(subject)),
        "conclusion": conclusion(subject, template),
        "compressors": compressors(subject, template),
        "quality_kept": report_quality.kept_quality(subject),
        "steps_effects": report_layouts.steps_effects(subject),
        "topics": {name: report_arms.topic(subject, name) for name in report_arms.TOPICS},
        "losses": report_arms.losses(subject),
        "predictions": list(report_arms.predictions(subject, solved)),
        "planning": report_arms.planning(subject),
        "unplanned": [{"arm": each.get("arm"), **each} for each in (solved.skipped if solved else ())],
        "method": _method(sources),
        "marked": {name: texts.marked(subject, template, name) for name in arms},
        "plans": _plans(subject),
        "exposures": list(report_communication.exposures(subject)),
        "not_exposed": report_communication.why_not_exposed(subject),
        "strategy_pairs": report_communication.strategy_pairs(subject),
        "buckets": report_communication.buckets_of(subject),
        **data_facts(subject),
        **report_time.waste_facts(subject, template),
        **report_communication.profile_facts(subject),
        **report_server.facts(subject),
        **report_time.cost_facts(subject, solved),
        **memory_safety.facts(subject),
    }


def _method(sources: Sources) -> Values:
    """How the launches were made and judged, and what of them is known."""
    subject, solved = sources.subject, sources.solved or Solved(None)
    costs = any(map(cost_is_estimated, solved.results))
    over = [static_over(solved, line, subject.baseline)[1] for line in solved.results if not cost_is_estimated(line)]
    return {
        "virtual": subject.virtual,
        "order": _order(subject),
        "spread": "arms" if any(pair.spread == "arms" for pair in subject.pairs) else "own",
        "checks": None if subject.checks is None else len(subject.checks),
        "arms": None if subject.first.config is None else len(subject.arms),
        "partial": any(member.summary.get("partial") for member in subject.members),
        "solved": sources.solved is not None,
        "estimated": {"costs": costs, "static": any(over)},
        "work": "alike" if claim_of(subject) == "alike" else _work(best_of(subject)),
    }


def _most(solved: Solved | None, key: str) -> str | None:
    """The largest value of a number in the offline lines."""
    values = [value for line in (solved.results if solved else ()) if (value := lookup(line, key)) is not None]
    return f"{max(values):,.0f}" if values else None


def _order(subject: Subject) -> str:
    """In what order the launches ran; only `compare` plans it."""
    if subject.state is not None:
        return "interleaved" if subject.state.mode == "interleaved" else "abba"
    return "unplanned" if subject.comparisons else "none"


def _work(best: ComparisonRecord | None) -> str:
    """How far the runs did the same work."""
    if best is None:
        return "none"
    if best.leak is not None and best.level == "tokens":
        return "leak"
    # Equal hashes are equal work whatever else differs; beyond them nothing vouches for it.
    return best.level if best.same_work or best.verdict is not Verdict.INCOMPARABLE else "different"


def _decimals(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
