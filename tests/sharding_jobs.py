"""What warm ranks do with fully sharded modules."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any
from unittest.mock import Mock, patch

import torch
from strategy_jobs import CPU, UNPADDED, configured, replicated
from sync_models import MODELS
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from toys import TiedModel, Toy

from dynbench.compress.quantised import Fp8, Qsgd
from dynbench.config.layers import load_config
from dynbench.engine.rank.loop import build_wire
from dynbench.engine.rank.toy_check import VOCABULARY, Case, Difference, check_strategy
from dynbench.sync import FullyShardedDDP, fully_sharded
from dynbench.wire.traffic import Traffic


def filled(rank: int, model: str) -> tuple[Difference | None, int]:
    """Fully sharded training of a model that only the first rank has values of, and knows what is frozen.

    Returns:
        How far it is from one process's training, where this rank has the state, and the most elements that this rank
        had of parameters that were not sharded.
    """

    def build() -> nn.Module:
        with torch.device("meta" if rank else "cpu"):
            models.append(MODELS[model]())
        if rank:
            models[-1].requires_grad_(True)
        return models[-1]

    models: list[nn.Module] = []
    whole, fully_shard = [], fully_sharded.fully_shard

    def shard(part: nn.Module, **settings: Any) -> Any:
        here = (p for p in models[-1].parameters() if not isinstance(p, DTensor) and not p.is_meta)
        whole.append(sum(p.numel() for p in here))
        return fully_shard(part, **settings)

    with patch.object(fully_sharded, "fully_shard", shard):
        return check_strategy(configured("fsdp"), Case("adamw", model=build)), max(whole)


def built(rank: int) -> bool:
    """Whether an engine's rank that is fully sharded builds its model with values; it can do without."""
    toy = Toy()
    with torch.device("meta"):
        empty = Mock(return_value=TiedModel().double())
    with patch.object(toy, "build_empty_model", empty, create=True), replicated(configured("fsdp", *UNPADDED), toy):
        return not empty.called


class RootMeanSquare(nn.Module):
    """Divides by what its inputs are in the middle, in their own type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))
        self.spare = nn.Parameter(torch.ones(3))  # used by nobody

    def forward(self, hidden: Tensor) -> Tensor:
        assert hidden.dtype == self.weight.dtype
        return self.weight * hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt()


class SomeLayers(nn.Module):
    """Layers of the types that are sharded, changed in place where they give views, and parameters of its own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norms = nn.ModuleList(RootMeanSquare() for _ in range(2))
        self.up, self.head = nn.Linear(16, 16), nn.Linear(16, VOCABULARY)
        self.gain, self.of_zeros = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(16, 1).t())
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norms[0](self.embed(tokens))
        if (tokens == 0).any():
            hidden = hidden + (tokens == 0).unsqueeze(-1) * self.of_zeros
        inner = self.up(hidden)
        inner += hidden
        return self.head(self.gain * self.norms[1](inner))


def partly_sharded(
    rank: int, compute_dtype: torch.dtype | None, tied: bool
) -> tuple[list[str], list[list[float] | None], list[int]]:
    """Three steps of a model of which linear layers and embeddings alone are sharded, which are as one process's.

    Returns:
        The parameters that are sharded; the gradients of the others; and how many of them were there at each call of
        `on_ready`.
    """
    torch.manual_seed(0)
    alone, ready = SomeLayers(tied), []
    model, begun = deepcopy(alone), deepcopy(alone.state_dict())
    plain = [p for name, p in model.named_parameters() if name.split(".")[0] not in ("embed", "up", "head")]
    tokens = torch.randint(1, VOCABULARY, (8, 6))
    tokens[4:, 0] = 0  # the other rank's alone
    mine = tokens[rank * 4 : rank * 4 + 4]
    with warnings.catch_warnings(action="error"):
        module = FullyShardedDDP(
            model,
            compute_dtype,
            sharded=(nn.Linear, nn.Embedding),
            on_ready=lambda: ready.append(sum(p.grad is not None for p in plain)),
        )
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, alone)]
        for _ in range(3):
            for each, rows in ((module, mine), (alone, tokens)):
                each.zero_grad()
                logits = each(rows).float()
                nn.functional.cross_entropy(logits.flatten(0, 1), rows.flatten()).backward()
            module.finish_gradient_synchronization()
            for optimizer in optimizers:
                optimizer.step()
    found, limit = module.gather_full_params(), 1e-5 if compute_dtype is None else 5e-3
    for name, wanted in alone.state_dict().items():
        assert (found[name] - wanted).norm() <= limit * (wanted - begun[name]).norm(), name
    whole = [None if p.grad is None else p.grad.tolist() for p in plain]
    return [name for name, p in model.named_parameters() if isinstance(p, DTensor)], whole, ready


class Wide(nn.Module):
    """Two blocks whose weights are rounded when they are gathered, an uneven one among them, and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(*shape), nn.Tanh()) for shape in ((48, 65), (65, 48)))
        self.head = nn.Linear(48, 50)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def gathered_in_bytes(
    rank: int, name: str, compress: str, compute_dtype: torch.dtype | None
) -> tuple[float, float, Traffic]:
    """Steps on rounded parameters held against one process that rounds them the same way, steps and keeps its own.

    Returns:
        The largest distance of a parameter at the end, relative to the largest; the same of rounded ones from those
        that are kept; and the traffic of a step.
    """
    torch.manual_seed(0)
    alone, changes = Wide(), ("sync.name=fsdp", f"compress.gather={name}", f"compress.name={compress}")
    wire = build_wire(load_config(overrides=changes), CPU)
    module = FullyShardedDDP(deepcopy(alone), compute_dtype, wire=wire)
    ours, reference = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, alone))
    for batch in torch.randn(3, 2, 4, 48):
        wire.take()
        module(batch[rank]).float().square().mean().backward()
        module.finish_gradient_synchronization()
        traffic = wire.take()
        ours.step()
        ours.zero_grad()
        rounded = deepcopy(alone)
        for copy, kept in zip(rounded.parameters(), alone.parameters(), strict=True):
            copy.data = _rounded(kept, name, compute_dtype)
        for each in batch:
            (rounded(each.to(copy.dtype)).float().square().mean() / 2).backward()
        for copy, kept in zip(rounded.parameters(), alone.parameters(), strict=True):
            kept.grad = copy.grad.float()
        reference.step()
    found, kept = module.gather_full_params(), alone.state_dict()
    wire.close()
    most = max(float(value.abs().max()) for value in kept.values())

    def apart(state: Mapping[str, Tensor]) -> float:
        return max(float((state[key].float() - value).abs().max()) for key, value in kept.items()) / most

    return apart(found), apart(rounded.state_dict()), traffic


def _rounded(parameter: Tensor, name: str, compute_dtype: torch.dtype | None) -> Tensor:
    """A parameter as both ranks compute with it: each rank's half of its rows, filled up, by the codec."""
    codec = Qsgd(bits=8, bucket=256, contractive=True) if name == "int8" else Fp8()
    value = parameter.detach() if compute_dtype is None else parameter.detach().to(compute_dtype)
    rows = -(-len(value) // 2)
    halves = [nn.functional.pad(half, (0, 0) * (half.dim() - 1) + (0, rows - len(half))) for half in value.split(rows)]
    if halves[0].numel() >= 1024:
        halves = [codec.decompress(codec.compress(half)) for half in halves]
    return torch.cat(halves)[: len(value)]
