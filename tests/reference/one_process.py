"""Training written a second time, to hold the package against: one process, float64, every sample by itself.

Nothing of the package is used. Plans, samples and first weights are given; losses, what samples weigh, clipping, the
learning rate's course and AdamW are written out from their definitions. As samples run alone, there is no padding, no
mask, no packed row, no micro-batch and no rank: who runs what only says which samples make up a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LossOf = Callable[[nn.Module, int], tuple[Tensor, float]]
"""Of a model and a sample's id: its summed loss, and what it weighs."""


@dataclass(frozen=True)
class Course:
    """How a model is trained: AdamW, whose rate rises in a line over `rise` of the `steps`, and falls as half a cosine.

    Args:
        steps: optimizer steps.
        rise: how many of them have less than the full rate, to begin with.
        rate: the full learning rate.
        decay: weight decay, apart from the gradient.
        most: largest norm of the gradient.
    """

    steps: int
    rise: int
    rate: float
    decay: float
    most: float

    def rate_of(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        if step < self.rise:
            return self.rate * (step + 1) / self.rise
        return self.rate * (1 + math.cos(math.pi * (step - self.rise) / (self.steps - self.rise))) / 2


class AdamW:
    """Loshchilov and Hutter's, with the constants that PyTorch has."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.taken = list(parameters), decay, 0
        self.first = [torch.zeros_like(each) for each in self.parameters]
        self.second = [torch.zeros_like(each) for each in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move the parameters."""
        self.taken += 1
        for parameter, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            first.copy_(0.9 * first + 0.1 * gradient)
            second.copy_(0.999 * second + 0.001 * gradient**2)
            mean, square = first / (1 - 0.9**self.taken), second / (1 - 0.999**self.taken)
            parameter -= rate * self.decay * parameter
            parameter -= rate * mean / (square.sqrt() + 1e-8)


def train(model: nn.Module, plans: Sequence[Sequence[int]], loss_of: LossOf, course: Course) -> list[tuple[float, ...]]:
    """Train a model in place.

    Args:
        model: in float64, without dropout.
        plans: the ids of every step's samples.
        loss_of: of one sample.
        course: how.

    Returns:
        Of each step: the mean loss over what its samples weigh, and the gradient's norm before it was clipped.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer, found = AdamW(parameters, course.decay), []
    for step, samples in enumerate(plans):
        total, weight = torch.zeros((), dtype=torch.float64), 0.0
        sums = [torch.zeros_like(each) for each in parameters]
        for sample in samples:
            loss, counts = loss_of(model, sample)
            for into, part in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                into += part
            total, weight = total + loss.detach(), weight + counts
        gradients = [each / weight for each in sums]
        norm = math.sqrt(sum(float((each**2).sum()) for each in gradients))
        shrunk = min(1.0, course.most / (norm + 1e-6))  # as torch clips
        optimizer.step([shrunk * each for each in gradients], course.rate_of(step))
        found.append((float(total) / weight, norm))
    return found


def class_loss(logits: Tensor, label: int) -> tuple[Tensor, float]:
    """Cross entropy of one sample's logits, shape [classes]; each sample counts one."""
    return logits.logsumexp(0) - logits[label], 1.0


def token_loss(logits: Tensor, tokens: Tensor) -> tuple[Tensor, float]:
    """Cross entropy of one sample's logits, shape [T, vocabulary], with the tokens that follow; it counts these."""
    targets = tokens[1:]
    chosen = logits[torch.arange(len(targets)), targets]
    return (logits[: len(targets)].logsumexp(1) - chosen).sum(), float(len(targets))
