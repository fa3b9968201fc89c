"""A benchmark as a run: rows kept at every end, out of memory is a row, and the files say the same.

Of a folder that somebody changed, what is none of its own is named, file and key.
"""

from __future__ import annotations

import csv
import errno
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from bench_jobs import made, rows_here

from dynbench.analysis.figures.bench import bench_collectives, bench_memory_timeline
from dynbench.bench import bench_run
from dynbench.bench import rank as bench_rank
from dynbench.bench.base import Case, Measured, Row
from dynbench.bench.collectives import COMM_FILE, Collectives
from dynbench.bench.memory import TIMELINES_FILE
from dynbench.bench.precision import PrecisionStudy
from dynbench.bench.rank import measured_row, rows_of, work
from dynbench.bench.record import (
    BENCH_FILE,
    add_line,
    add_rows,
    cases_done,
    check_rows,
    read_benchmark,
    read_rows,
    rows_file,
    write_benchmark,
)
from dynbench.config.schema import Launch
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.failure import failure_file, record_failure
from dynbench.engine.launching.resolve import Machine
from dynbench.engine.launching.torchrun import RanksEnded
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.errors import NothingFits, RecordError, Terminated, UsageError
from dynbench.experiment.assignment import suite
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import PrecisionOptions
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.table_text import csv_text

HERE = RankContext(0, 0, 1, torch.device("cpu"))
ONE = "bench collectives --set sizes_mib=3 --set sizes_mib=1,2,4 --set backend=gloo --set operations=all_reduce"
"""The last of an option holds."""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    return RunStore(tmp_path / "results")


Planted = dict[int, BaseException | RanksEnded]
KILLED = RanksEnded({0: -signal.SIGTERM, 1: -signal.SIGKILL})


def launched_at_once(planted: Planted) -> Callable[..., RanksEnded]:
    """Stands in for `launch_ranks`: measures at once; before a row by its number, ends with what is planted for it."""

    def launched(module: str, runs: Sequence[Run], launch: object) -> RanksEnded:
        (run,) = runs
        benchmark = read_benchmark(run)
        assert module == "dynbench.bench.rank" and not list(run.ranks_dir.glob("failure_*"))
        for case in benchmark.cases()[cases_done(run) :]:
            error = planted.get(cases_done(run))
            if isinstance(error, KeyboardInterrupt):
                raise error
            if isinstance(error, RanksEnded):
                return error
            if error is not None:
                record_failure(run, 1, error)
                return RanksEnded({1: 1})
            add_rows(run, [row(case)] if isinstance(benchmark, Collectives) else rows_of(benchmark, case, HERE))
        return RanksEnded({})

    return launched


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Planted:
    planted: Planted = {}
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once(planted))
    return planted


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """What makes this a machine of two cores and so many GPUs."""
    has: list[int] = []
    for module in (bench_run, suite):
        monkeypatch.setattr(module, "this_machine", lambda: Machine(cores=2, gpus=has[-1], bf16=has[-1] > 0))
    return has.append


def row(case: Case) -> Row:
    ms = 0.5 + case.shape[0] / 1e6
    columns = {"time": 1e3 * ms, "algbw": 1.0, "busbw": 1.0, "#wrong": 0, "p95": ms, "p99": ms}
    measured = Measured(np.array([ms, ms]), columns, reference_error=0.0)
    return measured_row(case, measured, torch.device("cpu"))


def test_rows_files_and_figure(store, ranks, cli):
    shown = cli(f"{ONE} --json --name c").json
    (run,) = store.list()
    assert (shown["command"], shown["name"], shown["run"]["status"]) == ("bench", "collectives", "completed")
    assert [line["case"] for line in shown["rows"]] == [f"all_reduce {mib} MiB float32 gloo x2" for mib in (1, 2, 4)]
    with (run.path / "rows.csv").open() as file:
        assert [line["size"] for line in csv.DictReader(file)] == [str(mib * 2**20) for mib in (1, 2, 4)]
    assert json.loads((run.path / "summary.json").read_text())["fit"]["alpha_ms"] == pytest.approx(0.5)
    assert (run.figures_dir / "bench_collectives.png").is_file() and shown["figures"]
    model = build_comm_model(str(run.path / COMM_FILE), store.root)
    assert model.allreduce_ms(2**20 / 1e6, 2) == pytest.approx(shown["rows"][0]["p50"])


