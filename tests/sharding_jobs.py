"""What warm ranks do with fully sharded modules."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any
from unittest.mock import patch

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
from dynbench.wire.base import Wire
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


class BuildsEmpty(Toy):
    """The toy, whose model can be built without values; `built` says how it was."""

    def build_model(self, seed: int) -> nn.Module:
        self.built = "whole"
        return super().build_model(seed)

    def build_empty_model(self) -> nn.Module:
        self.built = "empty"
        with torch.device("meta"):
            return TiedModel().double()


def built(rank: int) -> str:
    """How an engine's rank that is fully sharded builds its model."""
    workload = BuildsEmpty()
    with replicated(configured("fsdp", *UNPADDED), workload):
        return workload.built


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
    plain = [name for name, _ in alone.named_parameters() if name.split(".")[0] not in ("embed", "up", "head")]
    model = deepcopy(alone)
    tokens = torch.randint(1, VOCABULARY, (8, 6))
    tokens[4:, 0] = 0  # the other rank's alone
    mine = tokens[rank * 4 : rank * 4 + 4]
    with warnings.catch_warnings(action="error"):
        module = FullyShardedDDP(
            model,
            compute_dtype,
            sharded=(nn.Linear, nn.Embedding),
            on_ready=lambda: ready.append(sum(model.get_parameter(name).grad is not None for name in plain)),
        )
        optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (module, alone)]
        for step in range(3):
            for each, rows in ((module, mine), (alone, tokens)):
                each.zero_grad()
                logits = each(rows).float()
                nn.functional.cross_entropy(logits.flatten(0, 1), rows.flatten()).backward()
            module.finish_gradient_synchronization()
            if step == 0:
                gradients = _gradients(module)
                wanted = {name: p.grad for name, p in alone.named_parameters()}
            for optimizer in optimizers:
                optimizer.step()
    assert _apart(gradients, wanted) < (1e-6 if compute_dtype is None else 5e-3)
    assert _apart(module.gather_full_params(), alone.state_dict()) < (1e-5 if compute_dtype is None else 5e-2)
    whole = [None if gradients[name] is None else gradients[name].tolist() for name in plain]
    return [name for name, p in model.named_parameters() if isinstance(p, DTensor)], whole, ready


def _gradients(module: FullyShardedDDP) -> dict[str, Tensor | None]:
    """Gathered on the module's wire: torch's own gather may take a mesh of an earlier one for the same."""
    named = ((name, p.grad) for name, p in module.module.named_parameters())
    return {name: module._whole(grad) if isinstance(grad, DTensor) else grad for name, grad in named}


def _apart(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest distance of a tensor over its norm; the same are missing."""
    assert [name for name in wanted if wanted[name] is None] == [name for name in wanted if found[name] is None]
    there = {name: tensor for name, tensor in wanted.items() if tensor is not None}
    return max(float((found[name] - tensor).norm() / tensor.norm()) for name, tensor in there.items())


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
    alone = Wide()
    kept = dict(alone.named_parameters())
    module = FullyShardedDDP(deepcopy(alone), compute_dtype, wire=_byte_wire(name, compress))
    ours, reference = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, alone))
    batches = torch.randn(3, 2, 4, 48)
    for batch in batches:
        module._wire.take()
        module(batch[rank]).float().square().mean().backward()
        module.finish_gradient_synchronization()
        traffic = module._wire.take()
        ours.step()
        ours.zero_grad()
        rounded = {key: _rounded(value, name, compute_dtype) for key, value in kept.items()}
        for each in batch:
            for key, value in _gradients_at(alone, rounded, each).items():
                kept[key].grad = value / 2 if kept[key].grad is None else kept[key].grad + value / 2
        reference.step()
        reference.zero_grad()
    found = module.gather_full_params()
    module._wire.close()
    most = max(float(value.detach().abs().max()) for value in kept.values())
    apart = max(float((found[key] - value).detach().abs().max()) for key, value in kept.items())
    away = max(float((rounded[key].float() - value).detach().abs().max()) for key, value in kept.items())
    return apart / most, away / most, traffic


def _byte_wire(name: str, compress: str) -> Wire:
    changes = ["sync.name=fsdp", f"compress.gather={name}", f"compress.name={compress}"]
    return build_wire(load_config(overrides=changes), CPU)


def _rounded(parameter: Tensor, name: str, compute_dtype: torch.dtype | None) -> Tensor:
    """A parameter as both ranks compute with it: each rank's half of its rows, filled up, by the codec."""
    codec = Qsgd(bits=8, bucket=256, contractive=True) if name == "int8" else Fp8()
    value = parameter.detach() if compute_dtype is None else parameter.detach().to(compute_dtype)
    rows = -(-len(value) // 2)
    halves = [nn.functional.pad(half, (0, 0) * (half.dim() - 1) + (0, rows - len(half))) for half in value.split(rows)]
    if halves[0].numel() >= 1024:
        halves = [codec.decompress(codec.compress(half)) for half in halves]
    return torch.cat(halves)[: len(value)].requires_grad_()


def _gradients_at(model: nn.Module, parameters: dict[str, Tensor], batch: Tensor) -> dict[str, Tensor]:
    given = batch.to(next(iter(parameters.values())).dtype)
    loss = torch.func.functional_call(model, parameters, (given,)).float().square().mean()
    found = torch.autograd.grad(loss, list(parameters.values()))
    return {key: gradient.float() for key, gradient in zip(parameters, found, strict=True)}
