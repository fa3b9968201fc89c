"""Of several ranks that end, the cause is found and reported in the user's words, with where each rank was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.engine.failure import (
    BUILDING,
    CONNECTING,
    PREPARING,
    Position,
    PositionFile,
    RankFailure,
    is_aftermath,
    keep_failure,
    last_position,
    read_failures,
    record_failure,
    root_cause,
    unfinished_ranks,
)
from dynbench.engine.rank.rank_facts import exchange_cause
from dynbench.engine.turn_order import Turns
from dynbench.errors import (
    BatchTooLarge,
    ConfigError,
    DataError,
    DynbenchError,
    LeakFound,
    NothingFits,
    StorageError,
    UsageError,
    WorkerFailed,
)
from dynbench.runs.atomic import reserve
from dynbench.runs.run import Run

CLOSED = RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:39121")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "a-run")
    run.ranks_dir.mkdir(parents=True)
    return run


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_silent_death_comes_before_aftermath(run: Run) -> None:
    record_failure(run, 0, raised(CLOSED))
    error = root_cause(run, {0: 1, 1: -9})
    assert isinstance(error, WorkerFailed) and error.rank == 1
    assert "killed by SIGKILL" in error.message and "memory" in error.hint


def test_a_terminated_rank_is_blamed_last(run: Run) -> None:
    assert "rank 1 was killed by SIGABRT" in root_cause(run, {0: -15, 1: -6}).message


def test_the_earlier_of_two_causes(run: Run) -> None:
    record_failure(run, 1, raised(KeyError("first")))
    record_failure(run, 0, raised(KeyError("second")))
    assert [failure.rank for failure in read_failures(run)] == [1, 0]
    assert "first" in root_cause(run, {0: 1, 1: 1}).message


@pytest.mark.parametrize("node_error", [None, WorkerFailed("the nodes lost each other")])
@pytest.mark.parametrize("exit_code", [1, -signal.SIGKILL, -signal.SIGTERM])
@pytest.mark.parametrize("words", list(product(["memory", "worker", "aftermath", "stopped", None], repeat=2)))
def test_whatever_the_ranks_of_two_nodes_said(
    run: Run, words: tuple[str | None, str | None], exit_code: int, node_error: WorkerFailed | None
) -> None:
    """Rank 0 is this node's and ended with `exit_code`; rank 1 is another node's, of which its word is all there is."""
    for rank, kind in enumerate(words):
        if kind is not None:
            keep_failure(run, RankFailure(rank, rank, "host", kind, "E", f"{kind} of {rank}", ""))
    found = root_cause(run, {0: exit_code}, node_error)
    told = [rank for rank, kind in enumerate(words) if kind is not None]
    causes = [rank for rank in told if words[rank] in ("memory", "worker")]
    if causes:
        assert f"{words[causes[0]]} of {causes[0]}" in found.message
        assert found.exit_code == (4 if words[causes[0]] == "memory" else 3)
    elif words[0] is None:
        assert found.message.startswith("rank 0 ") and found.exit_code == 3
    elif node_error is not None:
        assert found is node_error
    else:
        assert f"{words[told[0]]} of {told[0]}" in found.message and found.exit_code == 3


def test_the_first_word_of_a_rank_stays(run: Run) -> None:
    record_failure(run, 0, raised(KeyError("first")))
    record_failure(run, 0, raised(CLOSED))
    assert "first" in root_cause(run, {0: 1}).message


def test_aftermath_sends_to_the_other_node(run: Run) -> None:
    record_failure(run, 0, raised(CLOSED))
    assert "another node" in root_cause(run, {0: 1}).hint


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cause_reaches_the_ranks_that_cannot_see_its_file(tmp_path: Path, order: tuple[int, int]) -> None:
    """Two ranks that fail by themselves and one that only notices, each with a folder of its own."""
    store = dist.HashStore()
    failures = [RankFailure(rank, rank, "host", "memory", "E", f"full {rank}", "") for rank in range(2)]
    noticed = RankFailure(2, 2, "host", "aftermath", "E", "closed", "")
    assert exchange_cause(store, noticed) is None
    first = failures[order[0]]
    assert [exchange_cause(store, failures[rank]) for rank in order] == [first, first]
    assert exchange_cause(store, noticed) == first


@pytest.mark.parametrize(
    "error",
    [
        DataError("x.tsv:3: label 'a' is not an integer", "Labels are integers."),
        UsageError("sync.name: no", "Known: ddp."),
        LeakFound("they see each other", "a hint"),
    ],
)
def test_mistakes_of_the_user_keep_their_class_and_text(run: Run, error: DynbenchError) -> None:
    record_failure(run, 0, raised(error))
    found = root_cause(run, {0: 1})
    assert (type(found), found.message, found.hint) == (type(error), error.message, error.hint)


def test_several_config_problems_stay_several(run: Run) -> None:
    record_failure(run, 0, raised(ConfigError(["a: 1", "b: 2"], "Mend them.")))
    found = root_cause(run, {0: 1})
    assert isinstance(found, ConfigError) and found.problems == ("a: 1", "b: 2")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        MemoryError(),
        NothingFits("step 0: 3 samples do not fit"),
    ],
)
def test_memory(run: Run, error: BaseException) -> None:
    record_failure(run, 1, raised(error))
    found = root_cause(run, {1: 1})
    assert isinstance(found, NothingFits) and found.exit_code == 4 and "rank 1" in found.message


@pytest.mark.parametrize("kind", [NothingFits, BatchTooLarge])
def test_a_batch_beyond_the_capacities_is_not_out_of_memory(run: Run, kind: type[NothingFits]) -> None:
    record_failure(run, 1, raised(kind("step 0: 3 samples do not fit", "Set --global-batch 2.")))
    found = root_cause(run, {1: 1})
    assert type(found) is kind
    assert (found.message, found.hint) == ("rank 1: step 0: 3 samples do not fit", "Set --global-batch 2.")


def test_nothing_known(run: Run) -> None:
    assert "no record" in root_cause(run, {}).message


def test_record_has_nanoseconds_and_class(run: Run) -> None:
    record_failure(run, 2, raised(ValueError("several\nlines")))
    [record] = read_failures(run)
    assert record.time_ns > 1e18 and record.exception == "ValueError"
    assert "several" in record.message and "\n" not in record.message


def test_a_full_disk_is_recorded_in_the_room_kept_for_it(run: Run) -> None:
    reserve(run.path)
    record_failure(run, 1, raised(OSError(errno.ENOSPC, "No space left on device")))
    error = root_cause(run, {1: 1})
    assert "No space left on device" in error.message and "Free some space" in error.hint
    assert [path for path in run.path.iterdir() if path.is_file()] == []


def test_only_what_ranks_say_of_each_other_is_aftermath() -> None:
    assert is_aftermath(CLOSED)
    assert not is_aftermath(ZeroDivisionError("division by zero"))
    assert not is_aftermath(BrokenPipeError(errno.EPIPE, "Broken pipe"))


@pytest.mark.parametrize(
    ("rank", "title"), [(0, "rank 0 (server)"), (1, "rank 1 (worker 1)"), (2, "rank 2 (worker 2)")]
)
@pytest.mark.parametrize("how", ["killed", "ended", "raised", "memory"])
def test_the_message_says_whether_a_server_or_a_worker_ended(run: Run, rank: int, title: str, how: str) -> None:
    run.config_file.write_text(dump_config(load_config(None, ["sync.name=ps", "launch.nproc=3"])), encoding="utf-8")
    if how in ("raised", "memory"):
        record_failure(run, rank, raised(KeyError("x") if how == "raised" else MemoryError()))
    assert root_cause(run, {rank: {"killed": -9, "ended": 7}.get(how, 1)}).message.startswith(title)
    Turns(("ps", "ddp")).write(run.path)
    assert root_cause(run, {rank: -9}).message.startswith((f"rank {rank} was", f"rank {rank}: "))


WAITED = RuntimeError("[unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete")
BACKWARD, SYNC = Position(3, "backward"), Position(3, "sync")


def seen_at(run: Run, rank: int, place: Position) -> None:
    here = PositionFile()
    here.open(run, rank)
    if place.step is not None:
        here.at_step(place.step)
    here.at(place.phase)


@pytest.mark.parametrize(
    ("places", "waited", "noticed", "hung"),
    [
        ([SYNC, BACKWARD], [0], [], 1),
        ([SYNC, SYNC], [0], [], 1),
        ([SYNC, SYNC, BACKWARD], [0], [1], 2),
        ([SYNC, SYNC, SYNC], [0], [1], 2),
        ([Position(4, "plan"), Position(4, "plan"), SYNC], [0], [1], 2),
        ([SYNC, BACKWARD], [0, 1], [], 1),
        ([Position(None, PREPARING), Position(None, CONNECTING)], [0], [], 1),
        ([Position(None, "measuring x"), Position(None, "measuring x")], [0], [], 1),
    ],
)
def test_who_hangs_is_who_came_least_far(
    run: Run, places: list[Position], waited: list[int], noticed: list[int], hung: int
) -> None:
    run.config_file.write_text(dump_config(load_config(None, ["launch.timeout_s=5"])), encoding="utf-8")
    for rank, place in enumerate(places):
        seen_at(run, rank, place)
    for rank in waited:
        record_failure(run, rank, raised(WAITED))
    for rank in noticed:
        record_failure(run, rank, raised(CLOSED))
    found = root_cause(run, {rank: -9 if rank not in (*waited, *noticed) else 1 for rank in range(len(places))})
    assert isinstance(found, WorkerFailed) and found.rank == hung
    assert found.message.startswith(f"rank {hung} hung {places[hung]}: rank 0 waited in vain {places[0]} for 5 s")
    assert f"rank_{hung}.log" in found.message and "raise launch.timeout_s" in found.hint


def test_a_rank_that_ended_well_does_not_hang(run: Run) -> None:
    for rank in range(3):
        seen_at(run, rank, BACKWARD)
    done = PositionFile()
    done.open(run, 1)
    done.remove()
    record_failure(run, 0, raised(WAITED))
    assert root_cause(run, {0: 1, 2: -9}).message.startswith("rank 2 hung in backward of step 3")


def test_who_is_on_another_node_is_not_named(run: Run) -> None:
    record_failure(run, 0, raised(WAITED))
    found = root_cause(run, {0: 1})
    assert found.message.startswith("rank 0 waited in vain in a collective") and "another node" in found.hint


def test_of_ranks_that_were_killed_the_one_that_came_least_far_is_named(run: Run) -> None:
    """The other was killed by torchrun, as it still waited for it."""
    seen_at(run, 0, SYNC)
    seen_at(run, 1, BACKWARD)
    assert root_cause(run, {0: -9, 1: -9}).message.startswith("rank 1 was killed by SIGKILL in backward of step 3")
    assert root_cause(run, {0: -9, 1: -signal.SIGTERM}).message.startswith("rank 0 was killed by SIGKILL in sync")


def test_a_cause_comes_before_whoever_waited(run: Run) -> None:
    seen_at(run, 1, BACKWARD)
    record_failure(run, 0, raised(WAITED))
    record_failure(run, 1, raised(KeyError("x")))
    assert "KeyError" in root_cause(run, {0: 1, 1: 1}).message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_a_disk_is_nobodys_fault(run: Run, number: int) -> None:
    record_failure(run, 1, raised(OSError(number, os.strerror(number), "rank_1.csv")))
    found = root_cause(run, {1: 1})
    assert isinstance(found, StorageError) and found.exit_code == 2
    assert found.message.startswith(f"rank 1: rank_1.csv: {os.strerror(number)}; log: ")


WATCHDOG = (
    "[rank0]:[E1124 12:00:00.1 ProcessGroupNCCL.cpp:690] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=60000) ran for 60004 milliseconds"
)


def test_a_rank_that_nccls_watchdog_aborts_waited_for_the_one_that_hangs(run: Run) -> None:
    """Neither leaves a word: the watchdog aborts the process, and torchrun ends the other with SIGKILL."""
    run.logs_dir.mkdir()
    (run.logs_dir / "rank_0.log").write_text(f"step 11\n{WATCHDOG}\nterminate called\n", encoding="utf-8")
    (run.logs_dir / "rank_1.log").write_text("step 11\n", encoding="utf-8")
    for rank, phase in ((0, "optimizer"), (1, "data")):
        here = PositionFile()
        here.open(run, rank)
        here.at_step(12)
        here.at(phase)
    for codes in ({0: -6, 1: -9}, {0: -6, 1: -15}, {0: -6}):
        error = root_cause(run, codes)
        assert isinstance(error, WorkerFailed) and error.rank == 1
        assert "rank 1 hung in data of step 12: rank 0 waited in vain in optimizer of step 12" in error.message


KILLED = """\
import os, signal, sys, pathlib
from dynbench.engine.failure import PositionFile
from dynbench.runs.run import Run
here = PositionFile()
here.open(Run(pathlib.Path(sys.argv[1])), 1)
here.at_step(7)
here.at("forward")
here.at("sync")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_a_killed_process_was_at(run: Run) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(run.path)], check=False).returncode == -9
    assert last_position(run, 1) == Position(7, "sync") and unfinished_ranks(run) == [1]


