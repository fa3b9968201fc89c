"""What a rank holds of the parameters, counted by hand."""

from __future__ import annotations

import pytest

from dynbench.config.held import copies_held, copies_served, held_said
from dynbench.config.layers import load_config
from dynbench.config.ranks import Ranks, ranks_under
from dynbench.plugins import STRATEGIES

ADAMW, SGD, PLAIN = [], ["train.optimizer=sgd"], ["train.optimizer=sgd", "train.momentum=0"]


@pytest.mark.parametrize(
    ("sync", "optimizer", "workers", "copies"),
    [
        ("ddp", ADAMW, 4, 4),
        ("ddp", SGD, 4, 3),
        ("ddp", PLAIN, 4, 2),
        ("zero1", ADAMW, 4, 2 + (1 + 2) / 4),
        ("zero1", ADAMW, 1, 5),
        ("zero1_torch", ADAMW, 4, 2 + 2 / 4),
        ("fsdp", ADAMW, 4, 4 / 4),
        ("fsdp", PLAIN, 2, 2 / 2),
        ("ps", ADAMW, 4, 2),
        ("local_sgd", SGD, 4, 4),
        ("diloco", ADAMW, 4, 6),
    ],
)
def test_copies_between_steps(sync: str, optimizer: list[str], workers: int, copies: float) -> None:
    config = load_config(None, [f"sync.name={sync}", *optimizer])
    ranks = ranks_under(sync, workers + STRATEGIES[sync].servers)
    assert copies_held(config, ranks) == copies
    assert f"a rank holds {copies:.3g} copies" in held_said(config, ranks)


@pytest.mark.parametrize("sync", STRATEGIES)
def test_more_ranks_never_hold_more_each(sync: str) -> None:
    config, servers = load_config(None, [f"sync.name={sync}"]), STRATEGIES[sync].servers
    held = [copies_held(config, Ranks(workers + servers, servers), in_step=True) for workers in (1, 2, 4)]
    assert held == sorted(held, reverse=True)
    assert held[0] >= copies_held(config, Ranks(1 + servers, servers))
    assert (copies_served(config) > 0) == (servers > 0)
