"""The value of every placeholder of a report template; None where nothing was measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dynbench import __version__
from dynbench.analysis.figures import FIGURES
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis
from dynbench.experiment import report_tables as tables
from dynbench.experiment.formats import interval, percent, saved_hours, saved_interval, speedup
from dynbench.experiment.solved import Solved
from dynbench.experiment.subject import Json, Subject, mean_of
from dynbench.report import Template, substitute

Values = dict[str, str | None]


@dataclass(frozen=True)
class Sources:
    """Everything a report is filled from.

    Attributes:
        subject: the comparison or run.
        solved: the latest offline results, None where there are none.
        template: its texts.
        folder: figures are linked relative to it.
    """

    subject: Subject
    solved: Solved | None
    template: Template
    folder: Path


def report_values(sources: Sources) -> Values:
    """Every placeholder that a template may use, with its text."""
    values = {
        **_identity(sources),
        **_arms(sources.subject),
        **_tables(sources),
        **_figures(sources),
    }
    return {**values, **_sentences(sources, values)}


def _identity(sources: Sources) -> Values:
    run = sources.subject.run
    return {
        "report.subject": f"`{run.label}`" if run.label == run.id else f"{run.label} (`{run.id}`)",
        "report.date": f"{datetime.now(UTC):%Y-%m-%d}",
        "report.version": __version__,
    }


def _arms(subject: Subject) -> Values:
    """The baseline, and the best candidate of the comparisons."""
    best, members = subject.best or {}, subject.arms[subject.baseline]
    alike = subject.best_alike or {}
    planned = subject.arms.get(str(best.get("candidate")), ()) if best else members
    confidence = best.get("confidence", Analysis().confidence)
    return {
        "analysis.confidence": f"{100 * float(str(confidence)):g} %",
        "baseline.name": f"`{subject.baseline}`",
        "baseline.launches": str(len(members)),
        "baseline.wait_percent": percent(mean_of(members, "wait_fraction")),
        "baseline.padding_ratio": _decimals(mean_of(members, "padding_ratio")),
        "best.name": f"`{best.get('candidate')}`" if best else None,
        "best.speedup": speedup(best),
        "best.interval": interval(best),
        "best.saved": saved_hours(best),
        "best.saved_interval": saved_interval(best),
        "best.launches": str(best["launches"]) if best.get("launches") else None,
        "best.reason": str(best["reason"]) if best.get("reason") else None,
        "best.loss_difference": tables.loss_difference(best),
        "best.plan_percent": percent(mean_of(planned, "plan_fraction")),
        "alike.name": f"`{alike.get('candidate')}`" if alike else None,
        "alike.speedup": speedup(alike),
        "alike.interval": interval(alike),
    }


def _tables(sources: Sources) -> Values:
    subject, template, solved = sources.subject, sources.template, sources.solved
    return {
        "setting.launcher": tables.ranks_kind(subject, template),
        "setting.comm_model": tables.comm_model(subject),
        "table.setting": tables.settings_table(subject, template),
        "table.comparisons": tables.comparisons_table(subject, template) if subject.comparisons else None,
        "table.metrics": tables.metrics_table(subject, template),
        "table.checks": tables.checks_table(subject.checks or (), template),
        "table.solve": tables.solve_table(solved.results if solved else (), template),
        "table.greedy": tables.greedy_table(solved.results if solved else (), template),
        "table.runs": tables.runs_table(subject, template),
        "checks.count": str(len(subject.checks or ())),
        "solve.run": f"`{solved.run.label}`" if solved else None,
    }


def _figures(sources: Sources) -> Values:
    """`figure.NAME` for every figure of a comparison, and `figures.rest` for those the template does not place."""
    drawn = {path.stem: _image(path, sources) for path in sources.subject.figures}
    missing = sources.template.label("words.not_drawn")
    named: Values = {f"figure.{name}": drawn.get(name, missing) for name in FIGURES["train"]}
    rest = [image for name, image in drawn.items() if f"figure.{name}" not in sources.template.body]
    return {**named, "figures.rest": "\n\n".join(rest)}


def _image(path: Path, sources: Sources) -> str:
    caption = sources.template.label(f"figures.{path.stem}", path.stem.replace("_", " "))
    target = os.path.relpath(path.resolve(), sources.folder.resolve()).replace(" ", "%20")
    return f"![{caption}]({target})\n{caption}"


def _sentences(sources: Sources, values: Mapping[str, str | None]) -> Values:
    """The texts that depend on what was measured, filled in turn; empty where there is nothing to say."""
    subject, template = sources.subject, sources.template
    claim, checks = _claim(subject), "none" if subject.checks is None else "found" if subject.checks else "clean"
    chosen = {
        "say.abstract": f"abstract.{claim}",
        "say.recommendation": f"recommendation.{claim}",
        "say.alike": "alike.note" if subject.best_alike else None,
        "say.ranks": f"ranks.{'virtual' if subject.virtual else 'real'}",
        "say.virtual": "ranks.note" if subject.virtual else None,
        "say.order": f"order.{_order(subject)}",
        "say.work": f"work.{_work(subject.best)}",
        "say.checks": f"checks.{checks}",
        "say.solve": f"solve.{'found' if sources.solved else 'none'}",
        "say.bound": "solve.bound" if values["table.solve"] else None,
        "say.greedy": "solve.greedy" if values["table.greedy"] else None,
    }
    return {name: substitute(template, template.label(key), values) if key else "" for name, key in chosen.items()}


def _claim(subject: Subject) -> str:
    """Which text says what was found: that of the verdict, or of what stood alone."""
    if subject.best:
        return str(subject.best.get("verdict", "none"))
    return "none" if len(subject.arms[subject.baseline]) == 1 else "launches"


def _order(subject: Subject) -> str:
    """Which text says in what order the launches ran; only `compare` plans it."""
    if subject.state is not None:
        return "abba"
    return "unplanned" if subject.comparisons else "none"


def _work(best: Json | None) -> str:
    """Which text says how far the runs did the same work."""
    level = None if best is None else best.get("level")
    if best is None or level is None:
        return "none"
    # Equal hashes are equal work whatever else differs; at `stream` nothing vouches for it.
    return "different" if level == "stream" and best.get("verdict") == Verdict.INCOMPARABLE else str(level)


def _decimals(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
