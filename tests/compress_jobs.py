"""What warm ranks do with compressors under strategies, by their forms."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import torch
import torch.distributed as dist
from compressors import compressor, settings
from sync_jobs import CPU, configured
from sync_models import MODELS
from torch import Tensor, nn

from dynbench.engine.rank.loop import build_strategy, session
from dynbench.engine.rank.toy_check import Case, State, difference, train_alone, train_on_ranks
from dynbench.wire.base import QueuedWire
from dynbench.wire.channel import Channel
from dynbench.wire.segment import lay_out

STEPS = 6


@cache
def alone(workers: int) -> State:
    return train_alone(Case("sgd", steps=STEPS), workers)


def digest(module: nn.Module) -> str:
    """Of all that a model has, as it lies on this rank."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def trained(rank: int, sync: str, forms: Sequence[str]) -> dict[str, tuple[str, float, float, int]]:
    """Steps of every form on the toy.

    Returns:
        By form: a digest of the model on this rank, the largest difference of a weight from one process's and from
        where it began (on rank 0), and what was sent.
    """
    results = {}
    for form in forms:
        config = configured(sync, "sync.inner_steps=2", *settings(form))
        with session(build_strategy(config, CPU)) as strategy:
            state = train_on_ranks(strategy, Case("sgd", steps=STEPS))
            sent = strategy.wire.take().bytes_wire
            word = "" if sync == "fsdp" else digest(strategy.model)
        apart = moved = 0.0
        if state is not None:
            apart = difference(state, alone(dist.get_world_size())).largest
            moved = difference(state, MODELS["toy"]().state_dict()).largest
        results[form] = (word, apart, moved, sent)
    return results


def in_flight(rank: int, forms: Sequence[str]) -> list[bool]:
    """Whether many gradients handed in at once come out as one after the other."""
    found = []
    for form in forms:
        results: list[list[Tensor]] = []
        for waits in (True, False):
            wire = QueuedWire(Channel(device=CPU), compressor(form))
            source = torch.Generator().manual_seed(rank)
            futures = []
            for place in range(8):
                flat = torch.randn(60 + 7 * place, generator=source)
                futures.append(wire.mean(flat, lay_out([(f"p{place}", [len(flat)])])))
                if waits:
                    futures[-1].wait()
            results.append([future.wait() for future in futures])
            wire.close()
        found.append(all(map(torch.equal, *results)))
    return found


def measured(rank: int, form: str, shards: bool) -> list[tuple[float | None, float, int]]:
    """Of three averages, the relative error as the compressor says it and as it is of the whole gradient, and bytes."""
    made, channel, found = compressor(f"{form} error_every=2"), Channel(device=CPU), []
    for step in range(3):
        flat = torch.randn(600, generator=torch.Generator().manual_seed(10 * step + rank))
        exact = flat / 2
        dist.all_reduce(exact)
        segments = lay_out([("weight", [20, 30])])
        if shards:
            shard = torch.empty(300)
            made.mean_shard(channel, flat, segments, shard)
            dist.all_gather(list(flat.view(2, -1)), shard)
        else:
            made.mean(channel, flat, segments)
        row = made.row()
        error = row["grad_rel_error"]
        assert (error is None) == (row["grad_cos_sim"] is None) == (row["residual_norm"] is None)
        assert error is None or 0 <= row["grad_cos_sim"] <= 1 + 1e-9
        found.append((error, float((flat - exact).norm() / exact.norm()), channel.ledger.take().bytes_wire))
    return found
