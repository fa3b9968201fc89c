"""Trials of a probe against memory that really runs out, and trial processes that are really killed or hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import NothingFits, WorkerFailed
from dynbench.probe.capacity import ProbedCapacities, find_capacities
from dynbench.probe.children import Children, Reply
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

SEARCHED = (64, 256)
RANKS = 2
CEILING = 4000
"""More than the limit lets through at any of the lengths, so that every search ends at a real failure."""
CONFIG = {
    "launch.device": "cpu",
    "launch.nproc": RANKS,
    "launch.threads": 1,
    "probe.repeats": 2,
    "train.global_batch": 32,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run folder whose configuration the trial processes read."""
    store = RunStore(tmp_path_factory.mktemp("probe"))
    run = store.create("probe", "probe")
    run.config_file.write_text(dump_config(resolve(load_config(flags=CONFIG), this_machine(), store).config))
    return run


def children(run: Run, limit_mb: int = 700) -> Children:
    spec = {"run": str(run.path), "device": "cpu", "memory_limit_bytes": limit_mb * 10**6, "timeout_s": 120}
    return Children(spec, RANKS, 1, run.logs_dir, timeout_s=120, tidy=True)


def search(start: Callable[[], Children], lengths: Sequence[int] = SEARCHED, tries: int = 3) -> ProbedCapacities:
    return find_capacities(
        start, lengths, RANKS, CEILING, load_config(flags={**CONFIG, "probe.trials": tries}).probe, lambda text: None
    )


@pytest.fixture(scope="module")
def found(run: Run) -> ProbedCapacities:
    """A whole search on real memory."""
    return search(lambda: children(run))


def test_what_passed_passes_again_a_fifth_more_fails_and_nothing_is_left(run: Run, found: ProbedCapacities) -> None:
    for length in SEARCHED:
        rows = [row for row in found.rows if row.length == length]
        assert [row.rank for row in rows] == list(range(RANKS))
        with children(run) as group:
            again = group.ask([{"op": "trial", "n": row.tested_ok, "length": length} for row in rows])
            assert [reply and reply["fits"] for reply in again] == [True] * RANKS
            more = [max(int(1.2 * row.tested_ok), row.tested_ok + 1) for row in rows]
            beyond = group.ask([{"op": "trial", "n": n, "length": length} for n in more])
            assert [reply and reply["fits"] for reply in beyond] == [False] * RANKS
            after = group.ask_all({"op": "trial", "n": 1, "length": length})
            assert [reply and reply["fits"] for reply in after] == [True] * RANKS
            pids = group.pids
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_capacity_falls_with_length_and_leaves_a_margin(found: ProbedCapacities) -> None:
    for rank in range(RANKS):
        rows = {row.length: row for row in found.rows if row.rank == rank}
        assert rows[64].max_batch >= rows[256].max_batch >= 1
        for row in rows.values():
            assert row.tested_fail is not None
            assert row.max_batch <= 0.9 * row.tested_ok
            assert row.tested_ok < row.tested_fail <= max(row.tested_ok + 1, 1.06 * row.tested_ok)


class KilledAtSecondTrial(Children):
    """Loses a process to SIGKILL the second time a trial is asked for, once."""

    asked = 0

    def ask(self, requests: Sequence[Mapping[str, object]], *, together: bool = False) -> list[Reply | None]:
        if requests[0]["op"] == "trial":
            KilledAtSecondTrial.asked += 1
            if KilledAtSecondTrial.asked == 2:
                os.kill(self.pids[0], signal.SIGKILL)
        return super().ask(requests, together=together)


@pytest.mark.matrix
def test_a_killed_trial_process_does_not_change_the_answer(run: Run, found: ProbedCapacities) -> None:
    KilledAtSecondTrial.asked = 0
    spec = children(run)._spec

    def start() -> Children:
        return KilledAtSecondTrial(spec, RANKS, 1, run.logs_dir, timeout_s=120, tidy=True)

    again = search(start, [256])
    assert KilledAtSecondTrial.asked > 2
    expected = [row for row in found.rows if row.length == 256]
    for before, after in zip(expected, again.rows, strict=True):
        assert (after.rank, after.length) == (before.rank, before.length)
        assert after.tested_ok == pytest.approx(before.tested_ok, rel=0.06, abs=1), "as near as the search itself goes"


def test_a_process_that_always_dies_is_an_error_not_an_answer(run: Run) -> None:
    class AlwaysKilled(Children):
        def ask(self, requests: Sequence[Mapping[str, object]], *, together: bool = False) -> list[Reply | None]:
            os.kill(self.pids[1], signal.SIGKILL)
            return super().ask(requests, together=together)

    spec = children(run)._spec
    with pytest.raises(WorkerFailed, match=r"rank 1: trials of .* without an answer"):
        search(lambda: AlwaysKilled(spec, RANKS, 1, run.logs_dir, timeout_s=120, tidy=True), [256], tries=2)


def test_a_process_that_hangs_is_named(run: Run) -> None:
    with pytest.raises(WorkerFailed, match="rank 1 hung in 'trial'") as caught, children(run) as group:
        os.kill(group.pids[1], signal.SIGSTOP)
        group.timeout_s, pids = 20, group.pids
        group.ask_all({"op": "trial", "n": 1, "length": 64})
    assert "probe_rank_1.log" in caught.value.message and "launch.timeout_s" in caught.value.hint
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_limit_below_the_model_is_said(run: Run) -> None:
    with pytest.raises(NothingFits, match="model and its optimizer"), children(run, limit_mb=300):
        pass
