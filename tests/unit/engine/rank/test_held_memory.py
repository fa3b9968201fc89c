"""What autograd saves in a step is that of its largest micro-batch, whatever storage the next one reuses."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dynbench.engine.rank.memory import Saved


def most(*rows: int) -> int:
    """Bytes saved in a step with micro-batches of so many rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    saved = Saved()
    with saved_tensors_hooks(saved.save, lambda kept: kept.tensor):
        for number in rows:
            model(torch.randn(number, 8)).sum().backward()
    assert saved.now == 0, "a backward pass lets go of all"
    return saved.most


def test_what_is_saved_is_that_of_the_largest_micro_batch() -> None:
    inputs_and_states = 4 * (8 + 16 + 16)
    assert most(100) == 100 * inputs_and_states
    assert most(10, 100, 60, 99, 30) == most(100)


def test_storage_that_several_share_counts_until_the_last_lets_go() -> None:
    states, saved = torch.zeros(10, 4), Saved()
    first, second = saved.save(states), saved.save(states[2:].T)
    assert saved.now == saved.most == 160
    del first
    assert saved.now == 160
    del second
    assert (saved.now, saved.most) == (0, 160)
    assert saved.save(nn.Parameter(states)).tensor.shape == (10, 4) and saved.now == 0
