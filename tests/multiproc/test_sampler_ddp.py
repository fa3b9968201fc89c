"""The sampler in a plain DDP loop does what `dynbench train` does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPopen
from multiproc.launches import Launch, rows_of

from dynbench.runs.run import Run

pytestmark = pytest.mark.multiproc

RANK_PROGRAM = Path(__file__).with_name("sampler_rank.py")
RANKS = 2
STOP = 3

Steps = list[tuple[int, int, int, int, float]]
"""Step, rank, samples, work hash, loss."""


@pytest.fixture(scope="module", params=["partition", "prefix"])
def run(request: pytest.FixtureRequest, launch: Launch) -> Run:
    """`dynbench train` under a policy."""
    return launch("schedule.mode=dynamic", f"schedule.policy={request.param}")


def plain_loop(folder: Path, run: Run, stop: int = 0) -> Steps:
    """The same training in a loop of the user's own, on real ranks."""
    rendezvous = folder / f"rendezvous-{stop}"
    ranks = [
        ForkedPopen(
            [sys.executable, str(RANK_PROGRAM), str(rank), str(RANKS), str(rendezvous), str(run.config_file),
             str(folder / "state.pt"), str(stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, outputs
    steps: Steps = []
    for rank, (printed, _) in enumerate(outputs):
        for line in printed.splitlines():
            step, samples, work, loss = json.loads(line)
            steps.append((step, rank, samples, work, loss))
    return sorted(steps)


def recorded(run: Run) -> Steps:
    """What `dynbench train` wrote."""
    return rows_of(run).select("step", "rank", "local_batch", "work_hash", "loss").rows()


def assert_same(ours: Steps, theirs: Steps) -> None:
    assert [step[:4] for step in ours] == [step[:4] for step in theirs]
    assert [step[4] for step in ours] == pytest.approx([step[4] for step in theirs], rel=1e-5)


def test_batches_and_losses_are_those_of_train(run: Run, tmp_path: Path) -> None:
    theirs = recorded(run)
    assert len({samples for _, _, samples, _, _ in theirs}) > 1
    assert_same(plain_loop(tmp_path, run), theirs)


def test_resumed_in_mid_epoch_it_goes_on_as_if_never_stopped(run: Run, tmp_path: Path) -> None:
    first = plain_loop(tmp_path, run, stop=STOP)
    assert {step for step, *_ in first} == set(range(STOP))
    assert_same(first + plain_loop(tmp_path, run), recorded(run))
