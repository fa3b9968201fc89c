"""Weights by target tokens give the gradient of the mean over all targets; weights by samples do not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPopen

pytestmark = pytest.mark.multiproc

RANK_PROGRAM = Path(__file__).with_name("target_weight_rank.py")
RANKS = 2


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[float]]:
    """Batches accumulated and kind of weight, to the relative errors of the gradients on real ranks."""
    file = tmp_path_factory.mktemp("rendezvous") / "file"
    ranks = [
        ForkedPopen(
            [sys.executable, str(RANK_PROGRAM), str(rank), str(RANKS), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, outputs
    found: dict[tuple[int, str], list[float]] = {}
    for line in outputs[0][0].splitlines():
        result = json.loads(line)
        found.setdefault((result["accumulated"], result["kind"]), []).append(result["error"])
    return found


@pytest.mark.parametrize(("accumulated", "kind"), [(1, "each batch"), (1, "step"), (3, "step")])
def test_weighted_by_targets_the_gradient_is_that_of_all_of_them(
    errors: dict[tuple[int, str], list[float]], accumulated: int, kind: str
) -> None:
    assert max(errors[accumulated, kind]) < 1e-9


@pytest.mark.parametrize(("accumulated", "kind"), [(1, "samples"), (3, "samples"), (3, "each batch")])
def test_weighted_by_less_than_that_it_is_another(
    errors: dict[tuple[int, str], list[float]], accumulated: int, kind: str
) -> None:
    assert min(errors[accumulated, kind]) > 1e-3