@pytest.mark.parametrize(
    ("planted", "reason"),
    [(NothingFits("16 GiB asked for"), "rank 1: 16 GiB asked for"), (KILLED, "was killed by SIGKILL")],
    ids=["asked for", "killed"],
)
def test_a_case_without_memory_is_a_row_and_the_others_go_on(store, ranks, monkeypatch, cli, planted, reason):
    """Killed by the system for memory, as it counts."""
    ranks[1] = planted
    monkeypatch.setattr(bench_run, "memory_kills", partial(next, count()))
    shown = cli(f"{ONE} --json --no-figures").json
    assert [line["status"] for line in shown["rows"]] == ["ok", "oom", "ok"]
    assert reason in shown["rows"][1]["reason"] and shown["rows"][1]["p50"] is None
    (run,) = store.list()
    assert run.status is Status.COMPLETED and not failure_file(run, 1).exists()
    assert len(json.loads((run.path / COMM_FILE).read_text())["allreduce"]) == 2
    assert reason in cli(f"{ONE} --no-figures").out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (KeyboardInterrupt(), 130, Status.INTERRUPTED),
        (Terminated(signal.SIGTERM), 143, Status.INTERRUPTED),
        (ZeroDivisionError("planted"), 3, Status.FAILED),
        (OSError(errno.ENOSPC, "No space left on device"), 2, Status.FAILED),
        (KILLED, 3, Status.FAILED),  # and not for memory
    ],
    ids=["Ctrl-C", "SIGTERM", "error", "full disk", "killed"],
)
def test_what_was_measured_is_kept_and_shown_at_every_end(store, ranks, monkeypatch, cli, error, code, status):
    ranks[2] = error
    monkeypatch.setattr(bench_run, "memory_kills", lambda: 1)
    shown = cli(f"{ONE} --json", code=code).json
    (run,) = store.list()
    assert run.status is status and shown["error"]["exit_code"] == code
    assert [line["status"] for line in shown["rows"]] == ["ok", "ok"] and shown["run"]["id"] == run.id
    assert len((run.path / "rows.csv").read_text().splitlines()) == 3
    said = cli(ONE, code=code)
    assert "2097152" in said.out and "run: " in said.err and "Go on with: dynbench bench --resume" in said.err
    ranks.clear()
    gone_on = cli(f"bench --resume {run.id} --json").json
    assert gone_on["rows"][:2] == shown["rows"] and len(gone_on["rows"]) == 3 and run.status is Status.COMPLETED
    assert len((run.path / "rows.csv").read_text().splitlines()) == 4


def test_a_case_behind_a_hundred_that_were_not_measured_is_drawn(store):
    run = store.create("bench", "collectives")
    case = made("collectives", backend=("gloo",)).cases()[0]
    skipped = Row(case.name, case.shape, case.dtype, "cpu", status="skipped", columns=case.columns)
    write_text(run.path / "rows.csv", csv_text(each.as_dict() for each in [*[skipped] * 120, row(case)]))
    assert len(bench_collectives(run).table) == 1


def test_a_timeline_that_was_taken_twice_is_drawn_once(store):
    run = store.create("bench", "memory")
    line = {"size": "tiny", "dtype": "float32", "phase": "step", "context": 64, "batch": 4, "ms": [0, 1]}
    for mb in ([9, 9], [1, 2]):
        add_line(run.ranks_dir / TIMELINES_FILE, {**line, "mb": mb})
    assert bench_memory_timeline(run).table["mb"].to_list() == [1, 2]


def test_what_was_begun_on_a_gpu_does_not_go_on_without_one(store, ranks, machine, cli):
    ranks[1] = Terminated(signal.SIGTERM)
    machine(1)
    cli("bench precision --set features=16", code=143)
    machine(0)
    ranks.clear()
    assert "was begun on a GPU, and there is none here" in cli("bench --resume @latest", code=2).err
    assert store.resolve("@latest").status is Status.INTERRUPTED


def test_sizes_for_a_gpu_are_refused_without_one_unless_they_are_asked_for(store, ranks, machine, cli):
    machine(0)
    for name in ("assignment", *(name for name, entry in BENCHMARKS.items() if entry.full and name != "collectives")):
        assert "has sizes for" in cli(f"bench {name} --full", code=2).err
    assert not store.root.exists()
    tiny = "bench precision --set features=8 --set samples=2 --set iterations=1 --set device=cpu"
    for line in (tiny, ONE):
        cli(f"{line} --full --no-figures")
    machine(1)
    assert bench_run.lacks_gpus(made("optimizer")) and not bench_run.lacks_gpus(made("precision"))


class Parts(PrecisionStudy):
    """Two rows per case, and cases of one rank and of two."""

    processes = 2

    def cases(self) -> list[Case]:
        return [Case(name, [1], "float32") for name in ("a", "b", "c", "d")]

    def ranks_of(self, case: Case) -> int:
        return 2 if case.name == "c" else 1

    def measure(self, case: Case, context: RankContext) -> list[Measured]:
        return [Measured(np.array([part]), {"part": part}) for part in (1.0, 2.0)]


def test_cases_of_several_rows_and_of_several_numbers_of_ranks(store, ranks, monkeypatch):
    launched_ranks: list[int] = []

    def launched(module: str, runs: Sequence[Run], launch: Launch) -> RanksEnded:
        launched_ranks.append(launch.nproc)
        work(runs, [], replace(HERE, world_size=launch.nproc), StopFlag())
        return RanksEnded({})

    monkeypatch.setattr(bench_run, "launch_ranks", launched)
    monkeypatch.setattr(bench_rank, "broadcast_integers", lambda values, n: values)
    for module in (bench_rank, bench_run):
        monkeypatch.setattr(module, "read_benchmark", lambda run: Parts(PrecisionOptions()))
    run = bench_run.start_bench("precision", Parts(PrecisionOptions()), store)
    result = bench_run.measure_bench(run, report=lambda _: None)
    assert launched_ranks == [1, 2, 1] and cases_done(result.run) == 4
    assert [(each.case, each.columns["part"]) for each in result.rows] == [(n, p) for n in "abcd" for p in (1.0, 2.0)]


