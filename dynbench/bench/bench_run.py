"""A benchmark as an entry of the run registry: its cases measured on launched ranks, its rows stored whatever ends it.

The run folder holds bench.json (name and options), ranks/rows.jsonl (the rows as they come, raw), and, made of them at
every end, rows.csv, summary.json and what else the benchmark writes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Unpack

from dynbench.bench.base import Benchmark, Row
from dynbench.bench.record import (
    add_rows,
    cases_done,
    check_rows,
    read_benchmark,
    read_name,
    read_rows,
    write_benchmark,
)
from dynbench.config.layers import load_config
from dynbench.config.schema import Launch
from dynbench.engine.failure import forget_failures
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.launching.torchrun import launch_ranks
from dynbench.errors import DynbenchError, NothingFits, UsageError
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.provenance import memory_kills
from dynbench.runs.recorder import new_run, recorded
from dynbench.runs.run import Run, refuse_running
from dynbench.runs.store import Naming, RunStore
from dynbench.signals import handled
from dynbench.table_text import csv_text

RANK_MODULE = "dynbench.bench.rank"
POLL_S = 0.2
Report = Callable[[str], None]


@dataclass(frozen=True)
class BenchResult:
    """What a benchmark showed so far.

    Attributes:
        run: its entry in the registry.
        name: of the benchmark.
        benchmark: with its options.
        rows: one per case that was measured or could not be.
    """

    run: Run
    name: str
    benchmark: Benchmark
    rows: Sequence[Row]

    def as_dict(self) -> dict[str, object]:
        """What `bench --json` prints."""
        return {
            "name": self.name,
            "run": self.run.reference,
            "options": self.benchmark.options.model_dump(mode="json"),
            "rows": [row.as_dict() for row in self.rows],
            "summary": self.benchmark.summary(self.rows),
        }


def refuse_full_on_cpu(kind: str, benchmark: Benchmark) -> None:
    """Sizes for a GPU take hours on a CPU: those who want that say so.

    Raises:
        UsageError: its device is `auto`, it computes on GPUs, and there are too few.
    """
    gpus = this_machine().gpus
    if lacks_gpus(benchmark):
        wanted = "a GPU" if benchmark.processes == 1 else f"{benchmark.processes} GPUs"
        raise UsageError(
            f"bench {kind} --full has sizes for {wanted}, and here {'are none' if gpus == 0 else f'is {gpus}'}",
            "Leave --full out, or add --set device=cpu: it takes hours, and what does not fit is a row that says so.",
        )


def lacks_gpus(benchmark: Benchmark) -> bool:
    """Whether it would run on GPUs if there were as many as it has processes."""
    return benchmark.device == "auto" and this_machine().gpus < benchmark.processes


def start_bench(kind: str, benchmark: Benchmark, store: RunStore, **naming: Unpack[Naming]) -> Run:
    """Register a benchmark's run; nothing is measured yet.

    Args:
        kind: the benchmark's name.
        benchmark: with its options.
        store: registry that the run is put into.
        naming: what the run is called.

    Raises:
        UsageError: more ranks than GPUs; nothing was made.
    """
    processes, machine = benchmark.processes, this_machine()
    enough = "cuda" if machine.gpus >= processes else "cpu"
    settings = {
        "launch.nproc": processes,
        "launch.device": enough if benchmark.device == "auto" else benchmark.device,
        "launch.launcher": "torchrun",
        "launch.timeout_s": benchmark.timeout_s,
        "train.global_batch": processes,  # any that can be dealt
    }
    resolved = resolve(load_config(None, (), settings), machine, store)
    on_cpu = resolved.config.launch.device == "cpu"
    run = new_run(
        store,
        "bench",
        kind,
        resolved.config,
        decisions=resolved.decisions,
        data={},
        warnings=_crowded(processes, machine.cores) if on_cpu else (),
        **naming,
    )
    write_benchmark(run, kind, benchmark)
    return run


def measure_bench(run: Run, *, report: Report, on_rows: Callable[[BenchResult], None] = lambda _: None) -> BenchResult:
    """Measure every case that has no row yet; a case that runs out of memory is a row that says so.

    Args:
        run: what `start_bench` made, also one that was interrupted.
        report: called with the progress, a line at a time.
        on_rows: called with all rows once no more come, at whatever end.

    Raises:
        RecordError: the run's files cannot be read, or its rows are of other cases than are measured here.
        UsageError: another process is at it, or it was begun on a GPU and here is none.
        WorkerFailed, Interrupted: what was measured is stored, and is the error's `result`.
    """
    kind, benchmark = read_name(run), read_benchmark(run)
    refuse_running(run)
    check_rows(run, benchmark)
    if run.config().launch.device == "cuda" and not this_machine().gpus:
        raise UsageError(f"{run.label}: was begun on a GPU, and there is none here", "Go on with it where it began.")
    try:
        with recorded(run):
            forget_failures(run)
            try:
                with _watched(run, benchmark, report):
                    _measure(run, benchmark, run.config().launch)
            finally:
                with handled(signal.SIG_IGN):
                    result = BenchResult(run, kind, benchmark, read_rows(run))
                    if result.rows:
                        _write_results(result)
                        on_rows(result)
    except DynbenchError as error:
        error.result = BenchResult(run, kind, benchmark, read_rows(run)).as_dict()
        raise
    return result


def _crowded(processes: int, cores: int) -> list[str]:
    """What to warn of where processes take turns on the cores, and time each other's turns."""
    if processes <= cores:
        return []
    fewer = f"Set processes={cores}." if cores > 1 else "Measure on a machine with more."
    return [f"{processes} processes share {cores} usable cores: times include waiting for a core. {fewer}"]


