"""Under every exact strategy packed rows, uneven over ranks and micro-batches, are trained on as padded batches are."""

from __future__ import annotations

import pytest
from packed_jobs import packed
from warm import WarmRanks

from dynbench.engine.rank.toy_check import Difference
from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc

EXACT = [name for name, entry in STRATEGIES.items() if entry.exact]


def judge(found: list[Difference | None]) -> None:
    """The first rank has the weights, and they differ from one process's by rounding alone."""
    assert found[0] is not None and found[1:] == [None] * (len(found) - 1)
    assert found[0].of_rounding <= 1, found[0]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("language", "sgd"),
        pytest.param("language", "adamw", marks=pytest.mark.matrix),
        ("classification", "adamw"),
        pytest.param("classification", "sgd", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.parametrize("sync", EXACT)
def test_two_workers_train_what_one_process_trains_on_padded_batches(
    ranks: WarmRanks, three: WarmRanks, sync: str, model: str, optimizer: str
) -> None:
    judge((three if STRATEGIES[sync].servers else ranks)(packed, sync, model, optimizer))


@pytest.mark.parametrize(
    "sync", [pytest.param(name, marks=() if name == "zero1" else pytest.mark.matrix) for name in EXACT]
)
def test_four_ranks_train_what_one_process_trains_on_padded_batches(four: WarmRanks, sync: str) -> None:
    judge(four(packed, sync, "language", "adamw"))


@pytest.mark.parametrize("fault", ["rows", "forgets"])
def test_rows_that_count_one_or_lose_their_boundaries_are_caught(ranks: WarmRanks, fault: str) -> None:
    with pytest.raises(AssertionError, match="largest"):
        judge(ranks(packed, "ddp", "language", "sgd", fault))
