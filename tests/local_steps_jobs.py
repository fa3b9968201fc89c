"""What warm ranks do under strategies whose ranks step apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from strategy_jobs import before, configured, train_run
from sync_jobs import stepping
from torch import Tensor, nn

from dynbench.config.schema import Config
from dynbench.engine.planning import ReplicatedPlans
from dynbench.engine.rank.toy_check import toy_model
from dynbench.sync import local_steps

RATE, SCALE, MOMENTUM = 0.1, 0.5, 0.8
"""Of the inner step, and of the outer one."""


def constant(rank: int) -> Callable[[nn.Module], Tensor]:
    """A loss whose gradient is this rank's own constant."""
    return lambda module: sum((p * (rank + 1)).sum() for p in module.parameters())


def streamed(rank: int, overlap: int, own: float, steps: int = 12) -> list[float]:
    """A weight after each step, where an outer step of every fourth one takes `overlap` steps."""
    given = ("inner_steps=4", f"overlap_steps={overlap}", f"own_share={own}", f"outer_rate={SCALE}")
    config = configured("diloco", *(f"sync.{each}" for each in (*given, f"outer_momentum={MOMENTUM}")))
    model, found = nn.Linear(1, 1, bias=False).double(), []
    nn.init.ones_(model.weight)
    with stepping(config, model, RATE) as stepped:
        for _ in range(steps):
            stepped(constant(rank))
            found.append(float(model.weight))
        stepped.strategy.drain()
    return found


def sent_and_met(rank: int, fragments: int, overlap: int) -> tuple[list[int], list[int], list[tuple[int, int]], int]:
    """Of three rounds: bytes sent after each step, parameters that went on from a mean, and when each was asked for.

    Last all trained elements.
    """
    given = ("sync.inner_steps=4", f"sync.fragments={fragments}", f"sync.overlap_steps={overlap}")
    sent, met, events, receive = [], [], [], local_steps.Fragment.receive

    def received(fragment: Any) -> Any:
        events.append((fragment.sent_after, len(met) + 1))
        return receive(fragment)

    with (
        patch.object(local_steps.Fragment, "receive", received),
        stepping(configured("diloco", *given), toy_model()) as steps,
    ):
        steps.strategy.wire.take()
        for _ in range(12):
            met.append(steps()["met_parameters"])
            steps.strategy.drain()  # so that what was sent is counted where it was
            sent.append(steps.strategy.wire.take().bytes_raw)
        return sent, met, events, sum(p.numel() for p in steps.module.parameters() if p.requires_grad)


def stopped(rank: int, sync: str, number: int) -> tuple[float, bool] | None:
    """What the first rank gives alone that stopped after some steps, every fourth of which averaged the models.

    Returns:
        How far it is from the weights after the last average, None where it gives nothing; whether the rank's own
        weights have stayed.
    """
    torch.manual_seed(0)
    with stepping(configured(sync, "sync.inner_steps=4"), nn.Linear(3, 3).double(), RATE) as steps:
        module, met = steps.module, {}
        for _ in range(number):
            if steps(constant(rank))["met_parameters"]:
                met = deepcopy(module.state_dict())
        own = deepcopy(module.state_dict())
        given = steps.strategy.state_alone() if rank == 0 else None
        dist.barrier()
        if given is None:
            return None
        stayed = all(torch.equal(own[name], tensor) for name, tensor in module.state_dict().items())
        return max(float((given[name] - met[name]).abs().max()) for name in given), stayed


def averaged(rank: int, piece: int) -> tuple[float, int, bool]:
    """An evaluation of ranks that have moved apart.

    Returns:
        How far what is evaluated is from their mean; the most elements that a gather was of; whether a rank's own
        parameters are back afterwards.
    """
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    with patch.object(local_steps, "PIECE", piece), stepping(configured("local_sgd"), model) as steps:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(rank)
        own, wire = deepcopy(model.state_dict()), steps.strategy.wire
        with patch.object(wire, "gather", wraps=wire.gather) as gather, steps.strategy.evaluating() as mean:
            found = deepcopy(mean.state_dict())
        apart = max(float((found[name] - tensor - 0.5 + rank).abs().max()) for name, tensor in own.items())
        back = all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
        return apart, max(len(call.args[0]) for call in gather.call_args_list), back


def trained_ahead(rank: int, folder: str, config: Config, gate: str, first: int, patience_s: float) -> None:
    """A run in which the last rank begins only when the first one has come to a step of its own."""
    opened = Path(gate)

    def gated(_: ReplicatedPlans, step: int) -> None:
        if rank == 0 and step == first:
            opened.touch()
        if rank == 1 and step == 0:
            deadline = time.monotonic() + patience_s
            while not opened.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the first rank has not come to step {first}")
                time.sleep(0.01)

    with before(ReplicatedPlans, "share", gated):
        train_run(rank, folder, config)
    dist.barrier()