@pytest.mark.parametrize(("processes", "said"), [(2, None), (3, "3 processes share 2 usable cores")])
def test_more_processes_than_cores_are_told(processes, said, store, ranks, machine, cli):
    machine(0)
    cli(f"bench collectives --no-figures --set processes={processes}")
    warnings = store.list()[0].record().warnings
    assert [str(said) in warning for warning in warnings] == [True] * (said is not None)


@pytest.mark.slow
def test_what_many_cases_compile_is_compiled_in_all_of_them():
    """torch compiles one function eight times in a process, and runs it as it is in further cases, without a word."""
    graphs: list[torch.fx.GraphModule] = []

    class Compiles(PrecisionStudy):
        def cases(self) -> list[Case]:
            return [Case(str(number), [1], "float32") for number in range(14)]

        def measure(self, case: Case, context: RankContext) -> Measured:
            backend = lambda graph, _: graphs.append(graph) or graph.forward  # noqa: E731
            torch.compile(lambda x: 2 * x, backend=backend)(torch.ones(2, 3))
            return Measured(np.ones(1), {})

    rows_here(Compiles(PrecisionOptions()))
    assert len(graphs) == 14


@pytest.fixture
def run(store: RunStore) -> Run:
    run = store.create("bench", "collectives")
    write_benchmark(run, "collectives", made("collectives", iterations=3))
    add_rows(run, [Row("all_reduce 1 MiB", (262144,), "float32", "cpu")])
    return run


def row_of(case: Case) -> Row:
    return Row(case.name, case.shape, case.dtype, "cpu", columns=case.columns)


def test_it_is_read_as_it_was_written(run):
    assert read_benchmark(run).options == made("collectives", iterations=3).options
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB"]


@pytest.mark.parametrize(
    ("name", "options", "error", "said"),
    [
        *(
            ("collectives", {key: value}, RecordError, rf"{BENCH_FILE}: options\.{key}: ")
            for key, value in (("iterations", "many"), ("itreations", 3), ("sizes_mib", []))
        ),
        ("../x", {}, UsageError, "is not a benchmark"),
    ],
)
def test_a_benchmark_or_options_that_are_none(run, name, options, error, said):
    (run.path / BENCH_FILE).write_text(json.dumps({"name": name, "options": options}))
    with pytest.raises(error, match=said):
        read_benchmark(run)


ROW = '{"case": "a", "shape": [1], "dtype": "float32", "device": "cpu"'
WRONG = ('"p50": "x"', '"mean": 1e999', '"sd": NaN', '"shape": 3', '"status": "fine"', '"columns": {"x": 1e999}')
NO_ROWS = ("{", "3", '[{"case": 1}]', '[{"other": 1}]', "[1]", "[" * 100_000, "[]")


@pytest.mark.parametrize("line", [*NO_ROWS, *(f"[{ROW}, {more}}}]" for more in WRONG)])
def test_rows_that_are_none(run, line):
    rows_file(run).write_text(f"{line}\n")
    with pytest.raises(RecordError, match="holds what is no row of a benchmark"):
        read_rows(run)


def test_a_row_goes_in_the_place_of_a_torn_one(run):
    with rows_file(run).open("a") as file:
        file.write('[{"case": "b"')
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB"] and cases_done(run) == 1
    add_rows(run, [Row("c", (1,), "float32", "cpu", columns={"mfu": float("nan")})] * 2)
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB", "c", "c"] and cases_done(run) == 2
    assert read_rows(run)[1].columns == {"mfu": None}


def test_a_later_version_may_say_more_of_a_row(run):
    rows_file(run).write_text(f'[{ROW}, "p99": 3.0}}]\n')
    assert [row.case for row in read_rows(run)] == ["a"]


def test_rows_of_other_cases_are_not_gone_on_with(run):
    benchmark = read_benchmark(run)
    first, second = benchmark.cases()[:2]
    with pytest.raises(RecordError, match=f"'all_reduce 1 MiB' where, here and now, case 1 is '{first.name}'"):
        check_rows(run, benchmark)
    rows_file(run).unlink()
    add_rows(run, [row_of(first)] * 2)
    check_rows(run, benchmark)
    add_rows(run, [replace(row_of(second), columns={})])
    with pytest.raises(RecordError, match="holds rows of"):
        check_rows(run, benchmark)


def test_rows_without_a_summary_are_not_gone_on_with(run):
    benchmark = made("nsys")
    rows_file(run).unlink()
    add_rows(run, [replace(row_of(benchmark.cases()[0]), mean=1.0)])
    with pytest.raises(RecordError, match="holds rows without a summary"):
        check_rows(run, benchmark)
