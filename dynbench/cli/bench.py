"""`dynbench bench`: one part of training measured alone, and the assignment's questions answered from such parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Columns, Settings, next_command, print_lines, print_records
from dynbench.cli.options import command
from dynbench.cli.plugins import show_kinds
from dynbench.errors import DynbenchError, Interrupted, StorageError, UsageError, WorkerFailed

if TYPE_CHECKING:
    from pathlib import Path

    from dynbench.bench.bench_run import BenchResult
    from dynbench.experiment.assignment.questions import Answer
    from dynbench.runs.run import Run

ASSIGNMENT = "assignment"
ASSIGNMENT_LINE: Mapping[str, object] = {
    "kind": "benchmarks",
    "name": ASSIGNMENT,
    "summary": "all that the questions of the systems assignment are answered from, and the report",
    "key": None,
    "missing": None,
    "options": [],
}
"""As `bench ls` lists it among the benchmarks."""
EPILOG = """\b
Examples:
  dynbench bench ls
  dynbench bench collectives --set sizes_mib=1,10,100 --set processes=4
  dynbench bench nsys --set sizes=small --set contexts=128,256
  dynbench bench flash --set lengths=4096 --set batch=8
  dynbench bench accounting --set fsdp=32
  dynbench bench assignment                  every question of the systems assignment, with a report
  dynbench bench --resume @latest:bench      measure what an interrupted run lacks
"""


@command(named=True, table=True, epilog=EPILOG)
@click.argument("benchmark", metavar="[NAME]", default="ls")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An option of the benchmark; repeat.")
@click.option("--full", is_flag=True, help="The sizes for a GPU; small ones are the default.")
@click.option("--resume", metavar="RUN", help="Measure what an interrupted run of the benchmark has no row of.")
@click.option("--no-figures", is_flag=True, help="Leave the figures out.")
def bench(settings: Settings, benchmark: str, full: bool, resume: str | None, no_figures: bool) -> None:
    """Measure one part of training alone, without a whole run: what collectives, attention or a model's step cost.

    NAME is a benchmark, small by default; without a name, or as `ls`, all of them are listed with their options.

    With --full, what would take hours on a CPU wants a GPU, or --set device=cpu.

    `assignment` runs all that the questions of the systems assignment are answered from, and writes the report.
    """
    given = full or settings.overrides or any(settings.naming.values())
    if benchmark == "ls" and resume is None:
        if given:
            raise click.UsageError("no benchmark is named, and options are given; `dynbench bench ls` lists them all.")
        show_kinds(settings, ["benchmarks"], [ASSIGNMENT_LINE])
        return
    from dynbench.analysis.figures import draw_figures
    from dynbench.bench.bench_run import measure_bench
    from dynbench.bench.record import read_benchmark
    from dynbench.experiment.assignment.suite import holds_assignment
    from dynbench.runs.recorder import named

    if resume is None:
        run = _started(settings, benchmark, full)
    elif benchmark != "ls" or given:
        raise UsageError(
            "--resume goes on with the run's own benchmark and options and takes no others",
            "Leave them out, or start a new run without --resume.",
        )
    else:
        run = settings.store().resolve(resume)
    if holds_assignment(run):
        with _resumable(run):
            _run_assignment(settings, run, figures=not no_figures)
        return
    found = read_benchmark(run)
    ended: list[BenchResult] = []
    try:
        with _resumable(run), settings.working(benchmark) as report:
            result = measure_bench(run, report=report, on_rows=ended.append)
            with named(result.run):
                figures = [] if no_figures else draw_figures("bench", result.run, result.run.figures_dir)
    finally:  # also of what was measured until an error or a signal
        for so_far in ended if settings.for_people else ():
            _show_rows(found.headers, [row.as_dict() for row in so_far.rows])
    pictures = [path for path in figures if path.suffix == ".png"]
    if not settings.printed({**result.as_dict(), "figures": pictures}, str(result.run.path)):
        drawn = f"figures  {len(pictures)} in {result.run.figures_dir}" if pictures else None
        print_lines("", *found.said(result.rows), f"run      {result.run.path}", drawn)


def _started(settings: Settings, benchmark: str, full: bool) -> Run:
    """A new run of a benchmark, or of the assignment's list."""
    from dynbench.bench.bench_run import refuse_full_on_cpu, start_bench
    from dynbench.bench.record import read_options
    from dynbench.experiment.assignment.suite import start_suite
    from dynbench.plugins import BENCHMARKS

    if benchmark == ASSIGNMENT:
        if settings.overrides:
            raise UsageError(
                f"bench {ASSIGNMENT} takes no --set: its benchmarks have options of their own",
                "Run one of them by itself: dynbench bench ls lists them.",
            )
        return start_suite(settings.store(), full=full, **settings.naming)
    entry = BENCHMARKS.find(benchmark, beside=[ASSIGNMENT])
    options = read_options(benchmark, [*(entry.full if full else ()), *settings.overrides])
    found = entry.load()(options)
    if full and entry.full:
        refuse_full_on_cpu(benchmark, found)
    return start_bench(benchmark, found, settings.store(), **settings.naming)


