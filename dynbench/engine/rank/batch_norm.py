"""Running statistics of batch normalisation, which every rank has of its own samples, made one for all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dynbench.config.image_rules import unequal_batch_norm
from dynbench.config.schema import Config

_log = logging.getLogger(__name__)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of a model."""
    found = (
        statistic
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        for statistic in (module.running_mean, module.running_var)
    )
    return [statistic for statistic in found if statistic is not None]


def average_statistics(
    model: nn.Module, samples: float, sum_over_ranks: Callable[[Sequence[float]], list[float]]
) -> None:
    """Give every rank the mean of all ranks' running statistics; a collective where the model has any.

    Args:
        model: changed in place.
        samples: what this rank's statistics count: samples that it has trained on since they were last made one; a
            rank that trains nothing receives those of the others.
        sum_over_ranks: adds up vectors over all ranks.
    """
    statistics = running_statistics(model)
    if not statistics:
        return
    mine = torch.cat([statistic.detach().flatten().to("cpu", torch.float64) for statistic in statistics])
    total, *sums = sum_over_ranks([samples, *(samples * mine).tolist()])
    if not total:
        return
    means = torch.tensor(sums, dtype=torch.float64) / total
    parts = torch.split(means, [statistic.numel() for statistic in statistics])
    with torch.no_grad():
        for statistic, part in zip(statistics, parts, strict=True):
            statistic.copy_(part.view_as(statistic))


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Running statistics stay as they are, also in training mode, in which batches are normalised by their own."""
    tracking = [each for each in model.modules() if isinstance(each, _BatchNorm) and each.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


def warn_of_unequal_numbers(config: Config, model: nn.Module) -> None:
    """Warn of a model of the user's own code that normalises over unequal numbers; of ours the configuration tells."""
    policy = config.schedule.policy_name
    if config.workload.runs_own_code and policy != "static" and any(isinstance(m, _BatchNorm) for m in model.modules()):
        _log.warning("%s", unequal_batch_norm(policy, f"the model of {config.workload.name}"))


class PlayedStatistics:
    """Running statistics of ranks that one process plays in turn, each of its own samples, as real ranks have them.

    Args:
        model: what the ranks share; holds the statistics of the rank that plays.
        ranks: their number.
    """

    def __init__(self, model: nn.Module, ranks: int) -> None:
        self._shared = running_statistics(model)
        self._own = [self._copy() for _ in range(ranks)]
        self._samples = [0.0] * ranks

    def begin(self, rank: int) -> None:
        """From here on, the model has this rank's."""
        self._set(self._own[rank])

    def end(self, rank: int, samples: float) -> None:
        """What this rank has, after it has trained on so many samples more."""
        self._own[rank] = self._copy()
        self._samples[rank] += samples

    def make_one(self) -> None:
        """Give every rank the mean of all, weighted by the samples since this was last done; see the above."""
        total = sum(self._samples)
        if not self._shared or not total:
            return
        weighted = zip(self._samples, self._own, strict=True)
        sums = [[samples * statistic.double() for statistic in own] for samples, own in weighted]
        self._set([torch.stack(parts).sum(0) / total for parts in zip(*sums, strict=True)])
        self._own = [self._copy() for _ in self._own]
        self._samples = [0.0] * len(self._own)

    def _copy(self) -> list[Tensor]:
        return [statistic.detach().clone() for statistic in self._shared]

    def _set(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for statistic, value in zip(self._shared, values, strict=True):
                statistic.copy_(value)
