"""Running statistics of batch normalisation, which every rank has of its own samples, made one for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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
