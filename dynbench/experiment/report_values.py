"""The value of every placeholder of a report template; None where nothing was measured."""

from __future__ import annotations

import os
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dynbench import __version__
from dynbench.analysis.figures import FIGURES
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import workers_of
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.tables import families
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis
from dynbench.experiment import report_quality
from dynbench.experiment import report_texts as texts
from dynbench.experiment.offline_plans import PlanCounts, Solved, plan_counts, static_over
from dynbench.experiment.report_arms import arms_facts
from dynbench.experiment.report_communication import communication_facts
from dynbench.experiment.report_conclusions import Conclusion, compressors, conclude, doubts_in_words
from dynbench.experiment.report_input import SOLVE_FIGURES, ReportInput, mean_of
from dynbench.experiment.report_settings import data_facts, memory_facts
from dynbench.experiment.report_tables import Sources, ranks_kind, report_tables
from dynbench.experiment.report_texts import loss_difference, saved_hours, saved_interval
from dynbench.report import Template, interval, percent, ratio, substitute
from dynbench.runs.store import results_option
from dynbench.schedule.prefix import MIN_BUFFER
from dynbench.schedule.solve import cost_is_estimated
from dynbench.table_text import Markdown, quoted

Values = dict[str, Any]

_UNUSUAL = re.compile(r"[^\w./~+-]")
"""In paths that are linked."""
_PLACED = re.compile(r"\{\{\s*figure\.(\w+)\s*\}\}")


def report_values(sources: Sources) -> Values:
    """Every placeholder that a template may use, with its text or what its sentences are of."""
    source, template, run = sources.subject, sources.template, sources.subject.run
    concluded = conclude(source)
    return {
        "report.subject": f"`{run.id}`" if run.label == run.id else f"{run.label} (`{run.id}`)",
        "report.date": f"{datetime.now(UTC):%Y-%m-%d}",
        "report.version": __version__,
        "report.command": f"`dynbench report {shlex.quote(run.label)}{results_option(run.path.parent)}`",
        **_best_and_baseline(source, concluded.best, template),
        **_tables(sources),
        **number_figures(source, template, sources.folder),
        **_facts(sources, concluded),
        **data_facts(source),
        **arms_facts(source, sources.solved, concluded.best, template),
        **communication_facts(source),
        **memory_facts(source),
        "work.unit": texts.said(template, source.question.unit.name.record(), ""),
        "figure.number": None,
        "chapters": "",
    }


def _best_and_baseline(source: ReportInput, best: ComparisonRecord | None, template: Template) -> Values:
    members = source.arms[source.baseline]
    padding, missing = mean_of(members, "padding_ratio"), template.label("words.not_compared")
    return {
        "analysis.confidence": f"{100 * (best.confidence if best else Analysis().confidence):g} %",
        "analysis.first_stage": next((str(item.first_stage) for item in source.comparisons if item.first_stage), None),
        "analysis.together": str(max((item.judged_together or 1 for item in source.comparisons), default=1)),
        "analysis.other_pairs": str(families(source.pairs)[1]),
        "arms.oversubscribed": ", ".join(f"`{name}`" for name in source.oversubscribed),
        "baseline.name": f"`{source.baseline}`",
        "baseline.launches": str(len(members)),
        "baseline.wait_percent": percent(mean_of(members, "wait_fraction")),
        "baseline.padding_ratio": None if padding is None else f"{padding:.2f}",
        "best.name": f"`{best.candidate}`" if best else None,
        "best.speedup": ratio(best.speedup) if best else None,
        "best.interval": interval(best.interval) if best else None,
        "best.saved": saved_hours(best, source) if best else None,
        "best.saved_interval": saved_interval(best, source) if best else None,
        "best.efficiency": percent(best.efficiency) if best else None,
        "best.launches": str(best.launches) if best else None,
        "best.reason": texts.reason(template, best) if best else None,
        "best.recovered": texts.recovered(template, best) if best and "recovered" in source.question.columns else None,
        "best.loss_difference": (loss_difference(best) or missing) if best else None,
    }


def _tables(sources: Sources) -> Values:
    source, template, solved = sources.subject, sources.template, sources.solved or Solved(None)
    tables = report_tables(sources)
    steps = [value for line in solved.results if (value := lookup(line, "steps")) is not None]
    return {
        "setting.launcher": ranks_kind(source, template),
        "setting.comm_model": texts.comm_model(template, source),
        "setting.link_gbps": ", ".join(f"{speed:g}" for speed in source.links_gbps) or None,
        **tables,
        "table.comparisons": tables["table.comparisons"] or None,
        "solve.run": f"`{solved.run}`" if solved.run else None,
        "solve.reason": solved.reason,
        "solve.steps": f"{max(steps):,.0f}" if steps else None,
    }


