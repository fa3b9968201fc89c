"""`dynbench analyze`: merged rows, summary, checks and figures of a run; the comparison of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, fits, next_command, print_json, print_lines, print_results, show_table
from dynbench.cli.options import ANY_PATH, GATE, QUESTION, command
from dynbench.errors import UsageError

if TYPE_CHECKING:
    from dynbench.analysis.analyze import Report
    from dynbench.analysis.questions import Question
    from dynbench.analysis.record import Finding
    from dynbench.config.schema import Analysis
    from dynbench.runs.run import Run
    from dynbench.runs.store import RunStore
    from dynbench.table_text import Table

LINE_EVERY_S = 5.0
FINDINGS_OF_A_KIND = 3
"""Shown without `-v`."""

EPILOG = """\b
Examples:
  dynbench analyze runA                  one run: summary, checks, figures
  dynbench analyze runA runB             the comparison; runA is the baseline
  dynbench analyze runA runB --strict    exit 6 when a check warns
  dynbench analyze runA runB --fail-on slower,different-loss
                                         exit 6 when runB is SLOWER, or trains another model
  dynbench analyze @latest:compare --baseline part
                                         the same launches, compared with the arm part
  dynbench runs export runA runC -o base.zip
  dynbench analyze runX runY --against base.zip --fail-on slower
                                         launches of today against stored ones
