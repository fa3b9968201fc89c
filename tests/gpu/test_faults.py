"""Faults of a rank under NCCL: the launch ends, in one line that names the rank and where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from multiproc.faults import Command, check
from planted import at

from dynbench.runs.run import Status

pytestmark = [pytest.mark.gpu, pytest.mark.multiproc, pytest.mark.usefixtures("two_gpus")]

PATIENCE = ("--set", "launch.timeout_s=20")


@pytest.mark.parametrize(
    ("what", "phase", "code", "status", "says"),
    [
        ("killed", "backward", 3, Status.FAILED, "rank 1 was killed by SIGKILL in backward of step 4"),
        ("hangs", "data", 3, Status.FAILED, "rank 1 hung in data of step 4: rank 0 waited in vain"),
        ("hangs", "forward", 3, Status.FAILED, "rank 1 hung in forward of step 4: rank 0 waited in vain"),
        ("without memory", "forward", 4, Status.OOM, "rank 1: "),
    ],
)
def test_a_rank_meets_a_fault(tmp_path: Path, what: str, phase: str, code: int, status: Status, says: str) -> None:
    planted = at(what, phase, rank=1, step=4)
    ended = Command(tmp_path).ran("train", "--json", "--set", "launch.device=cuda", *PATIENCE, first=planted)
    check(ended, code, status, says, rows=4, rank=1)
