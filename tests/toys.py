"""A workload, strategies and compressors that only tests know: good ones, and ones with a planted fault."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from multiproc import gradient_rank
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.compress.base import Compressor
from dynbench.runs.columns import Column
from dynbench.sync.base import Local, OptimizerFactory, Stepper, Strategy, gradient_norm, state_on_cpu
from dynbench.sync.ddp import Ddp
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


class Toy(gradient_rank.Toy):
    """Random tokens in float64, and unequal weights."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        self.train = TokenisedData.from_samples(
            [random.integers(0, VOCABULARY, size=n).tolist() for n in random.integers(1, 40, size=SAMPLES)],
            random.integers(0, VOCABULARY, size=SAMPLES),
            weights=random.integers(0, 4, size=SAMPLES),
        )

    @classmethod
    def of(cls, data: TokenisedData) -> Toy:
        """The toy with other samples."""
        toy = cls()
        toy.train = data
        return toy

    def build_model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return TiedModel().double()


class GivesMeans(Toy):
    """Fault: the mean over the batch, not the sum."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model, batch) / batch["weights"].sum().clamp(min=1)


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
        self._average()

    def _average(self) -> None:
        mine = [(name, p) for name, p in self.model.named_parameters() if p.grad is not None]
        futures = [self.wire.mean(p.grad.view(-1), lay_out([(name, p.shape)])) for name, p in mine]
        for future in futures:
            future.wait()
        self._sent = len(mine)

    def row(self) -> Mapping[str, object]:
        return {"sent_tensors": self._sent}


class Sharding(Strategy):
    """Every rank keeps a part of the parameters and frees the rest between forward passes, as FSDP does."""

    equal_gradients: ClassVar[bool] = False
    collective_forward: ClassVar[bool] = True

    def _wrapped(self, model: nn.Module) -> nn.Module:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        self._segments = lay_out((name, p.shape) for name, p in named)
        flat = self._flat([p.detach() for p in self._parameters])
        self._shard = nn.Parameter(flat.chunk(self.wire.world_size)[self.wire.rank].clone())
        self._release()
        model.register_forward_pre_hook(lambda module, _: self._collect())
        return model

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """All of them in one, filled up to equal shards."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        return nn.functional.pad(flat, (0, -len(flat) % self.wire.world_size))

    def _collect(self) -> None:
        full = torch.empty(len(self._shard) * self.wire.world_size, dtype=self._shard.dtype)
        self.wire.gather(full, self._shard.detach()).wait()
        for parameter, segment in zip(self._parameters, self._segments, strict=True):
            parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
            parameter.data.copy_(segment.of(full))

    def _release(self) -> None:
        for parameter in self._parameters:
            parameter.untyped_storage().resize_(0)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield
        self._release()

    def finish(self) -> None:
        self.on_ready()
        gradients = [p.grad for p in self._parameters]
        self._shard.grad = torch.empty_like(self._shard)
        self.wire.mean_shard(self._flat(gradients), self._segments, self._shard.grad).wait()
        for parameter in self._parameters:
            parameter.grad = None
        self._release()

    def gradient_norm(self) -> Tensor:
        return self.norm_over_shards(gradient_norm([self._shard]))

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        return factory([self._shard])

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        yield self.module
        self._release()

    def full_state(self) -> dict[str, Tensor] | None:
        self._collect()
        state = state_on_cpu(self.model) if self.wire.rank == 0 else None
        self._release()
        return state

    def state_alone(self) -> None:
        pass


class NormOfAShard(Sharding):
    """Fault: every rank clips by the norm of its own part."""

    def gradient_norm(self) -> Tensor:
        return gradient_norm([self._shard])


