"""Uneven shares of unequal samples, summed and multiplied by G / W_t, give the gradient of the whole batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPopen

pytestmark = pytest.mark.multiproc

RANK_PROGRAM = Path(__file__).with_name("gradient_rank.py")


@pytest.fixture(scope="module", params=[4])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Of random uneven splits over 4 ranks: ratio and relative error against the full batch in one process.

    Over 2 ranks, tests/contract/test_strategies.py says the same of every strategy.
    """
    file = tmp_path_factory.mktemp("rendezvous") / "file"
    world_size = request.param
    ranks = [
        ForkedPopen(
            [sys.executable, str(RANK_PROGRAM), str(rank), str(world_size), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, outputs
    return [json.loads(line) for line in outputs[0][0].splitlines()]


def test_weighted_gradient_is_the_full_batchs(results: list[dict[str, float]]) -> None:
    weighted = [result for result in results if result["weighted"]]
    assert {result["micro_batches"] for result in weighted} == {1, 2, 3}
    for result in weighted:
        print(f"counts {result['counts']}, {result['micro_batches']} micro-batches: ratio {result['ratio']:.3f}")
        assert f"{result['ratio']:.3f}" == "1.000"
        assert result["relative_error"] < 1e-9


def test_without_weights_it_is_not(results: list[dict[str, float]]) -> None:
    uneven = [r for r in results if not r["weighted"] and len(set(r["counts"])) > 1]
    assert len(uneven) >= 6
    for result in uneven:
        print(f"counts {result['counts']} unweighted: ratio {result['ratio']:.3f}")
        assert result["relative_error"] > 1e-3
