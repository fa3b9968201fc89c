"""What the busiest process of an arm does in a step, message by message; and how far apart losses are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dynbench.analysis.topology import Against, Agreement, Busiest, against, agreements


def held(step_ms: float, transfer_ms: float) -> Against:
    """A server of four workers against a ring of four, whose step takes 10 ms, 4 ms of it in transfer."""
    ring = Busiest("ring", 4, 4, "worker", 18, 3e6, 4.0, 10.0)
    (pair,) = against([ring, Busiest("ps", 4, 5, "server", 24, 8e6, transfer_ms, step_ms)])
    return pair


@pytest.mark.parametrize("explained", [True, False])
def test_messages_explain_an_order_only_where_their_times_differ_likewise(explained: bool) -> None:
    """By half to twice as much."""
    for times in ((20.0, 12.0), (6.0, 1.0)) if explained else ((20.0, 4.0), (20.0, 7.0), (9.5, 1.0), (6.0, 9.0)):
        pair = held(*times)
        assert (pair.one.arm, pair.longer_ms, pair.explained) == ("ps", times[0] - 10.0, explained)


@pytest.mark.parametrize(("times", "follows"), [(1.3, "messages"), (2.6, "bytes"), (0.9, None)])
def test_the_time_in_transfer_grew_like_what_is_nearer_to_it(times: float, follows: str | None) -> None:
    pair = held(20.0, 4.0 * times)
    assert pair.times == pytest.approx({"messages": 24 / 18, "bytes": 8 / 3, "transfer_ms": times})
    assert pair.follows == follows and pair.servers == 3, "three share what two and two thirds carry"


def epochs(*losses: float, evaluation: float | None = 0.5) -> list[Any]:
    return [{"epoch": n, "train_loss": loss, "eval_loss": evaluation} for n, loss in enumerate(losses, 1)]


def agreed(**arms: dict[object, Sequence[Any]]) -> list[Agreement]:
    return list(agreements(arms, {"ddp": 4, "ring": 4, "ps": 4, "ps_3": 3}, 0.05))


@pytest.mark.parametrize(
    ("loss", "judgement"),
    [(0.5004, "same"), (0.502, "near"), (0.52, "near"), *((loss, "apart") for loss in (0.53, 0.4, float("nan")))],
)
def test_an_arm_with_another_loss_is_seen_beyond_what_rounding_does(loss: float, judgement: str) -> None:
    """One epoch of one launch of one arm; by seed, whatever the order of launches."""
    first, second = epochs(2.0, 1.0), epochs(1.0, 0.5)
    fine = {"ddp": {0: first, 1: second}, "ring": {1: second, 0: first}}
    (same,) = agreed(**fine)
    assert (same.workers, same.training, same.evaluation, same.judgement) == (4, 0.0, 0.0, "same")
    (found,) = agreed(**fine, ps={0: first, 1: epochs(1.0, loss)})
    assert found.judgement == judgement and "ps" in found.pair and found.epoch == 2
    assert found.first == 0 and (loss != loss or found.training == pytest.approx(abs(loss - 0.5) / max(loss, 0.5)))


def test_another_loss_of_the_evaluation_is_seen_and_other_workers_are_told_apart() -> None:
    fine = {0: epochs(1.0)}
    (found,) = agreed(ddp=fine, ps={0: epochs(1.0, evaluation=0.6)})
    assert found.evaluation == pytest.approx(1 / 6)
    equal, every = agreed(ddp=fine, ps=fine, ps_3={0: epochs(1.25, evaluation=None)})
    assert equal.judgement == "same", "and the others"
    assert (every.workers, every.first, every.evaluation) == (None, pytest.approx(0.2), 0.0)
    assert agreed(ddp=fine) == agreed(ddp=fine, ps={1: epochs(1.0)}) == [], "nothing to compare"