def _measure(run: Run, benchmark: Benchmark, launch: Launch) -> None:
    """Launch the ranks of the first case without a row, for it and those after it that take as many.

    Ranks of which one took all memory are of no more use: they are launched anew for the cases after.
    """
    cases = benchmark.cases()
    while (done := cases_done(run)) < len(cases):
        with_ranks = launch.model_copy(update={"nproc": benchmark.ranks_of(cases[done])})
        kills = memory_kills()
        ended = launch_ranks(RANK_MODULE, [run], with_ranks)
        failure = ended.failure(run)
        if failure is None:
            assert cases_done(run) > done, "ranks end without a failure once they have measured"
            continue
        killed = -signal.SIGKILL in ended.exit_codes.values() and memory_kills() > kills
        if not (killed or isinstance(failure, NothingFits)):
            raise failure
        forget_failures(run)
        case = cases[cases_done(run)]
        about = (case.name, case.shape, case.dtype, launch.device)
        add_rows(run, [Row(*about, status="oom", reason=failure.message, columns=case.columns)])


@contextmanager
def _watched(run: Run, benchmark: Benchmark, report: Report) -> Iterator[None]:
    """Tell from a thread what is being measured, whenever a row was added."""
    stop = threading.Event()
    names = [case.name for case in benchmark.cases()]

    def watch() -> None:
        reported = -1
        while not stop.wait(POLL_S):
            if reported != (done := cases_done(run)) and done < len(names):
                reported = done
                report(f"case {done + 1} of {len(names)}: {names[done]}")

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _write_results(result: BenchResult) -> None:
    """Write what is made of the rows."""
    folder, benchmark, rows = result.run.path, result.benchmark, result.rows
    write_text(folder / "rows.csv", csv_text(row.as_dict() for row in rows))
    measured = len({row.case for row in rows if row.status == "ok"})
    facts = {"name": result.name, "cases": len(benchmark.cases()), "measured": measured}
    write_json(folder / "summary.json", {**facts, **benchmark.summary(rows)})
    for file, content in benchmark.further_files(rows).items():
        write_json(folder / file, content)
