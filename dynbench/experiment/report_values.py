"""The value of every placeholder of a report template; None where nothing was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dynbench import __version__
from dynbench.analysis.metrics import lookup, workers_of
from dynbench.analysis.ranking import families
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis
from dynbench.experiment import (
    answers,
    bucket_answers,
    communication_answers,
    compress_answers,
    conclusions,
    cost_answers,
    memory_safety,
    profile_answers,
    quality_answers,
    server_answers,
    steps_answers,
    strategy_answers,
    waste_answers,
)
from dynbench.experiment import report_texts as texts
from dynbench.experiment.answers import Speaker
from dynbench.experiment.conclusions import best_of, claim_of, conclusion, notes, placeholders
from dynbench.experiment.enumeration import Plans, plan_counts
from dynbench.experiment.figure_numbers import number_figures
from dynbench.experiment.formats import interval, loss_difference, percent, ratio, saved_hours, saved_interval
from dynbench.experiment.layout_answers import packed_pairs
from dynbench.experiment.offline_plans import Solved, static_over
from dynbench.experiment.quoted import quoted
from dynbench.experiment.report_settings import data_facts
from dynbench.experiment.report_tables import Sources, ranks_kind, report_tables
from dynbench.experiment.subject import Subject, mean_of
from dynbench.report import Template, substitute
from dynbench.runs.store import results_option
from dynbench.schedule.solve import cost_is_estimated
from dynbench.schedule.streams import MIN_BUFFER

Values = dict[str, Any]


def report_values(sources: Sources) -> Values:
    """Every placeholder that a template may use, with its text."""
    values = {
        **_identity(sources),
        **_arms(sources.subject, sources.template),
        **_tables(sources),
        **number_figures(sources.subject, sources.template, sources.folder),
    }
    values |= dict.fromkeys(
        (
            *answers.OWN,
            *conclusions.OWN,
            *compress_answers.OWN,
            *quality_answers.OWN,
            *steps_answers.OWN,
            "figure.number",
        )
    )
    values |= _facts(sources)
    speaker = Speaker(sources.subject, sources.template, values)
    values |= placeholders(speaker)
    values |= {**_sentences(sources, values), **_answers(speaker, sources.solved), **_beside_time(speaker)}
    return values | {"chapters": ""}


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
        "checks.count": str(len(subject.checks or ())),
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
    subject, template = sources.subject, sources.template
    arms = [*subject.arms, *(one.arm for one in subject.scaling)]
    return {
        "packed_pairs": list(packed_pairs(subject)),
        "marked": {name: texts.marked(subject, template, name) for name in arms},
        "plans": _plans(subject),
        "exposures": list(communication_answers.exposures(subject)),
        "not_exposed": communication_answers.why_not_exposed(subject),
        "strategy_pairs": strategy_answers.strategy_pairs(subject),
        "buckets": bucket_answers.buckets_of(subject),
        **data_facts(subject),
        **waste_answers.facts(subject, template),
        **profile_answers.facts(subject),
        **server_answers.facts(subject),
        **cost_answers.facts(subject, sources.solved),
        **memory_safety.facts(subject),
    }


def _answers(speaker: Speaker, solved: Solved | None) -> Values:
    """The questions of the report, each with its numbers."""
    return {
        **{f"say.{name}": answers.topic(speaker, name) for name in answers.TOPICS},
        "say.recommendation": conclusion(speaker),
        "say.quality": quality_answers.quality_sentence(speaker),
        "say.steps": steps_answers.steps_sentence(speaker),
        "say.losses": answers.losses(speaker),
        "say.planning": answers.planning(speaker),
        "say.prediction": answers.predictions(speaker, solved),
        "say.unplanned": answers.unplanned(speaker, solved),
    }


def _sentences(sources: Sources, values: Mapping[str, str | None]) -> Values:
    """The texts that depend on what was measured, filled in turn; empty where there is nothing to say."""
    subject, template = sources.subject, sources.template
    best, claim = best_of(subject), claim_of(subject)
    faster = best is not None and best.verdict is Verdict.FASTER
    checks = "none" if subject.checks is None else "found" if subject.checks else "clean"
    chosen = {
        "say.abstract": f"abstract.{claim}",
        **notes(subject),
        "say.ranks": f"ranks.{'virtual' if subject.virtual else 'real'}",
        "say.links": "links.note" if values["table.links"] else None,
        "say.virtual": "ranks.note" if subject.virtual else "ranks.emulated" if subject.links_gbps else None,
        "say.recovered": "recovered" if values["best.recovered"] and faster else None,
        "say.order": f"order.{_order(subject)}",
        "say.stages": "stages.note" if values["analysis.first_stage"] else None,
        "say.joint": f"joint.{_spread(subject)}" if values["analysis.together"] != "1" else None,
        "say.pairs": f"pairs.{_other_pairs(subject)}" if values["table.pairs"] else None,
        "say.work": f"work.{'alike' if claim == 'alike' else _work(best)}",
        "say.checks": f"checks.{checks}",
        "say.solve": f"solve.{_solve(sources.solved)}",
        "say.bound": "solve.bound" if values["table.solve"] else None,
        "say.arms": f"arms.{_arms_differ(subject, values)}",
        "say.partial": "partial.note" if any(member.summary.get("partial") for member in subject.members) else None,
        "say.greedy": "solve.greedy" if values["table.greedy"] else None,
    }
    said = {name: substitute(template, template.label(key), values) if key else "" for name, key in chosen.items()}
    shared = substitute(template, template.label("ranks.oversubscribed"), values) if subject.oversubscribed else ""
    estimates = [substitute(template, template.label(key), values) for key in _estimates(sources)]
    virtual = " ".join(part for part in (said["say.virtual"], shared) if part)
    return {**said, "say.virtual": virtual, "say.estimated": " ".join(estimates)}


def _beside_time(speaker: Speaker) -> Values:
    """Abstract and conclusion where time is no answer: of compressors by bytes and quality, of steps by losses.

    Empty for all else, and where nothing could be compared.
    """
    best = best_of(speaker.subject)
    if best is None or best.verdict is Verdict.INCOMPARABLE:
        return {}
    match speaker.subject.question.name:
        case "compress":
            abstract, *more = compress_answers.compress_sentences(speaker)
        case "steps":
            abstract, more = steps_answers.judged_sentences(speaker), []
        case _:
            return {}
    told = {"say.abstract": abstract, "say.recommendation": " ".join([abstract, *more])}
    return {**told, "say.other": "", "say.doubts": ""}


def _solve(solved: Solved | None) -> str:
    """Which text says what was planned offline."""
    if solved is None:
        return "none"
    return "found" if solved.run else "failed"


def _estimates(sources: Sources) -> list[str]:
    """Which texts say what of the planned lines was priced by what was measured under another layout."""
    solved, baseline = sources.solved or Solved(None), sources.subject.baseline
    costs = any(map(cost_is_estimated, solved.results))
    of_static = any(static_over(solved, line, baseline)[1] and not cost_is_estimated(line) for line in solved.results)
    return ["solve.estimated"] * costs + ["solve.static_estimated"] * of_static


def _arms_differ(subject: Subject, values: Mapping[str, str | None]) -> str:
    """Which text says in what the arms differ."""
    if subject.first.config is None:
        return "missing"
    if len(subject.arms) == 1:
        return "one"
    return "differ" if values["table.arms"] else "same"


def _most(solved: Solved | None, key: str) -> str | None:
    """The largest value of a number in the offline lines."""
    values = [value for line in (solved.results if solved else ()) if (value := lookup(line, key)) is not None]
    return f"{max(values):,.0f}" if values else None


def _order(subject: Subject) -> str:
    """Which text says in what order the launches ran; only `compare` plans it."""
    if subject.state is not None:
        return "interleaved" if subject.state.mode == "interleaved" else "abba"
    return "unplanned" if subject.comparisons else "none"


def _other_pairs(subject: Subject) -> str:
    """Which text says how pairs without the baseline were judged: of none, a single one, or several."""
    others = families(subject.pairs)[1]
    return "none" if not others else "other" if others == 1 else "others"


def _spread(subject: Subject) -> str:
    """Which text says what the joint intervals rest on."""
    return "arms" if any(pair.spread == "arms" for pair in subject.pairs) else "own"


def _work(best: ComparisonRecord | None) -> str:
    """Which text says how far the runs did the same work."""
    if best is None:
        return "none"
    if best.leak is not None and best.level == "tokens":
        return "leak"
    # Equal hashes are equal work whatever else differs; beyond them nothing vouches for it.
    return best.level if best.same_work or best.verdict is not Verdict.INCOMPARABLE else "different"


def _decimals(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
