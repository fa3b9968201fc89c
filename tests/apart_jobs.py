"""What warm ranks do with strategies under which they step apart."""

from __future__ import annotations

import time
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from strategy_jobs import CPU, named, train_run
from torch import nn

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.planning import ReplicatedPlans
from dynbench.engine.rank.loop import build_strategy, session
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.toy_check import toy_model
from dynbench.sync import local_steps

RATE, SCALE, MOMENTUM = 0.1, 0.5, 0.8
"""Of the inner step, and of the outer one."""


def diloco(*settings: str) -> Config:
    return named(load_config(None, list(settings)), "diloco", "none")


def stepper(strategy: Any, module: nn.Module, rank: int) -> Any:
    """Takes a step along a constant gradient of this rank's own."""
    optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=RATE))

    def step() -> None:
        sum((p * (rank + 1)).sum() for p in module.parameters()).backward()
        strategy.finish()
        strategy.step(optimizer, Precision("fp32", CPU))
        optimizer.zero_grad()

    return step


def streamed(rank: int, overlap: int, own: float, steps: int = 12) -> list[float]:
    """A weight after each step, where a meeting of every fourth one takes `overlap` steps."""
    settings = ("inner_steps=4", f"overlap_steps={overlap}", f"own_share={own}", f"outer_rate={SCALE}")
    config = diloco(*(f"sync.{setting}" for setting in (*settings, f"outer_momentum={MOMENTUM}")))
    with session(build_strategy(config, CPU)) as strategy:
        module = nn.Linear(1, 1, bias=False).double()
        nn.init.ones_(module.weight)
        strategy.wrap(module, CPU)
        step, found = stepper(strategy, module, rank), []
        for _ in range(steps):
            step()
            found.append(float(module.weight))
        strategy.drain()
        return found


def sent_and_met(rank: int, fragments: int, overlap: int) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Of three rounds: bytes sent after each step, parameters that went on from a mean, and when each was asked for."""
    config = diloco("sync.inner_steps=4", f"sync.fragments={fragments}", f"sync.overlap_steps={overlap}")
    with session(build_strategy(config, CPU)) as strategy:
        module, events = strategy.wrap(toy_model(), CPU), []
        optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
        now, receive = [0], local_steps.Fragment.receive
        strategy.wire.take()
        sent, met = [], []

        def received(fragment: Any) -> Any:
            events.append((fragment.sent_after, now[0]))
            return receive(fragment)

        with patch.object(local_steps.Fragment, "receive", received):
            for number in range(1, 13):
                now[0] = number
                module(torch.arange(12).view(2, 6)).sum().backward()
                strategy.finish()
                strategy.step(optimizer, Precision("fp32", CPU))
                optimizer.zero_grad()
                strategy.drain()  # so that what was sent is counted where it was
                sent.append(strategy.wire.take().bytes_raw)
                met.append(strategy.row()["met_parameters"])
        return sent, met, events


def stopped(rank: int, sync: str, steps: int) -> tuple[float, bool] | None:
    """What the first rank gives alone that stopped after some steps, of which every fourth one was a meeting.

    Returns:
        How far it is from the weights after the meeting before, None where it gives nothing; whether the rank's own
        weights have stayed.
    """
    with session(build_strategy(named(load_config(None, ["sync.inner_steps=4"]), sync, "none"), CPU)) as strategy:
        torch.manual_seed(0)
        module = strategy.wrap(nn.Linear(3, 3).double(), CPU)
        step, met = stepper(strategy, module, rank), {}
        for _ in range(steps):
            step()
            if strategy.row()["met_parameters"]:
                met = deepcopy(module.state_dict())
        own = deepcopy(module.state_dict())
        given = strategy.state_alone() if rank == 0 else None
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
    with (
        patch.object(local_steps, "PIECE", piece),
        session(build_strategy(named(load_config(None, []), "local_sgd", "none"), CPU)) as strategy,
    ):
        module = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        strategy.wrap(module, CPU)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(rank)
        own = [p.detach().clone() for p in module.parameters()]
        wanted = [p + (0.5 - rank) for p in own]
        gather, sizes = strategy.wire.gather, []

        def noting(full: Any, shard: Any) -> Any:
            sizes.append(len(full))
            return gather(full, shard)

        with patch.object(strategy.wire, "gather", noting), strategy.evaluating() as model:
            apart = max(float((p - q).detach().abs().max()) for p, q in zip(model.parameters(), wanted, strict=True))
        back = all(torch.equal(p, q) for p, q in zip(module.parameters(), own, strict=True))
        return apart, max(sizes), back


def trained_ahead(rank: int, folder: str, config: Config, gate: str, first: int, patience_s: float) -> None:
    """A run in which the last rank begins only when the first one has come to a step of its own."""
    opened, share = Path(gate), ReplicatedPlans.share

    def told(self: ReplicatedPlans, step: int) -> Any:
        if rank == 0 and step == first:
            opened.touch()
        if rank == 1 and step == 0:
            deadline = time.monotonic() + patience_s
            while not opened.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the first rank has not come to step {first}")
                time.sleep(0.01)
        return share(self, step)

    with patch.object(ReplicatedPlans, "share", told):
        train_run(rank, folder, config)
    dist.barrier()