"""


@command(options=(QUESTION, *GATE), config=("analysis",), table=True, epilog=EPILOG)
@click.argument("refs", nargs=-1, required=True, metavar="RUN [RUN ...]")
@click.option("--against", type=ANY_PATH, metavar="FILE", help="Baseline: launches from `runs export`.")
@click.option("--arm", metavar="NAME", help="Arm of --against FILE, where it holds several.")
@click.option("--baseline", metavar="ARM", help="Arm that the others are compared with.  [default: the first]")
@click.option(
    "--link",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GBPS",
    help="Predict each arm's step over a link of this speed.",
)
@click.option("--force", is_flag=True, help="Show the numbers of runs that cannot be compared.")
@click.option("--csv", is_flag=True, help="Write merged_metrics.csv also above a million rows.")
def analyze(
    settings: Settings,
    refs: tuple[str, ...],
    against: Path | None,
    arm: str | None,
    baseline: str | None,
    question: str | None,
    strict: bool,
    fail_on: tuple[str, ...],
    link: float | None,
    force: bool,
    csv: bool,
) -> None:
    """Analyze RUNs: ids, unique prefixes, names, @latest.

    Runs of equal configuration but for the seed are launches of one arm; the first run's arm is the baseline.
    A comparison named alone is analyzed again in its own folder, an exported file in a new entry of the registry.
    With another --baseline so are its reports, until it is analyzed with the recipe's again.
    """
    from dynbench.analysis.analyze import analyze_runs
    from dynbench.analysis.gate import judge, read_conditions
    from dynbench.analysis.links import link_sentence, over_link
    from dynbench.analysis.questions import question_named
    from dynbench.analysis.selection import select_runs

    conditions = read_conditions(fail_on)
    if question is not None:
        question_named(question)
    if force and conditions:
        raise UsageError("--force shows numbers without a verdict, --fail-on asks for one", "Leave one of them out.")
    if baseline is not None and against is not None:
        raise UsageError(
            f"--baseline {baseline} and --against {against} both say what the runs are compared with",
            "Leave one of them out.",
        )
    store = settings.store()
    with select_runs(refs, store, against, arm) as chosen:
        with settings.working("reading runs", line_every_s=LINE_EVERY_S) as show:
            report = analyze_runs(
                replace(chosen, question=question or chosen.question),
                store,
                _analysis_settings(settings, chosen.into),
                lead=baseline,
                force=force,
                csv=True if csv else None,
                on_progress=show,
            )
            documents = _reports_anew(report, store)
        if settings.quiet and not settings.as_json:
            show_verdicts(report)
        elif not settings.as_json:
            show_report(report, settings, "run it again with -v", documents)
        record = report.record()
        found = record.as_dict()
        if link is not None:
            predicted = over_link(report.launches, link)
            found["link"] = {"gbps": link, "predicted_ms": predicted}
            if not settings.as_json:
                print_lines(f"\n{link_sentence(predicted, link)}")
        judge(conditions, strict, record.comparisons, report.findings, found)
        if settings.as_json:
            print_json(found)


def _reports_anew(report: Report, store: RunStore) -> list[Path]:
    """Reports that lie in the folder already, made again from the new analysis."""
    from dynbench.experiment.report_input import read_report_input
    from dynbench.experiment.reporting import report_files, write_report

    found = report_files(report.folder.path)
    if not found:
        return []
    given = read_report_input(store, report.folder)
    return [write_report(given, language, form) for language, form in found]


def _analysis_settings(settings: Settings, again: Run | None) -> Analysis:
    """As given; without any, those that a comparison was made with."""
    if again is None or settings.configures or not again.config_file.is_file():
        return settings.config().analysis
    return again.config().analysis


def show_report(report: Report, settings: Settings, more: str, documents: Sequence[Path] = ()) -> None:
    """Verdicts, an overview, notes, what the checks found, where the files are, and what to do next.

    Under `-v`, and where `--format` asks for tables, all metrics; under `-v` who beats whom too.

    Args:
        report: the analysis.
        settings: how it is shown.
        more: what shows all metrics, where they are left out.
        documents: reports already written from it.
    """
    from dynbench.analysis.summary import arm_records, further_tables, metrics, overview_table, rank_notes
    from dynbench.analysis.tables import RANKING, held_jointly

    verbose = settings.verbosity > 0
    if report.question is not None:
        _show_comparisons(report, report.question)
    first = overview_table(report) if report.comparisons else None
    tables = [first] if first else []
    if verbose or not first or settings.form != "table":
        tables += filter(_tells_apart, [*metrics(report, fits), *further_tables(report)])
    print_results(tables, arm_records(report))
    print_lines(*(f"\n{note}" for note in rank_notes(report)))
    print_lines(*(f"\npartial: {run.label}: {'; '.join(run.lacks)}" for run in report.runs if run.partial))
    if len(report.runs) > 1 and not report.comparisons:
        print_lines(f"\nno comparison: all runs are launches of one arm, {report.arms[0].label}.")
    pairs = [pair.pair_record() for pair in report.pairs]
    if verbose and (ranked := RANKING.table(pairs)):
        print_lines("")
        show_table(ranked)
        print_lines(held_jointly(pairs))
    following = "open the HTML report in a browser"
    if not any(path.suffix == ".html" for path in documents):
        following = next_command("report", report.folder.label, root=report.folder.path.parent)
    print_lines(
        "",
        *_findings(report, None if verbose else FINDINGS_OF_A_KIND),
        "",
        f"more     {more}" if first and not verbose else None,
        f"figures  {report.folder.figures_dir}",
        f"folder   {report.folder.path}",
        *(f"report   {path}" for path in documents),
        f"next     {following}",
    )


def _tells_apart(table: Table) -> bool:
    """Whether anything differs between the rows of a table, beyond its keys; what there is of a single row does."""
    columns = list(zip(*table.rows, strict=True))[table.keys :]
    return len(table.rows) < 2 or any(len(set(column)) > 1 for column in columns)


def _show_comparisons(report: Report, question: Question) -> None:
    """A line per verdict, with what no table says of it below; then what the numbers mean."""
    from dynbench.analysis.summary import verdict_legend, verdict_lines, weights_note

    print_lines(f"question: {question.name}, {question.description}\n")
    for line, comparison in zip(verdict_lines(report.judged), report.judged, strict=True):
        note = weights_note(comparison)
        print_lines(
            line,
            f"  {comparison.reason}" if comparison.forbidden else None,
            f"  {note}" if note else None,
            *(f"  left out: {reason}" for reason in comparison.pairing.left_out),
        )
    if report.judged:
        print_lines(*(f"({line})" for line in verdict_legend(report)), "")


def show_verdicts(report: Report) -> None:
    """A line per comparison; without any, the folder."""
    from dynbench.analysis.summary import verdict_lines

    print_lines(*(verdict_lines(report.judged) or [str(report.folder.path)]))


def _findings(report: Report, most: int | None) -> Iterator[str]:
    """Every finding of the checks: what was seen, the limit, the next step; said once where several are alike.

    Args:
        report: the analysis.
        most: of findings of one kind so many are shown, and the others counted; None shows all.
    """
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for item in sorted(report.findings, key=lambda item: item.id == "few_launches"):  # verdicts say how many there are
        alike.setdefault((item.severity, item.id, item.hint), []).append(item)
    for (severity, check, hint), (first, *others) in alike.items():
        yield f"{severity}: {check}: {first.seen} (limit: {first.limit})"
        for item in others[: None if most is None else most - 1]:
            yield f"      {item.seen}" + (f" (limit: {item.limit})" if item.limit != first.limit else "")
        if most is not None and len(others) >= most:
            yield f"      and {len(others) - most + 1} more; -v lists them"
        yield f"      {hint}"
    if not alike:
        yield "checks: nothing found"
