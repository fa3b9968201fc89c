"""Running statistics of batch normalisation become those of all ranks, by the samples that they were taken from."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dynbench.config.schema import Train
from dynbench.engine.rank.evaluation import Epochs
from dynbench.engine.rank.loop import ArmLoop
from dynbench.engine.rank.replica import average_statistics, running_statistics


class Meeting:
    """Adds up the vectors of ranks that are threads."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._given: dict[int, list[float]] = {}

    def of(self, rank: int):
        def added(values):
            self._given[rank] = list(values)
            self._barrier.wait(30)
            return [sum(column) for column in zip(*self._given.values(), strict=True)]

        return added


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)))


def averaged(samples: list[int]) -> tuple[list[nn.Module], list[list[torch.Tensor]]]:
    """Models of ranks that trained on so many samples each, and their statistics before."""
    torch.manual_seed(0)
    first, meeting = network(), Meeting(len(samples))
    models = [copy.deepcopy(first) for _ in samples]
    for model, number in zip(models, samples, strict=True):
        if number:
            model(torch.randn(number, 3, 8, 8) * number)
    before = [[statistic.clone() for statistic in running_statistics(model)] for model in models]
    threads = [
        threading.Thread(target=average_statistics, args=(model, number, meeting.of(rank)))
        for rank, (model, number) in enumerate(zip(models, samples, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return models, before


@pytest.mark.parametrize("samples", [[6, 2, 4], [5, 0], [3]])
def test_every_rank_has_the_mean_weighted_by_samples(samples: list[int]) -> None:
    models, before = averaged(samples)
    for place in range(4):
        wanted = sum(number * rank[place].double() for number, rank in zip(samples, before, strict=True)) / sum(samples)
        for model in models:
            torch.testing.assert_close(running_statistics(model)[place].double(), wanted, rtol=1e-6, atol=1e-7)


def test_an_unweighted_mean_would_show() -> None:
    models, before = averaged([6, 2])
    plain = (before[0][0] + before[1][0]) / 2
    assert not torch.allclose(running_statistics(models[0])[0], plain)


def test_other_models_exchange_nothing() -> None:
    average_statistics(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), 5, lambda _: pytest.fail("a collective"))


def test_where_nothing_was_trained_since_nothing_changes() -> None:
    model = network()
    before = [statistic.clone() for statistic in running_statistics(model)]
    average_statistics(model, 0, list)
    assert all(map(torch.equal, before, running_statistics(model)))


def test_they_are_made_one_before_an_evaluation_and_not_where_a_signal_parts_the_ranks() -> None:
    """Ranks that a signal stops are not after the same step: nobody would answer a collective."""
    model, told = network(), []
    model(torch.randn(4, 3, 8, 8))

    def added(values):
        told.append("averaged")
        return [2 * value for value in values]

    evaluator = SimpleNamespace(
        sum_over_ranks=added,
        after=lambda *_: told.append("evaluated"),
        interrupted=lambda *_: told.append("kept"),
    )
    replica = SimpleNamespace(strategy=SimpleNamespace(model=model), take_trained=lambda: 4, precision=None)
    loop = ArmLoop(None, replica, None, None, evaluator, Epochs(Train(), list))  # type: ignore[arg-type]  # what is used
    loop.evaluate(3)
    loop.interrupted(4)
    assert told == ["averaged", "evaluated", "kept"]
