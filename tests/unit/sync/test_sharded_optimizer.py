"""An optimizer with divided state on a group of one rank, where it is the optimizer that it divides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dynbench.errors import UsageError
from dynbench.sync import ShardedOptimizer

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        *((given, r"is no subclass of torch\.optim\.Optimizer") for given in (len, "AdamW", nn.Linear)),
        (torch.optim.LBFGS, "LBFGS steps all parameters together"),
    ],
)
def test_only_a_class_that_steps_each_parameter_by_itself_will_do(given: object, refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        ShardedOptimizer([nn.Parameter(torch.ones(2))], given, lr=0.1)  # type: ignore[arg-type]


class Counting(torch.optim.SGD):
    """Counts its steps in the group."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def test_it_steps_as_the_optimizer_that_it_divides_and_goes_on_from_its_state() -> None:
    """By the loss of a closure, with what is kept in the group."""
    weight = nn.Parameter(torch.ones(1))

    def stepped(optimizer: torch.optim.Optimizer, steps: int = 3) -> tuple[list[float], float, int]:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(steps)]
        return losses, weight.item(), optimizer.state_dict()["param_groups"][0]["steps"]

    whole = stepped(Counting([weight], lr=0.1))
    nn.init.ones_(weight)
    first = ShardedOptimizer([weight], Counting, lr=0.1)
    first_losses, _, counted = stepped(first, 2)
    again = ShardedOptimizer([weight], Counting, lr=0.1)
    again.load_state_dict(first.state_dict())
    last_losses, *ended = stepped(again, 1)
    assert (counted, ([*first_losses, *last_losses], *ended)) == (2, whole)


def test_a_parameter_that_is_given_twice_is_stepped_once() -> None:
    tied = nn.Parameter(torch.ones(1))
    optimizer = ShardedOptimizer([tied, tied], torch.optim.SGD, lr=0.1)
    tied.grad = torch.ones(1)
    optimizer.step()
    assert float(tied) == pytest.approx(0.9)


def test_a_state_of_other_groups_is_refused() -> None:
    one = ShardedOptimizer([nn.Parameter(torch.ones(2))], torch.optim.SGD, lr=0.1)
    two = ShardedOptimizer([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))], torch.optim.SGD, lr=0.1)
    with pytest.raises(UsageError, match=r"groups of \[1\] parameters, the optimizer has \[2\]"):
        two.load_state_dict(one.state_dict())
