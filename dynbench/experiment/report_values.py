"""The value of every placeholder of a report template; None where nothing was measured."""

from __future__ import annotations

import os
import re
import shlex
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dynbench import __version__
from dynbench.analysis.figures import FIGURES, caption_of
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import workers_of
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.tables import families
from dynbench.analysis.verdict import LEVELS, Verdict
from dynbench.config.schema import Analysis
from dynbench.experiment.offline_plans import Solved, static_over
from dynbench.experiment.report_conclusions import Conclusion, compressors, conclude, steps_effects, warnings
from dynbench.experiment.report_facts import arms_facts, communication_facts, tail_facts
from dynbench.experiment.report_input import (
    SOLVE_FIGURES,
    ReportInput,
    comm_model,
    in_language,
    loss_difference,
    marked,
    mean_of,
    reason,
    saved_hours,
    saved_interval,
)
from dynbench.experiment.report_settings import data_facts, memory_facts, settings
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.plugins import POLICIES
from dynbench.report import BETWEEN, CONTENTS, Template, codes, interval, percent, ratio, substitute
from dynbench.runs.store import results_option
from dynbench.schedule.prefix_counts import ENUMERATION_LIMIT, REFERENCE_LIMIT
from dynbench.schedule.solve import cost_is_estimated
from dynbench.table_text import Label, Markdown, quoted

Values = dict[str, Any]

_UNUSUAL = re.compile(r"[^\w./~+-]")
"""In paths that are linked."""
_PLACED = re.compile(r"\{\{\s*figure\.(\w+)\s*\}\}")
_FIRST = re.compile(r"\{\{\s*figure\.first\s*\}\}")
LEADING = ("communication_map", "timeline", "comm_timeline", "time_breakdown")
"""Figures of which the first that was drawn stands on the first page, as `figure.first`."""
MOST_ABOVE_FIGURE = 6
"""Arms whose table of verdicts leaves the figure below it on the first screen; that of more stands below the figure."""
WITH_TEXT = ("static", "prefix", "partition", "window")
"""Policies of which the template has a model and an algorithm of their own."""


def report_values(sources: Sources) -> Values:
    """Every placeholder that a template may use, with its text or what its sentences are of."""
    source, template, run = sources.input, sources.template, sources.input.run
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
        **tail_facts(source),
        **memory_facts(source),
        "work.unit": in_language(template, source.question.unit.name.record(), ""),
        "padding_known": mean_of(source.arms[source.baseline], "padding_ratio") is not None,
        "figure.number": None,
        "chapters": "",
        "contents": Markdown(CONTENTS),
    }


def _policies(source: ReportInput, label: Label) -> Values:
    """The policies of the arms; `other_policies` are those without a chapter, each with its description."""
    configs = [member.config or {} for member in source.members]
    names = [*dict.fromkeys(str(config["schedule.policy"]) for config in configs if "schedule.policy" in config)]
    others = [name for name in names if name not in WITH_TEXT and name in POLICIES]
    return {
        "policies": names,
        "other_policies": {name: label(f"policies.{name}", POLICIES[name].summary) for name in others},
    }


def _best_and_baseline(source: ReportInput, best: ComparisonRecord | None, template: Template) -> Values:
    members = source.arms[source.baseline]
    padding, missing = mean_of(members, "padding_ratio"), template.label("words.not_compared")
    return {
        "analysis.confidence": f"{100 * (best.confidence if best else Analysis().confidence):g} %",
        "analysis.first_stage": next((str(item.first_stage) for item in source.comparisons if item.first_stage), None),
        "analysis.jointly": str(max((item.judged_together or 1 for item in source.comparisons), default=1)),
        "analysis.other_pairs": str(families(source.pairs)[1]),
        "arms.oversubscribed": codes(source.oversubscribed, BETWEEN.get(template.language, ", ")),
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
        "best.reason": reason(template, best) if best else None,
        "best.loss_difference": (loss_difference(best) or missing) if best else None,
    }


def _tables(sources: Sources) -> Values:
    source, template, solved = sources.input, sources.template, sources.solved or Solved(None)
    tables, between = report_tables(sources), BETWEEN.get(template.language, ", ")
    steps = [value for line in solved.results if (value := lookup(line, "steps")) is not None]
    return {
        **{f"setting.{label}": text for label, text in settings(source, template).items()},
        "setting.comm_model": comm_model(template, source),
        "setting.link_gbps": between.join(f"{speed:g}" for speed in source.links_gbps) or None,
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
    leading = next((name for name in LEADING if name in drawn and _FIRST.search(template.body)), "")
    order = [name for name in (leading, *placed, *drawn) if name in drawn]
    missing, reference = template.label("words.not_drawn"), template.label("figures.reference")
    names = {
        name: substitute(template, reference, {"figure.number": str(number)})
        for number, name in enumerate(dict.fromkeys(order), start=1)
    }
    images = {}
    for name, numbered in names.items():
        caption = template.label(f"figures.{name}", caption_of(name) or quoted(name.replace("_", " ")))
        caption = f"{numbered}{template.label('figures.separator')}{caption}"
        images[name] = Markdown(f"![{caption}]({linked(drawn[name], folder)})\n{caption}")
    known = dict.fromkeys((*FIGURES["train"], *SOLVE_FIGURES))
    return {
        "figure.first": images.pop(leading, ""),
        **{f"figure.{name}": images.get(name, "") for name in known},
        **{f"ref.{name}": names.get(name, missing) for name in known},
        "figures.rest": Markdown("\n\n".join(image for name, image in images.items() if name not in placed)),
    }


def linked(path: Path, folder: Path) -> str:
    """A path as Markdown in a folder links it."""
    return _UNUSUAL.sub(lambda match: quote(match[0]), os.path.relpath(path.resolve(), folder.resolve()))


def _facts(sources: Sources, concluded: Conclusion) -> Values:
    """What the blocks of report/sentences say in words, by topic."""
    source, template, solved = sources.input, sources.template, sources.solved
    of_bytes = compressors(source, template.label)
    compared = {item.level for item in source.comparisons if item.verdict is not Verdict.INCOMPARABLE}
    return {
        "question.name": source.question.name,
        "conclusion": concluded,
        "doubts": [*dict.fromkeys(check.id for check in concluded.doubts)],
        "warnings": warnings(source, template),
        "levels_used": [level for level in LEVELS if level in compared],
        **_policies(source, template.label),
        "compressors": of_bytes,
        "compressor_doubts": [*dict.fromkeys(check.id for check in of_bytes.doubts)],
        "steps_effects": steps_effects(source),
        "unplanned": [{"arm": each.get("arm"), **each} for each in (solved.skipped if solved else ())],
        "method": _method(source, solved, concluded),
        "marked": {name: marked(source, template, name) for name in source.arms},
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
        "figure_first": len(source.arms) > MOST_ABOVE_FIGURE,
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
    # Equal hashes are equal work whatever else differs; beyond them nothing vouches for it.
    return best.level if best.same_work or best.verdict is not Verdict.INCOMPARABLE else "different"


def _plans(source: ReportInput) -> Values:
    """The number of counts that add up to the global batch at the report's own size, and how many a solver tries."""
    workers, size = workers_of(source.first.summary), lookup(source.first.summary, "global_batch")
    count = None if workers is None or size is None else comb(int(size) - 1, workers - 1)
    return {"ranks": workers, "batch": size, "count": count, "limit": REFERENCE_LIMIT, "inline": ENUMERATION_LIMIT}
