"""`dynbench bench assignment`: every question of the systems assignment, measured small and answered in a report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dynbench.cli.output import print_for_script, print_line, print_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dynbench.cli.options import Settings
    from dynbench.experiment.assignment.questions import Answer
    from dynbench.runs.run import Run

NAME = "assignment"
LINE: Mapping[str, object] = {
    "kind": "benchmarks",
    "name": NAME,
    "summary": "all that the questions of the systems assignment are answered from, and the report",
    "key": None,
    "missing": None,
    "options": [],
}
"""As `bench ls` lists it among the benchmarks."""


def start(settings: Settings, full: bool, name: str | None, replace: bool) -> Run:
    """Register the list.

    Raises:
        UsageError: options of single benchmarks were given too.
    """
    from dynbench.errors import UsageError
    from dynbench.experiment.assignment.suite import start_suite

    if settings.overrides:
        raise UsageError(
            f"bench {NAME} takes no --set: its benchmarks have options of their own",
            "Run one of them by itself: dynbench bench ls lists them.",
        )
    return start_suite(settings.store(), full=full, name=name, replace=replace)


def run(settings: Settings, suite: Run, *, figures: bool) -> None:
    """Measure what is missing, write the reports, and print which questions have an answer; also on Ctrl-C."""
    from dynbench.cli.console import working
    from dynbench.errors import DynbenchError
    from dynbench.experiment.assignment.questions import answers
    from dynbench.experiment.assignment.suite import run_suite, tables_of
    from dynbench.runs.run import refuse_running
    from dynbench.runs.store import RunStore

    refuse_running(suite)
    store = RunStore.of(suite)
    try:
        with working(settings.shows_progress, NAME) as report:
            paths = run_suite(suite, store, report, figures=figures)
    except DynbenchError as error:
        found = answers(tables_of(suite, store))
        error.result = as_dict(suite, found, sorted(suite.path.glob("report.*")))
        if not settings.as_json and not settings.quiet:
            _show(found)
        raise
    found = answers(tables_of(suite, store))
    if not print_for_script(settings, "bench", as_dict(suite, found, paths), [str(path) for path in paths]):
        _show(found)
        print_line("")
        for path in paths:
            print_line(f"report   {path}")


def as_dict(suite: Run, found: Sequence[Answer], paths: Sequence[Path]) -> dict[str, object]:
    """What `--json` prints."""
    about = {"id": suite.id, "name": suite.name, "path": suite.path, "status": suite.status}
    return {"name": NAME, "run": about, "questions": [each.as_dict() for each in found], "reports": list(paths)}


def _show(found: Sequence[Answer]) -> None:
    records = [each.as_dict() for each in found]
    cells = [(each.question.number, each.state.replace("_", " "), _next(each)) for each in found]
    print_result(("question", "state", "next"), cells, records)
    counts = Counter(each.state.replace("_", " ") for each in found)
    print_line("")
    print_line(f"{len(found)} questions: " + ", ".join(f"{count} {state}" for state, count in counts.items()))


def _next(answer: Answer) -> str:
    """What makes its rows, or answers it in full."""
    if answer.state == "answered":
        return ""
    tried = answer.statements or answer.reasons
    return answer.question.gpu or answer.question.command if tried else answer.question.command
