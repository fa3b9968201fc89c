"""Models that differ between ranks: every strategy says so on every rank, at once."""

from __future__ import annotations

import pytest
from sync_input_jobs import FAULTS, refusals
from warm import WarmRanks

from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("sync", STRATEGIES)
def test_models_that_differ_are_refused_on_all_ranks(ranks: WarmRanks, sync: str) -> None:
    first, second = ranks(refusals, sync)
    assert first == second
    assert list(first) == list(FAULTS)
    for said in first.values():
        assert said.startswith("the models of ranks 0 and 1 differ: ")
        assert " of shape [" in said and " and type torch." in said