def number_figures(source: ReportInput, template: Template, folder: Path) -> dict[str, str | None]:
    """`figure.NAME` and its `ref.NAME` for every figure of a comparison, `figures.rest` for those not placed.

    Args:
        source: whose figures.
        template: their captions, and the order in which it places them.
        folder: figures are linked relative to it.
    """
    drawn = {path.stem: path for path in source.figures}
    placed = list(dict.fromkeys(_PLACED.findall(template.body)))
    order = [name for name in placed if name in drawn] + [name for name in drawn if name not in placed]
    missing, reference = template.label("words.not_drawn"), template.label("figures.reference")
    names = {
        name: substitute(template, reference, {"figure.number": str(number)})
        for number, name in enumerate(order, start=1)
    }
    images = {}
    for name, numbered in names.items():
        caption = template.label(f"figures.{name}", quoted(name.replace("_", " ")))
        caption = f"{numbered}{template.label('figures.separator')}{caption}"
        images[name] = Markdown(f"![{caption}]({linked(drawn[name], folder)})\n{caption}")
    known = dict.fromkeys((*FIGURES["train"], *SOLVE_FIGURES))
    return {
        **{f"figure.{name}": images.get(name, "") for name in known},
        **{f"ref.{name}": names.get(name, missing) for name in known},
        "figures.rest": Markdown("\n\n".join(image for name, image in images.items() if name not in placed)),
    }


def linked(path: Path, folder: Path) -> str:
    """A path as Markdown in a folder links it."""
    return _UNUSUAL.sub(lambda match: quote(match[0]), os.path.relpath(path.resolve(), folder.resolve()))


def _facts(sources: Sources, concluded: Conclusion) -> Values:
    """What the blocks of report/sentences say in words, by topic."""
    source, template, solved = sources.subject, sources.template, sources.solved
    of_bytes = compressors(source, template.label)
    return {
        "question.name": source.question.name,
        "conclusion": concluded,
        "doubts": doubts_in_words(template, concluded.doubts),
        "compressors": of_bytes,
        "compressor_doubts": doubts_in_words(template, of_bytes.doubts),
        "steps_effects": report_quality.steps_effects(source),
        "unplanned": [{"arm": each.get("arm"), **each} for each in (solved.skipped if solved else ())],
        "method": _method(source, solved, concluded),
        "marked": {name: texts.marked(source, template, name) for name in source.arms},
        "plans": _plans(source),
    }


def _method(source: ReportInput, solved: Solved | None, concluded: Conclusion) -> Values:
    """How the launches were made and judged, and what of them is known."""
    planned = solved or Solved(None)
    costs = any(map(cost_is_estimated, planned.results))
    over = [static_over(planned, line, source.baseline)[1] for line in planned.results if not cost_is_estimated(line)]
    return {
        "virtual": source.virtual,
        "order": _order(source),
        "spread": "arms" if any(pair.spread == "arms" for pair in source.pairs) else "own",
        "checks": None if source.checks is None else len(source.checks),
        "arms": None if source.first.config is None else len(source.arms),
        "partial": any(member.summary.get("partial") for member in source.members),
        "solved": solved is not None,
        "estimated": {"costs": costs, "static": any(over)},
        "work": "alike" if concluded.claim == "alike" else _work(concluded.best),
    }


def _order(source: ReportInput) -> str:
    """In what order the launches ran; only `compare` plans it."""
    if source.state is not None:
        return "interleaved" if source.state.mode == "interleaved" else "abba"
    return "unplanned" if source.comparisons else "none"


def _work(best: ComparisonRecord | None) -> str:
    """How far the runs did the same work."""
    if best is None:
        return "none"
    if best.leak is not None and best.level == "tokens":
        return "leak"
    # Equal hashes are equal work whatever else differs; beyond them nothing vouches for it.
    return best.level if best.same_work or best.verdict is not Verdict.INCOMPARABLE else "different"


def _plans(source: ReportInput) -> PlanCounts:
    """The numbers of plans at the report's own size."""
    summary = source.first.summary
    workers, size = workers_of(summary), lookup(summary, "global_batch")
    batch = None if size is None else int(size)
    configured = [(member.config or {}).get("schedule.buffer") for member in source.members]
    buffer = next((value for value in configured if isinstance(value, int)), None)
    if buffer is None and workers is not None and batch is not None:
        buffer = max(MIN_BUFFER, batch - workers + 1)
    return plan_counts(workers, batch, buffer)