@contextmanager
def _resumable(run: Run) -> Iterator[None]:
    """What may be otherwise the next time has what goes on with the run as its hint, not what does with a part."""
    try:
        yield
    except (Interrupted, StorageError, WorkerFailed) as error:
        advice = error.hint.partition("Go on with:")[0].strip()
        resume = next_command("bench", "--resume", run.label, root=run.path.parent)
        error.hint = f"{advice} Go on with: {resume}".strip()
        raise


def _show_rows(headers: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> None:
    """The table under the benchmark's headers; where a case could not be measured, with what became of each."""
    why = ("status", "reason") if any(row["reason"] for row in rows) else ()
    shown = {**headers, **dict.fromkeys(why)}
    cells = [{column: _cell(row.get(column)) for column in shown} for row in rows]
    print_records({header or column: column for column, header in shown.items()}, cells, rows)


def _cell(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _run_assignment(settings: Settings, suite: Run, *, figures: bool) -> None:
    """Measure what is missing, write the reports, and print which questions have an answer; also on Ctrl-C."""
    from dynbench.experiment.assignment.questions import answers
    from dynbench.experiment.assignment.suite import run_suite, tables_of
    from dynbench.runs.run import refuse_running
    from dynbench.runs.store import RunStore

    refuse_running(suite)
    store = RunStore.of(suite)
    try:
        with settings.working(ASSIGNMENT) as report:
            paths = run_suite(suite, store, report, figures=figures)
    except DynbenchError as error:
        found = answers(tables_of(suite, store))
        error.result = _assignment_facts(suite, found, sorted(suite.path.glob("report.*")))
        if settings.for_people:
            _show_answers(found)
        raise
    found = answers(tables_of(suite, store))
    if not settings.printed(_assignment_facts(suite, found, paths), [str(path) for path in paths]):
        _show_answers(found)
        print_lines("", *(f"report   {path}" for path in paths))


def _assignment_facts(suite: Run, found: Sequence[Answer], paths: Sequence[Path]) -> dict[str, object]:
    """What `--json` prints."""
    questions = [each.as_dict() for each in found]
    return {"name": ASSIGNMENT, "run": suite.reference, "questions": questions, "reports": list(paths)}


def _show_answers(found: Sequence[Answer]) -> None:
    columns: Columns = {
        "question": lambda it: it["answer"].question.number,
        "state": "shown_state",
        "next": lambda it: _next(it["answer"]),
    }
    rows = [{"answer": each, "shown_state": each.state.replace("_", " ")} for each in found]
    print_records(columns, rows, [each.as_dict() for each in found])
    counts = Counter(row["shown_state"] for row in rows)
    print_lines("", f"{len(found)} questions: " + ", ".join(f"{count} {state}" for state, count in counts.items()))


def _next(answer: Answer) -> str:
    """What makes its rows, or answers it in full."""
    if answer.state == "answered":
        return ""
    tried = answer.statements or answer.reasons
    return answer.question.gpu or answer.question.command if tried else answer.question.command
