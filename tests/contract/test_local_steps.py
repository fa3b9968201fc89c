"""Ranks that step apart do so, and meetings that take steps are those of the paper."""

from __future__ import annotations

import pytest
from local_steps_jobs import MOMENTUM, RATE, SCALE, averaged, sent_and_met, stopped, streamed, trained_ahead
from strategy_jobs import STEPS
from warm import RankError, WarmRanks

from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc

APART = [name for name, entry in STRATEGIES.items() if entry.load().steps_apart and name != "local_sgd_torch"]
"""torch's meets after the first step already."""


def expected(overlap: int, own: float, steps: int = 12) -> list[list[float]]:
    """A weight of two ranks that step by 1 and 2, and meet as in algorithm 2 of Streaming DiLoCo, arXiv:2501.18512."""
    weights, met, momentum, change, sent = [1.0, 1.0], 1.0, None, 0.0, -steps
    found = []
    for step in range(1, steps + 1):
        weights = [weight - RATE * (rank + 1) for rank, weight in enumerate(weights)]
        if step % 4 == 0:
            sent, change = step, sum(weights) / 2 - met
        if step == sent + overlap:
            momentum = change if momentum is None else MOMENTUM * momentum + change
            met += SCALE * (change + MOMENTUM * momentum)
            share = own if overlap else 0.0
            weights = [share * weight + (1 - share) * met for weight in weights]
        found.append(weights)
    return [list(weight) for weight in zip(*found, strict=True)]


@pytest.mark.parametrize(("overlap", "own"), [(0, 0.5), (1, 0.5), (2, 0.0), (3, 0.25)])
def test_an_averaging_that_takes_steps_is_the_papers(ranks: WarmRanks, overlap: int, own: float) -> None:
    for found, wanted in zip(ranks(streamed, overlap, own), expected(overlap, own), strict=True):
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("fragments", "overlap", "round_"),
    [(1, 0, [0, 0, 0, 1]), (2, 0, [0, 1, 0, 1]), (3, 0, [1, 1, 0, 1]), (1, 2, None), (2, 1, None), (3, 3, None)],
)
def test_fragments_are_averaged_in_turn_and_their_means_used_so_many_steps_later(
    ranks: WarmRanks, fragments: int, overlap: int, round_: list[int] | None
) -> None:
    for sent, met, events, whole in ranks(sent_and_met, fragments, overlap):
        assert events and all(asked == after + overlap for after, asked in events)
        assert met == [0] * overlap + [size // 8 for size in sent[: len(sent) - overlap]], "all that was sent"
        assert [sum(sent[first : first + 4]) for first in (0, 4, 8)] == [8 * whole] * 3, "each parameter once a round"
        assert round_ is None or [int(number > 0) for number in met] == round_ * 3


@pytest.mark.parametrize("sync", [*APART, "local_sgd_torch"])
def test_the_first_rank_alone_gives_the_model_where_ranks_last_met(ranks: WarmRanks, sync: str) -> None:
    assert ranks(stopped, sync, 7) == [(0.0, True), None]
    if sync in APART:
        assert ranks(stopped, sync, 3) == [None, None], "they have not met"


def test_the_mean_model_is_made_piece_by_piece(ranks: WarmRanks) -> None:
    for apart, most, back in ranks(averaged, 10):
        assert apart < 1e-6 and back
        assert most == 2 * 10, "of each rank a piece"


@pytest.mark.parametrize(("sync", "patience_s"), [*((name, 120.0) for name in APART), ("ddp", 2.0)])
def test_a_rank_goes_on_before_the_other_has_begun(ranks: WarmRanks, new_run, sync: str, patience_s: float) -> None:
    """But where gradients are averaged in every step, as under ddp."""
    run, config = new_run("train.eval_samples=0", "launch.nproc=2", "launch.timeout_s=60", f"sync.name={sync}")
    arguments = (str(run.path), config, str(run.path / "gate"), STEPS - 1, patience_s)
    if sync in APART:
        ranks(trained_ahead, *arguments)
    else:
        with pytest.raises(RankError, match="has not come to step"):
            ranks(trained_ahead, *arguments)
