"""What the busiest process of an arm does in a step, message by message; and how far apart losses are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dynbench.analysis.table_specs import TABLES
from dynbench.analysis.topology import Agreement, Busiest, against, agreements, busiest

SIZES = (24, 240, 4800)
"""Bytes of the tensors of a model; divisible by every number of ranks here."""


def summary(workers: int, servers: int, step_ms: float, transfer_ms: float, **more: object) -> dict[str, Any]:
    """A run's summary, with what its operations send."""
    calls, sizes = len(SIZES), sum(SIZES)
    if servers:
        operations = [
            {"side": side, "operation": name, "calls": calls * n, "bytes": sent * n, "transfer_ms": transfer_ms / 2}
            for side, n in (("worker", 1), ("server", workers))
            for name, sent in (("send", sizes), ("receive", 0))
        ]
    else:
        sent = sizes * 2 * (workers - 1) / workers
        all_reduce = {"operation": "all_reduce", "calls": calls, "bytes": sent, "transfer_ms": transfer_ms}
        operations = [{"side": "worker", **all_reduce}]
    return {
        "workers": workers,
        "world_size": workers + servers,
        "by_operation": operations,
        "step_time_ms": {"mean": step_ms},
        "comm_transfer_ms": {"mean": transfer_ms},
        **more,
    }


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_tensor_of_every_worker_passes_a_server_twice(workers: int) -> None:
    (found,) = busiest({"ps": [summary(workers, 1, 9.0, 4.0)]})
    passing = [size for size in SIZES for _ in range(2 * workers)]
    assert found == Busiest("ps", workers, workers + 1, "server", len(passing), sum(passing), 4.0, 9.0)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_ring_sends_and_receives_at_once(ranks: int) -> None:
    """Each tensor's parts go round once to be added up, and once more as sums."""
    (found,) = busiest({"ring": [summary(ranks, 0, 9.0, 4.0)]})
    sends = [size // ranks for size in SIZES for _ in range(2 * (ranks - 1))]
    assert (found.messages, found.bytes) == (len(sends), pytest.approx(2 * sum(sends)))


def test_means_are_over_launches_and_arms_without_times_are_left_out() -> None:
    unknown = summary(2, 0, 9.0, 4.0, by_operation=[])
    found = busiest({"ps": [summary(2, 1, 9.0, 4.0), summary(2, 1, 11.0, 8.0)], "old": [unknown], "none": []})
    assert [(one.arm, one.step_ms, one.transfer_ms) for one in found] == [("ps", 10.0, 6.0)]
    assert TABLES["busiest"].table({"ring": [summary(2, 0, 9.0, 4.0)]}) is None, "without a server"


def test_arms_are_held_against_each_other_at_equal_workers_or_a_server_at_equal_processes() -> None:
    sizes = {"ring_2": (2, 0), "ring_4": (4, 0), "other_4": (4, 0), "ps_4": (4, 1), "ps_3": (3, 1), "ps_1": (1, 1)}
    found = against(busiest({name: [summary(*each, 9.0, 4.0)] for name, each in sizes.items()}))
    pairs = {frozenset((pair.one.arm, pair.other.arm)) for pair in found}
    assert pairs == {
        *map(frozenset, (("ring_4", "other_4"), ("ring_4", "ps_4"), ("other_4", "ps_4"))),
        *map(frozenset, (("ring_4", "ps_3"), ("other_4", "ps_3"), ("ring_2", "ps_1"))),
    }


@pytest.mark.parametrize("explained", [True, False])
def test_messages_explain_an_order_only_where_their_times_differ_likewise(explained: bool) -> None:
    """By half to twice as much: a server slower or faster than a ring of 10 ms a step, 4 ms of it transfers."""
    for ps in ((20.0, 12.0), (6.0, 1.0)) if explained else ((20.0, 4.0), (20.0, 7.0), (9.5, 1.0), (6.0, 9.0)):
        (pair,) = against(busiest({"ring": [summary(4, 0, 10.0, 4.0)], "ps": [summary(4, 1, *ps)]}))
        assert (pair.one.arm, pair.longer_ms, pair.explained) == ("ps", ps[0] - 10.0, explained)


@pytest.mark.parametrize(("times", "follows"), [(1.3, "messages"), (2.6, "bytes"), (0.9, None)])
def test_the_time_in_transfer_grew_like_what_is_nearer_to_it(times: float, follows: str | None) -> None:
    """A server of four exchanges 24 messages for a ring's 18, and 2.67 times the bytes."""
    (pair,) = against(busiest({"ring": [summary(4, 0, 10.0, 4.0)], "ps": [summary(4, 1, 20.0, 4.0 * times)]}))
    assert pair.times == pytest.approx({"messages": 24 / 18, "bytes": 8 / 3, "transfer_ms": times})
    assert pair.follows == follows and pair.servers == 3, "three share what two and two thirds carry"


def epochs(*losses: float, evaluation: float | None = 0.5) -> list[Any]:
    return [{"epoch": n, "train_loss": loss, "eval_loss": evaluation} for n, loss in enumerate(losses, 1)]


def agreed(**arms: dict[object, Sequence[Any]]) -> list[Agreement]:
    return list(agreements(arms, {"ddp": 4, "ring": 4, "ps": 4, "ps_3": 3}, 0.05))


def test_losses_of_equal_workers_are_held_against_each_other_launch_by_launch() -> None:
    """By seed, whatever the order of launches."""
    first, second = epochs(1.0, 0.5), epochs(2.0, 1.0)
    (found,) = agreed(ddp={0: first, 1: second}, ring={1: second, 0: first}, ps={0: first, 1: second})
    assert (found.workers, found.training, found.evaluation, found.judgement) == (4, 0.0, 0.0, "same")


@pytest.mark.parametrize("loss", [0.4, 0.6, float("nan")])
def test_an_arm_with_another_loss_is_seen(loss: float) -> None:
    """One epoch of one launch of one arm."""
    fine = {0: epochs(1.0, 0.5), 1: epochs(1.0, 0.5)}
    (found,) = agreed(ddp=fine, ring=fine, ps={**fine, 1: epochs(1.0, loss)})
    assert found.judgement == "apart" and "ps" in found.pair and found.epoch == 2
    assert found.first == 0 and (loss != loss or found.training == pytest.approx(abs(loss - 0.5) / max(loss, 0.5)))


@pytest.mark.parametrize(("loss", "judgement"), [(0.5004, "same"), (0.502, "near"), (0.52, "near"), (0.53, "apart")])
def test_what_rounding_does_and_what_it_does_not_are_told_apart(loss: float, judgement: str) -> None:
    fine = {0: epochs(1.0, 0.5)}
    assert [each.judgement for each in agreed(ddp=fine, ps={0: epochs(1.0, loss)})] == [judgement]


def test_another_loss_of_the_evaluation_is_seen_and_other_workers_are_told_apart() -> None:
    fine = {0: epochs(1.0)}
    (found,) = agreed(ddp=fine, ps={0: epochs(1.0, evaluation=0.6)})
    assert found.evaluation == pytest.approx(1 / 6)
    equal, every = agreed(ddp=fine, ps=fine, ps_3={0: epochs(1.25, evaluation=None)})
    assert equal.judgement == "same", "and the others"
    assert (every.workers, every.first, every.evaluation) == (None, pytest.approx(0.2), 0.0)
    assert agreed(ddp=fine) == agreed(ddp=fine, ps={1: epochs(1.0)}) == [], "nothing to compare"
