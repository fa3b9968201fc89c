"""The learning rate of every step."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from dynbench.config.schema import Train


def rate_factor(step: int, train: Train) -> float:
    """What part of `train.learning_rate` a step is taken with.

    Args:
        step: optimizer step, from 0, warm-up included.
        train: how it rises over `lr_warmup_steps`, and falls to 0 behind the last step.
    """
    if step < train.lr_warmup_steps:
        return (step + 1) / train.lr_warmup_steps
    if train.schedule == "constant":
        return 1.0
    done = (step - train.lr_warmup_steps) / (train.warmup_steps + train.steps - train.lr_warmup_steps)
    return 1 - done if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2


class LearningRate:
    """Sets the rate of an optimizer's parameters before each of its steps.

    Args:
        optimizer: with the full rate in its groups.
        train: the schedule.
    """

    def __init__(self, optimizer: Optimizer, train: Train) -> None:
        self._optimizer = optimizer
        self._train = train
        self._full = [float(group["lr"]) for group in optimizer.param_groups]
        self._step = 0

    def advance(self) -> None:
        """For the next step, skipped or not."""
        factor = rate_factor(self._step, self._train)
        for group, full in zip(self._optimizer.param_groups, self._full, strict=True):
            group["lr"] = factor * full
        self._step += 1
