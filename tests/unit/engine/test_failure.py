"""Of several ranks that end, the cause is found and reported in the user's words, with where each rank was."""

from __future__ import annotations

import errno
import os
import signal
from itertools import pairwise, product

import pytest
import torch
import torch.distributed as dist

from dynbench import errors
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.engine.failure import (
    BUILDING,
    CONNECTING,
    PREPARING,
    Position,
    PositionFile,
    RankFailure,
    keep_failure,
    last_position,
    lasting_fault,
    read_failures,
    record_failure,
    root_cause,
    unfinished_ranks,
)
from dynbench.engine.rank.rank_facts import exchange_cause
from dynbench.engine.turn_order import Turns
from dynbench.runs.atomic import reserve
from dynbench.runs.run import Run

CLOSED = RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:39121")
WAITED = RuntimeError("[unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete")
BACKWARD, SYNC = Position(3, "backward"), Position(3, "sync")


def record(run: Run, rank: int, error: BaseException) -> None:
    """As a rank does that meets an error."""
    try:
        raise error
    except BaseException as caught:
        record_failure(run, rank, caught)


def seen_at(run: Run, *places: Position | None) -> None:
    """Where each rank is, by rank."""
    for rank, place in enumerate(places):
        if place is not None:
            here = PositionFile()
            here.open(run, rank)
            if place.step is not None:
                here.at_step(place.step)
            here.at(place.phase)


@pytest.mark.parametrize("words", list(product(["memory", "worker", "aftermath", "stopped", None], repeat=2)))
def test_whatever_the_ranks_of_two_nodes_said(run, words):
    """Rank 0 is this node's and ended with some exit code; of rank 1, which is another node's, its word is all."""
    for rank, kind in enumerate(words):
        if kind is not None:
            keep_failure(run, RankFailure(rank, rank, "host", kind, "E", f"{kind} of {rank}", ""))
    spoke = [rank for rank, kind in enumerate(words) if kind is not None]
    causes = [rank for rank in spoke if words[rank] in ("memory", "worker")]
    lost = errors.WorkerFailed("the nodes lost each other")
    for exit_code, node_error in product((1, -signal.SIGKILL, -signal.SIGTERM), (None, lost)):
        found = root_cause(run, {0: exit_code}, node_error)
        assert found.exit_code == (4 if causes and words[causes[0]] == "memory" else 3)
        if causes:
            assert f"{words[causes[0]]} of {causes[0]}" in found.message
        elif words[0] is None:
            assert found.message.startswith("rank 0 ")
        elif node_error is not None:
            assert found is node_error
        else:
            assert f"{words[spoke[0]]} of {spoke[0]}" in found.message


@pytest.mark.parametrize(
    ("records", "codes", "message", "hint"),
    [
        ([], {}, "no record", ""),
        ([(0, CLOSED)], {0: 1, 1: -9}, "rank 1 was killed by SIGKILL", "memory"),
        ([], {0: -15, 1: -6}, "rank 1 was killed by SIGABRT", ""),
        ([(1, KeyError("first")), (0, KeyError("second"))], {0: 1, 1: 1}, "first", ""),
        ([(0, KeyError("first")), (0, CLOSED)], {0: 1}, "first", ""),
        ([(0, WAITED), (1, KeyError("x"))], {0: 1, 1: 1}, "KeyError", ""),
        ([(0, CLOSED), (1, BrokenPipeError(errno.EPIPE, "Broken pipe"))], {0: 1, 1: 1}, "BrokenPipeError", ""),
        ([(0, CLOSED)], {0: 1}, "Connection closed", "another node"),
        ([(0, WAITED)], {0: 1}, "rank 0 waited in vain in a collective", "another node"),
        ([(2, ValueError("several\nlines"))], {2: 1}, "ValueError: several;", ""),
    ],
)
def test_which_end_is_the_cause(run, records, codes, message, hint):
    for rank, error in records:
        record(run, rank, error)
    found = root_cause(run, codes)
    assert message in found.message and hint in found.hint
    assert [failure.rank for failure in read_failures(run)] == list(dict.fromkeys(rank for rank, _ in records))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cause_reaches_the_ranks_that_cannot_see_its_file(order):
    """Two ranks that fail by themselves and one that only notices, each with a folder of its own."""
    store = dist.HashStore()
    failures = [RankFailure(rank, rank, "host", "memory", "E", f"full {rank}", "") for rank in range(2)]
    noticed = RankFailure(2, 2, "host", "aftermath", "E", "closed", "")
    assert exchange_cause(store, noticed) is None
    first = failures[order[0]]
    assert [exchange_cause(store, failures[rank]) for rank in order] == [first, first]
    assert exchange_cause(store, noticed) == first


MEMORY = (errors.NothingFits, errors.BatchTooLarge)