def test_before_and_between_steps_and_after_all(run: Run) -> None:
    here = PositionFile()
    here.at("forward")
    assert last_position(run, 0) is None, "it was not told in which run"
    here.open(run, 0)
    assert last_position(run, 0) is None, "it has begun nothing"
    here.at(BUILDING)
    assert str(last_position(run, 0)) == "while building its model"
    here.at_step(0)
    here.at("x" * 200)
    assert last_position(run, 0) == Position(0, "x" * 93)
    here.at("plan")
    assert str(last_position(run, 0)) == "in plan of step 0"
    here.remove()
    assert last_position(run, 0) is None and unfinished_ranks(run) == []


def test_another_launch_of_the_same_run_begins_anew(run: Run) -> None:
    for phase in ("measuring a long name", ""):
        here = PositionFile()
        here.open(run, 0)
        if phase:
            here.at(phase)
    assert last_position(run, 0) is None


def test_in_order() -> None:
    places = [
        Position(None, "meeting the other ranks"),
        Position(None, BUILDING),
        Position(0, "plan"),
        Position(0, "sync"),
    ]
    places += [Position(0, "recording"), Position(1, "plan")]
    assert sorted(places, key=lambda place: place.progress) == places


def test_a_file_that_is_no_note_says_nothing(run: Run) -> None:
    (run.ranks_dir / "at_0").write_bytes(b"\xff\xfe")
    assert last_position(run, 0) is None and last_position(run, 5) is None