class Central(Strategy):
    """The first rank holds the parameters: the others send it their gradients and receive what became of them."""

    equal_gradients: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (Column("received_tensors", "integer", "", "From other ranks."),)

    def _wrapped(self, model: nn.Module) -> nn.Module:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._workers = self.evaluators()
        return model

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield

    def finish(self) -> None:
        self.on_ready()
        self.wire.send(self._flat([p.grad for p in self._parameters]), 0).wait()

    def serve(self) -> None:
        total = torch.zeros_like(self._flat(self._parameters))
        for rank in self._workers:
            total += self._received(rank)
        self._fill([p.grad for p in self._with_gradients()], total / self.divisor)

    @property
    def divisor(self) -> int:
        return len(self._workers)

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        if self.ranks.serves(self.wire.rank):
            precision.step(optimizer)
            for rank in self._workers:
                self.wire.send(self._flat(self._parameters), rank).wait()
            self._tensors = len(self._workers)
        else:
            self._fill([p.data for p in self._parameters], self._received(0))
            self._tensors = 1

    def row(self) -> Mapping[str, object]:
        return {"received_tensors": self._tensors}

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    def _fill(self, tensors: Sequence[Tensor], flat: Tensor) -> None:
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def _with_gradients(self) -> Sequence[nn.Parameter]:
        for parameter in self._parameters:
            parameter.grad = torch.empty_like(parameter)
        return self._parameters

    def _received(self, source: int) -> Tensor:
        return self.wire.receive(torch.zeros_like(self._flat(self._parameters)), source).wait()


class CountsServers(Central):
    """Fault: the mean is over all ranks, those that train nothing among them."""

    @property
    def divisor(self) -> int:
        return self.wire.world_size


class ReadyLate(Naive):
    """Fault: communication counts as compute."""

    def finish(self) -> None:
        self._average()
        self.on_ready()


class ReadyEarly(Ddp):
    """Fault: the last gradients' computation counts as communication."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        module = super()._wrapped(model)
        module.register_forward_hook(lambda *_: self.on_ready())
        return module


class ForgetsMicroBatches(Naive):
    """Fault: only the last micro-batch's gradient is left."""

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield
        self.model.zero_grad()


class Bf16(Compressor):
    """Gathers everyone's gradient in bfloat16."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        theirs = torch.empty(channel.world_size * len(flat), dtype=torch.bfloat16)
        channel.all_gather(theirs, flat.bfloat16()).wait()
        flat.copy_(theirs.view(channel.world_size, -1).to(flat.dtype).mean(0))


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
        channel.all_gather(given, self.average(parts.view(ranks, -1))).wait()
        flat.copy_(given[: len(flat)])

    def average(self, parts: Tensor) -> Tensor:
        return parts.mean(0)

    def state_dict(self) -> dict[str, Tensor]:
        return {"calls": torch.tensor(self.calls)}


class ForgetsToDivide(TwoStages):
    """Fault: sums."""

    def average(self, parts: Tensor) -> Tensor:
        return parts.sum(0)


class Fails(TwoStages):
    """Fault: raises on rank 0, between two collectives."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        if channel.rank == 0 and self.calls == 3:
            raise ArithmeticError(f"cannot compress {segments[0].name}")


STRATEGIES: dict[str, type[Strategy]] = {"one_by_one": Naive, "sharding": Sharding}
SERVING: dict[str, type[Strategy]] = {"central": Central}
BROKEN_STRATEGIES: dict[str, type[Strategy]] = {
    "ready_late": ReadyLate,
    "ready_early": ReadyEarly,
    "forgets_micro_batches": ForgetsMicroBatches,
}
BROKEN_NORMS: dict[str, type[Strategy]] = {"norm_of_a_shard": NormOfAShard}
BROKEN_SERVING: dict[str, type[Strategy]] = {"counts_servers": CountsServers}
COMPRESSORS: dict[str, type[Compressor]] = {"bf16": Bf16, "two_stages": TwoStages}
BROKEN_COMPRESSORS: dict[str, type[Compressor]] = {"forgets_to_divide": ForgetsToDivide, "fails": Fails}


class InDouble(Local):
    """A rank alone in float64, so that only other arithmetic differs and not its rounding."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return model.double()