@pytest.mark.parametrize("kind", [errors.DataError, errors.UsageError, errors.LeakFound, errors.ConfigError, *MEMORY])
def test_errors_of_ours_keep_their_class_text_and_hint(run, kind):
    error = kind(["a: 1", "b: 2"] if kind is errors.ConfigError else "x.tsv:3: no", "A hint.")
    record(run, 1, error)
    found = root_cause(run, {1: 1})
    message = f"rank 1: {error.message}" if kind in MEMORY else error.message
    assert (type(found), found.message, found.hint) == (kind, message, "A hint.")
    assert getattr(found, "problems", None) == getattr(error, "problems", None)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
    ],
)
def test_memory(run, error):
    record(run, 1, error)
    found = root_cause(run, {1: 1})
    assert isinstance(found, errors.NothingFits) and found.exit_code == 4 and "rank 1" in found.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_a_full_disk_is_recorded_in_the_room_kept_for_it_and_nobodys_fault(run, number):
    reserve(run.path)
    record(run, 1, OSError(number, os.strerror(number), "rank_1.csv"))
    found = root_cause(run, {1: 1})
    assert isinstance(found, errors.StorageError) and found.exit_code == 2 and "Free some space" in found.hint
    assert found.message.startswith(f"rank 1: rank_1.csv: {os.strerror(number)}; log: ")
    assert [path for path in run.path.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", [-9, 7, KeyError("x"), MemoryError()])
def test_the_message_says_whether_a_server_or_a_worker_ended(run, rank, how):
    run.config_file.write_text(dump_config(load_config(None, ["sync.name=ps", "launch.nproc=3"])), encoding="utf-8")
    if isinstance(how, BaseException):
        record(run, rank, how)
    codes = {rank: how if isinstance(how, int) else 1}
    assert root_cause(run, codes).message.startswith(("rank 0 (server)", "rank 1 (worker 1)")[rank])
    Turns(("ps", "ddp")).write(run.path)
    assert root_cause(run, {rank: -9}).message.startswith((f"rank {rank} was", f"rank {rank}: "))


ORDER = [
    *(Position(None, phase) for phase in (CONNECTING, PREPARING, BUILDING)),
    *(Position(step, phase) for step in (0, 1) for phase in ("plan", "backward", "sync", "recording")),
]


@pytest.mark.parametrize(
    ("places", "waited", "noticed", "hung"),
    [
        *(([later, later, earlier], [0], [], 2) for earlier, later in pairwise(ORDER)),
        ([SYNC, BACKWARD], [0, 1], [], 1),
        ([SYNC, SYNC], [0], [], 1),
        ([SYNC, SYNC, BACKWARD], [0], [1], 2),
        ([SYNC, SYNC, SYNC], [0], [1], 2),
        ([SYNC, None, SYNC], [0], [], 2),  # the second ended well
        ([Position(None, "measuring x")] * 2, [0], [], 1),
    ],
)
def test_who_hangs_is_who_came_least_far(run, places, waited, noticed, hung):
    run.config_file.write_text(dump_config(load_config(None, ["launch.timeout_s=5"])), encoding="utf-8")
    seen_at(run, *places)
    for error, ranks in ((WAITED, waited), (CLOSED, noticed)):
        for rank in ranks:
            record(run, rank, error)
    codes = {rank: 1 if rank in (*waited, *noticed) else -9 for rank, place in enumerate(places) if place}
    found = root_cause(run, codes)
    assert found.rank == hung
    assert found.message.startswith(f"rank {hung} hung {places[hung]}: rank 0 waited in vain {places[0]} for 5 s")
    assert f"rank_{hung}.log" in found.message and "raise launch.timeout_s" in found.hint


def test_of_ranks_that_were_killed_the_one_that_came_least_far_is_named(run):
    """The other was killed by torchrun, as it still waited for it."""
    seen_at(run, SYNC, BACKWARD)
    assert root_cause(run, {0: -9, 1: -9}).message.startswith("rank 1 was killed by SIGKILL in backward of step 3")
    assert root_cause(run, {0: -9, 1: -signal.SIGTERM}).message.startswith("rank 0 was killed by SIGKILL in sync")


@pytest.mark.parametrize("codes", [{0: -6, 1: -9}, {0: -6, 1: -15}, {0: -6}])
def test_a_rank_that_nccls_watchdog_aborts_waited_for_the_one_that_hangs(run, codes):
    """Neither leaves a word: the watchdog aborts the process, and torchrun ends the other with SIGKILL."""
    watchdog = "[rank0]:[E1124 12:00:00.1 ProcessGroupNCCL.cpp:690] Watchdog caught collective operation timeout: x"
    run.logs_dir.mkdir()
    (run.logs_dir / "rank_0.log").write_text(f"step 11\n{watchdog}\nterminate called\n", encoding="utf-8")
    (run.logs_dir / "rank_1.log").write_text("step 11\n", encoding="utf-8")
    seen_at(run, Position(12, "optimizer"), Position(12, "data"))
    error = root_cause(run, codes)
    assert error.rank == 1
    assert "rank 1 hung in data of step 12: rank 0 waited in vain in optimizer of step 12" in error.message


def test_positions_before_and_between_steps_after_all_and_of_another_launch(run):
    here = PositionFile()
    here.at("forward")
    assert last_position(run, 0) is None, "no run is opened"
    here.open(run, 0)
    assert last_position(run, 0) is None, "it has begun nothing"
    here.at(BUILDING)
    assert str(last_position(run, 0)) == "while building its model"
    here.at_step(0)
    here.at("x" * 200)
    assert last_position(run, 0) == Position(0, "x" * 93)
    PositionFile().open(run, 0)
    assert last_position(run, 0) is None, "another launch of the run begins anew"
    here.remove()
    assert unfinished_ranks(run) == []
    (run.ranks_dir / "at_0").write_bytes(b"\xff\xfe")
    assert last_position(run, 0) is None and last_position(run, 5) is None


@pytest.mark.parametrize(
    "error", [errors.UsageError("workload.model: no"), ConnectionError("x"), MemoryError(), KeyError("k")]
)
def test_only_a_mistake_would_be_met_again_by_every_try(error, run):
    assert lasting_fault(error, run) == ("workload.model: no" if isinstance(error, errors.UsageError) else None)
