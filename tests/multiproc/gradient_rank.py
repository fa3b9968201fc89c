"""One rank of the gradient test; on a GPU `gradient_rank.py RANK WORLD_SIZE RENDEZVOUS_FILE`, rank 0 prints JSON."""

from __future__ import annotations

import json
import operator
import os
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynbench.config.layers import load_config
from dynbench.engine.rank.exchange import GlobalBatch
from dynbench.engine.rank.loop import build_strategy
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.workloads.batches import make_micro_batch
from dynbench.workloads.data import TokenisedData

SAMPLES, VOCABULARY, WIDTH, CLASSES = 60, 50, 16, 3
TRIALS = 12


class Model(nn.Module):
    """Embeds, mixes over the sample's own tokens, classifies; padding never reaches the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.embed(tokens))) * valid[..., None]
        return self.classify(hidden.sum(1) / valid.sum(1, keepdim=True))


class Toy:
    """A workload in float64 whose samples weigh unequally, some nothing."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        samples = [random.integers(0, VOCABULARY, size=n).tolist() for n in random.integers(1, 40, size=SAMPLES)]
        labels, weights = random.integers(0, CLASSES, size=SAMPLES), random.integers(0, 4, size=SAMPLES)
        self.train = TokenisedData.from_samples(samples, labels, weights=weights)
        self.eval = self.positions = None
        self.facts: dict[str, object] = {}

    def build_model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Model().double()

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


def random_shares(random: np.random.Generator, world_size: int, micro_batches: int) -> list[list[np.ndarray]]:
    """Some of the samples dealt unevenly over ranks and their micro-batches, each at least one."""
    used = random.permutation(SAMPLES)[: random.integers(world_size * micro_batches, SAMPLES + 1)]
    cuts = random.choice(np.arange(1, len(used)), size=world_size * micro_batches - 1, replace=False)
    parts = np.split(used, np.sort(cuts))
    return [parts[rank * micro_batches : (rank + 1) * micro_batches] for rank in range(world_size)]


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def full_gradient(toy: Toy, ids: np.ndarray, device: torch.device) -> Tensor:
    """Gradient of the weighted mean loss over all samples at once, in one process."""
    model = toy.build_model(0).to(device)
    batch = make_micro_batch(toy, toy.train, ids, 1, device)
    (toy.loss(model, batch.inputs) / batch.weight).backward()
    return flat_gradient(model)


def measured(rank: int, kind: str) -> list[dict[str, Any]]:
    """Of random uneven splits over the default group: ratio and relative error against the full batch alone."""
    device, world_size, results = (
        torch.device(kind, rank) if kind == "cuda" else torch.device("cpu"),
        dist.get_world_size(),
        [],
    )
    config = load_config(None, ["workload.pad_to_multiple_of=1", "train.precision=fp32", "train.learning_rate=5e-4"])
    toy, timer = Toy(), StepTimer(device)
    replica = Replica(config, toy, device, timer, build_strategy(config, device))
    random = np.random.default_rng(1)
    for weighted in (True, False):
        for trial in range(TRIALS):
            micro_batches = 1 + trial % 3
            shares = random_shares(random, world_size, micro_batches)
            mine = shares[rank]
            local = sum(map(len, mine))
            total = GlobalBatch(local, replica.weight(tuple(mine)))
            scale = total.scale if weighted else partial(operator.truediv, 1, local)
            replica.compute(replica.load(tuple(mine)), scale)
            timer.end_step()
            ids = np.concatenate([part for share in shares for part in share])
            assert total.samples() == len(ids)
            full, synchronised = full_gradient(toy, ids, device), flat_gradient(replica.model)
            replica.optimizer.zero_grad(set_to_none=True)
            results.append(
                {
                    "weighted": weighted,
                    "micro_batches": micro_batches,
                    "counts": [sum(map(len, share)) for share in shares],
                    "ratio": float(synchronised @ full / (full @ full)),
                    "relative_error": float((synchronised - full).norm() / full.norm()),
                }
            )
    replica.strategy.close()
    return results


def main(rank: int, world_size: int, file: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{file}", rank=rank, world_size=world_size)
    results = measured(rank, "cuda")
    if rank == 0:
        print("\n".join(map(json.dumps, results)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)  # what torch's threads do while the interpreter goes down is not under test
