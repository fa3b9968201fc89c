"""An optimizer with divided state on a group of one rank, where it is the optimizer that it divides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dynbench.errors import UsageError
from dynbench.sync import ShardedOptimizer


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("given", [len, "AdamW", nn.Linear, torch.optim.AdamW([nn.Parameter(torch.ones(1))])])
def test_only_an_optimizer_s_class_will_do(given: object) -> None:
    with pytest.raises(UsageError, match=r"is no subclass of torch\.optim\.Optimizer"):
        ShardedOptimizer([nn.Parameter(torch.ones(2))], given, lr=0.1)  # type: ignore[arg-type]


def test_lbfgs_which_steps_all_parameters_together_is_refused() -> None:
    with pytest.raises(UsageError, match="LBFGS steps all parameters together"):
        ShardedOptimizer([nn.Parameter(torch.ones(2))], torch.optim.LBFGS, lr=0.1)


class Counting(torch.optim.SGD):
    """Counts its steps in the group."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def test_what_an_optimizer_keeps_in_its_groups_goes_on_and_is_part_of_the_state() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = ShardedOptimizer([weight], Counting, lr=0.1)
    for count in (1, 2, 3):
        weight.grad = torch.ones(1)
        optimizer.step()
        assert optimizer.state_dict()["param_groups"][0]["steps"] == count
    again = ShardedOptimizer([weight], Counting, lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    again.step()
    assert again.param_groups[0]["steps"] == 4


def test_schedulers_and_groups_work_on_it() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = ShardedOptimizer([{"params": [first], "lr": 0.5}, {"params": second}], torch.optim.SGD, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    for expected in (0.5, 0.05):
        before = first.detach().clone()
        first.grad, second.grad = torch.ones(2), torch.ones(3)
        optimizer.step()
        scheduler.step()
        assert (before - first).tolist() == pytest.approx([expected] * 2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.001])
    assert optimizer.defaults["momentum"] == 0


def test_a_closure_is_evaluated_and_its_loss_returned() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = ShardedOptimizer([weight], torch.optim.SGD, lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (2 * weight).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 2.0
    assert float(weight) == pytest.approx(0.8)


def test_a_group_added_later_leaves_the_state_of_the_others() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = ShardedOptimizer([first], torch.optim.AdamW, lr=0.1)
    first.grad = torch.ones(2)
    optimizer.step()
    optimizer.add_param_group({"params": [second], "lr": 0.2})
    first.grad, second.grad = torch.ones(2), torch.ones(3)
    optimizer.step()
    assert [float(optimizer.state[parameter]["step"]) for parameter in (first, second)] == [2, 1]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


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
