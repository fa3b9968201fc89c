"""A workload, strategies and compressors that only tests know.

The broken ones have a planted fault each, which the judges of the good ones must notice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dynbench.compress.base import Compressor
from dynbench.runs.records import Column
from dynbench.sync.base import Strategy
from dynbench.sync.fsdp import Fsdp
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment, lay_out
from dynbench.workloads.data import TokenisedData

SAMPLES, VOCABULARY, WIDTH = 60, 50, 8


class TiedModel(nn.Module):
    """Predicts a token from the others through a frozen layer; what it embeds with is what it scores with."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.score = nn.Linear(WIDTH, VOCABULARY)
        self.score.weight = self.embed.weight

    def forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        hidden = torch.tanh(self.frozen(self.mix(self.embed(tokens)))) * valid[..., None]
        return self.score(hidden.sum(1) / valid.sum(1, keepdim=True))


class Toy:
    """A workload of random tokens in float64, whose samples weigh unequally, some nothing."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self.train = TokenisedData.from_samples(
            [random.integers(0, VOCABULARY, size=n).tolist() for n in random.integers(1, 40, size=SAMPLES)],
            random.integers(0, VOCABULARY, size=SAMPLES),
            weights=random.integers(0, 4, size=SAMPLES),
        )
        self.eval = self.positions = None
        self.facts: dict[str, object] = {}

    @classmethod
    def of(cls, data: TokenisedData) -> Toy:
        """The toy with other samples."""
        toy = cls()
        toy.train = data
        return toy

    def build_model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return TiedModel().double()

    def collate(self, data: TokenisedData, ids: np.ndarray, width: int) -> dict[str, Tensor]:
        rows, valid = data.padded(ids, width, 0)
        return {
            "tokens": torch.from_numpy(rows),
            "valid": torch.from_numpy(valid).double(),
            "labels": torch.from_numpy(data.labels[ids]),
            "weights": torch.from_numpy(data.weights[ids]),
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["tokens"], batch["valid"])
        return nn.functional.cross_entropy(logits, batch["labels"], reduction="none") @ batch["weights"]

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        raise NotImplementedError


class Naive(Strategy):
    """Every parameter's gradient by itself, once all are there."""

    equal_gradients: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (Column("sent_tensors", "integer", "", "Gradients averaged."),)

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return model

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield

    def finish(self) -> None:
        self.on_ready()
        mine = [(name, p) for name, p in self.model.named_parameters() if p.grad is not None]
        futures = [self.wire.mean(p.grad.view(-1), lay_out([(name, p.shape)])) for name, p in mine]
        for future in futures:
            future.wait()
        self._sent = len(mine)

    def row(self) -> Mapping[str, object]:
        return {"sent_tensors": self._sent}


class TwoStages(Compressor):
    """Every rank averages its part and gathers those of the others; keeps the number of calls."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("compressed", "integer", "", "Gradients compressed so far."),
        Column("told_weight", "number", "", "What the samples weigh, as it was told."),
    )
    calls: int = 0
    weight: float | None = None

    def weigh(self, weight: float) -> None:
        self.weight = weight

    def row(self) -> Mapping[str, object]:
        return {"compressed": self.calls, "told_weight": self.weight}

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        assert segments[-1].offset + segments[-1].numel <= len(flat)
        assert threading.current_thread().name == "dynbench-wire"
        self.calls += 1
        ranks = channel.world_size
        given = nn.functional.pad(flat, (0, -len(flat) % ranks))
        parts = torch.empty_like(given)
        channel.all_to_all(parts, given).wait()
        channel.all_gather(given, parts.view(ranks, -1).mean(0)).wait()
        flat.copy_(given[: len(flat)])


class ReadyLate(Naive):
    """Communication counts as compute."""

    def finish(self) -> None:
        ready, self.on_ready = self.on_ready, lambda: None
        super().finish()
        self.on_ready = ready
        ready()


class ForgetsMicroBatches(Naive):
    """Only the last micro-batch's gradient is left."""

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield
        self.model.zero_grad()


class NormOfAShard(Fsdp):
    """Every rank clips by the norm of its own part."""

    def gradient_norm(self) -> Tensor:
        return nn.utils.get_total_norm(self.module.shards)


class ForgetsToDivide(TwoStages):
    """Sums."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        flat.mul_(channel.world_size)


class Fails(TwoStages):
    """Raises on rank 0, between two collectives."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        if channel.rank == 0 and self.calls == 3:
            raise ArithmeticError("cannot compress")


STRATEGIES: dict[str, type[Strategy]] = {"one_by_one": Naive}
COMPRESSORS: dict[str, type[Compressor]] = {
    "two_stages": TwoStages,
    "forgets_to_divide": ForgetsToDivide,
    "fails": Fails,
}
BROKEN_STRATEGIES: dict[str, type[Strategy]] = {
    "ready_late": ReadyLate,
    "forgets_micro_batches": ForgetsMicroBatches,
    "norm_of_a_shard": NormOfAShard,
}
