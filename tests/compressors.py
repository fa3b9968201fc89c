"""Every compressor of the registry in its forms, and ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.clock import Clock
from dynbench.compress import Codec, CompressedMean
from dynbench.compress.compressing import Compressing
from dynbench.config.layers import load_config
from dynbench.plugins import COMPRESSORS

FORMS = (
    *("fp16", "bf16", "bf16 rounding=stochastic", "int8", "int8 num_bits=4", "fp8", "fp8 format=e5m2"),
    *("qsgd", "qsgd bits=2 bucket_elements=7", "qsgd bits=8", "qsgd contractive=true"),
    *("natural", "natural contractive=true", "nc"),
    *("topk", "topk ratio=0.3", "randomk ratio=0.25", "randomk contractive=true ratio=0.25"),
    *("threshold", "threshold threshold=0", "thresholdv threshold=0.5"),
    *("signsgd", "signsgd error_feedback=false", "onebit"),
    *("topk+fp16", "topk+int8", "topk+int8 num_bits=4 ratio=0.3", "topk+qsgd"),
    *("randomk+fp16 ratio=0.25", "randomk+qsgd ratio=0.25 bits=8", "threshold+fp16"),
)
"""Compressors with their options."""
OWN = ("powersgd", "gradiveq slice_elements=8 components=3 refresh_every=3", "sketch ratio=0.1")
"""Those of ours with collectives of their own, which have files of tests of their own."""
ELSEWHERE = (*(form.split()[0] for form in OWN), "fp16_torch")
"""Names of compressors that are made of no codec."""
NAMED = [name for name, entry in COMPRESSORS.items() if entry.compresses]


def settings(form: str) -> list[str]:
    """Of a form, what chooses it; small parameters are compressed too."""
    name, *options = form.split()
    return [f"compress.name={name}", "compress.min_elements=0", *(f"compress.{option}" for option in options)]


def compressor(form: str, *more: str) -> Compressing:
    """A new compressor of a form."""
    section = load_config(None, [*settings(form), *more]).compress
    made = COMPRESSORS[section.name].load()(section)
    assert isinstance(made, Compressing)
    return made


def averager(form: str, *more: str) -> CompressedMean:
    """One that is made of a codec."""
    made = compressor(form, *more)
    assert isinstance(made, CompressedMean)
    return made


@cache
def codec(form: str) -> Codec:
    """What a form makes of a tensor; keeps nothing."""
    return averager(form).codec


class Done:
    """Something that has been waited for."""

    def wait(self) -> None:
        pass


class Channel:
    """One rank's collectives with those of other threads; counts the bytes that it hands in."""

    def __init__(self, rank: int, world_size: int, meet: threading.Barrier, table: list[Any]) -> None:
        self.rank, self.world_size, self._meet, self._table = rank, world_size, meet, table
        self.ledger = SimpleNamespace(clock=Clock())
        self.calls: list[tuple[str, int]] = []

    def _exchange(self, name: str, given: Tensor) -> list[Tensor]:
        self.calls.append((name, given.nbytes))
        self._table[self.rank] = given.clone()
        self._meet.wait()
        found = list(self._table)
        self._meet.wait()
        assert len({(len(each), each.dtype) for each in found}) == 1, "ranks send alike"
        return found

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Done:
        stacked = torch.stack(self._exchange("all_reduce", tensor))
        tensor.copy_(stacked.sum(0, dtype=tensor.dtype) if op == dist.ReduceOp.SUM else stacked.amax(0))
        return Done()

    def reduce_scatter(self, shard: Tensor, full: Tensor) -> Done:
        total = torch.stack(self._exchange("reduce_scatter", full)).sum(0, dtype=full.dtype)
        shard.copy_(total.view(self.world_size, -1)[self.rank])
        return Done()

    def all_gather(self, full: Tensor, shard: Tensor) -> Done:
        full.copy_(torch.cat(self._exchange("all_gather", shard)))
        return Done()

    def all_to_all(self, received: Tensor, given: Tensor) -> Done:
        theirs = self._exchange("all_to_all", given)
        received.copy_(torch.cat([each.view(self.world_size, -1)[self.rank] for each in theirs]))
        return Done()


def on_threads(ranks: int, work: Callable[[Any], Any]) -> list[Any]:
    """What `work` gives on every rank's channel."""
    meet, table = threading.Barrier(ranks, timeout=60), [None] * ranks

    def run(rank: int) -> Any:
        try:
            with torch.no_grad():
                return work(Channel(rank, ranks, meet, table))
        except BaseException:
            meet.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        done = [pool.submit(run, rank) for rank in range(ranks)]
    errors = [each.exception() for each in done if each.exception()]
    for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise error
    return [each.result() for each in done]


def same_bits(tensors: Sequence[Tensor]) -> bool:
    """Whether they are equal to the bit, what is no number included."""
    first = tensors[0].contiguous().view(torch.uint8)
    return all(torch.equal(first, other.contiguous().view(torch.uint8)) for other in tensors[1:])
