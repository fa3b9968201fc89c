"""One rank of a loop with a token-mean loss."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dynbench.sampler import PlannedBatchSampler

SAMPLES, VOCABULARY, WIDTH, BATCH, IGNORED = 96, 40, 8, 12, -100
STEPS = 2


def make_data() -> list[tuple[Tensor, Tensor]]:
    """Tokens and labels; of each sample a random part, not in proportion to its length, is no target."""
    random = np.random.default_rng(0)
    data = []
    for length in random.integers(3, 60, size=SAMPLES):
        tokens = torch.from_numpy(random.integers(0, VOCABULARY, size=length))
        labels = tokens.clone()
        labels[: random.integers(0, length)] = IGNORED
        data.append((tokens, labels))
    return data


def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    tokens, labels = zip(*samples, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return {"tokens": pad(tokens, True), "labels": pad(labels, True, padding_value=IGNORED)}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(
        model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED
    )


def targets_of(batch: dict[str, Tensor]) -> int:
    return int((batch["labels"] != IGNORED).sum())


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weights_of(kind: str, sampler: PlannedBatchSampler, batches: list[dict[str, Tensor]]) -> list[float]:
    if kind == "samples":
        return [sampler.weight(batch) for batch in batches]
    if kind == "each batch":
        return [sampler.weight(batch, targets=targets_of(batch)) for batch in batches]
    return sampler.target_weights([targets_of(batch) for batch in batches], group=dist.group.WORLD)


def errors(rank: int) -> dict[tuple[int, str], list[float]]:
    """Batches accumulated and what weighs them, to the relative errors of the synchronised gradients.

    Against that of the mean over all target tokens of the optimizer step in one process.
    """
    data, world_size, found = make_data(), dist.get_world_size(), {}
    samplers = [PlannedBatchSampler([len(t) for t, _ in data], world_size, r, BATCH) for r in range(world_size)]
    plan = list(zip(*samplers, strict=True))
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)).double()
    )
    for accumulated in (1, 3):
        for kind in ("samples", "each batch", "step"):
            for first in range(0, STEPS * accumulated, accumulated):
                shares = plan[first : first + accumulated]
                batches = [collate([data[i] for i in step[rank]]) for step in shares]
                model.zero_grad()
                for n, (batch, weight) in enumerate(
                    zip(batches, weights_of(kind, samplers[rank], batches), strict=True), 1
                ):
                    with contextlib.nullcontext() if n == accumulated else model.no_sync():
                        (loss_of(model, batch) * weight / accumulated).backward()
                synchronised = flat_gradient(model)
                model.zero_grad()
                loss_of(model.module, collate([data[i] for step in shares for ids in step for i in ids])).backward()
                whole = flat_gradient(model)
                found.setdefault((accumulated, kind), []).append(float((synchronised - whole).norm() / whole.norm()))
    return found
