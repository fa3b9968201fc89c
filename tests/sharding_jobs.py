"""What warm ranks do with strategies that shard, fill models, or have to agree on overflow."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from gpu.fully_shard import WAYS, peaks_of
from packed_jobs import TINY
from strategy_jobs import CPU, known, named
from sync_jobs import MODELS
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dynbench.compress.cast import Fp8
from dynbench.compress.quantised import Qsgd
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.rank.exchange import max_over_ranks
from dynbench.engine.rank.loop import build_strategy, build_wire, session
from dynbench.engine.rank.optimizer_step import Clipper, Precision
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.toy_check import (
    SMALL_BUCKET_MB,
    VOCABULARY,
    Case,
    Difference,
    check_strategy,
    difference,
    toy_model,
    train_alone,
    train_on_ranks,
)
from dynbench.errors import UsageError
from dynbench.plugins import STRATEGIES
from dynbench.sync import FullyShardedDDP, fully_sharded
from dynbench.wire.base import Wire
from dynbench.wire.traffic import Traffic


class TiedBlock(nn.Module):
    """The last of its blocks scores with what it embeds with, and is normalised by statistics that it has kept."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.BatchNorm1d(16).eval()
        self.norm.running_var.mul_(2)
        self.blocks = nn.ModuleList([*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)), _scoring()])
        self.blocks[3][0].weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.embed(tokens).mean(1))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden + self.same.sum()


def _scoring() -> nn.Module:
    return nn.Sequential(nn.Linear(16, VOCABULARY))


def tied_block() -> nn.Module:
    torch.manual_seed(0)
    model = TiedBlock().double()
    model.same = model.norm.running_var  # a second time, as no buffer
    return model


class OneWeight(nn.Module):
    """Fewer elements to train than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens[:, 0], VOCABULARY).to(self.weight) * self.weight


FILLED = {**MODELS, "tied_block": tied_block}


def options(sync: str, *more: str) -> Config:
    """Of a strategy on models with unused parameters and many buckets."""
    wanted = {"find_unused": "true", "bucket_mb": SMALL_BUCKET_MB}
    known_to_it = [f"sync.{key}={value}" for key, value in wanted.items() if STRATEGIES[sync].reads(key)]
    return named(load_config(None, [*known_to_it, *more]), sync, "none")


def filled(rank: int, model: str) -> tuple[Difference | None, int, int]:
    """Fully sharded training of a model that only the first rank has values of.

    Returns:
        How far it is from one process's training, where this rank has the state; the most elements that this rank held
        of parameters that were not sharded; and all of the model's.
    """

    def build() -> nn.Module:
        with torch.device("meta" if rank else "cpu"):
            return FILLED[model]()

    case, held = Case("adamw", model=build), []

    def shard(part: nn.Module, **settings: Any) -> Any:
        whole = seen[-1]
        kept = (p for p in whole.parameters() if not isinstance(p, DTensor) and not p.is_meta)
        held.append(sum(p.numel() for p in kept))
        return fully_shard(part, **settings)

    seen: list[nn.Module] = []

    def init(self: FullyShardedDDP, module: nn.Module, *arguments: Any, **settings: Any) -> None:
        seen.append(module)
        whole(self, module, *arguments, **settings)

    fully_shard, whole = fully_sharded.fully_shard, FullyShardedDDP.__init__
    with (
        patch.object(fully_sharded, "fully_shard", shard),
        patch.object(FullyShardedDDP, "__init__", init),
        session(build_strategy(options("fsdp"), CPU)) as strategy,
    ):
        state = train_on_ranks(strategy, case)
    alone = Case("adamw", model=FILLED[model])
    found = None if state is None else difference(state, train_alone(alone, 2))
    return found, max(held), sum(p.numel() for p in FILLED[model]().parameters())


def built(rank: int, packed: bool) -> list[str]:
    """How an engine's rank that is fully sharded builds its model."""
    workload, calls = TINY["language"](packed), []
    for name in ("build_model", "build_empty_model"):
        build = getattr(workload, name)
        setattr(workload, name, lambda *seed, name=name, build=build: calls.append(name) or build(*seed))
    config = options("fsdp", "train.learning_rate=1e-3", "workload.pad_to_multiple_of=1")
    with session(build_strategy(config, CPU)) as strategy:
        Replica(config, workload, CPU, StepTimer(CPU), strategy)
    return calls


def one_weight(rank: int, sync: str) -> Difference | None:
    """Training of a single weight, clipped as well as not."""

    def build() -> nn.Module:
        return OneWeight().double()

    with known():
        return check_strategy(options(sync), Case("adamw", model=build))


def norm_of_one_weight(rank: int, sync: str) -> tuple[float, float]:
    """The norm of its gradient on this rank, and what a clipped step of 1 moved it by where this rank has the state."""
    with session(build_strategy(options(sync), CPU)) as strategy:
        module = strategy.wrap(OneWeight().double(), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=1.0))
        clipper = Clipper(0.5, strategy.gradient_norm)
        (module(torch.zeros(2, 6, dtype=torch.long)).sum() * (rank + 1)).backward()
        strategy.finish()
        strategy.step(optimizer, Precision("fp32", CPU, clip=clipper.clip))
        strategy.drain()
        state = strategy.full_state()
        return clipper.row()["grad_norm"], 0.0 if state is None else 1 - float(state["weight"])


def overflowing(rank: int, sync: str) -> list[tuple[bool, bool]]:
    """Steps with a loss scaler, in the second of which the last rank's gradient alone is infinite.

    Returns:
        Of each, whether it was skipped here, and whether the model's state moved; on ranks without that, False.
    """
    found = []
    with known(), session(build_strategy(options(sync), CPU)) as strategy:
        module = strategy.wrap(toy_model().float(), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
        precision = Precision("fp16", CPU, None if strategy.equal_gradients else max_over_ranks)
        for step in range(3):
            before = strategy.full_state()
            overflows = step == 1 and rank == strategy.wire.world_size - 1
            precision.backward(module(torch.arange(12).view(2, 6)).sum() * (float("inf") if overflows else 1.0))
            strategy.finish()
            strategy.step(optimizer, precision)
            strategy.clear_gradients(optimizer)
            after = strategy.full_state()
            moved = before is not None and any(not torch.equal(before[name], after[name]) for name in before)
            assert after is None or all(bool(tensor.isfinite().all()) for tensor in after.values())
            found.append((precision.take_skipped(), moved))
    return found


def in_single(rank: int, sync: str, model: str) -> float | None:
    """As `check_strategy`, with SGD in single precision: the largest relative distance of a tensor."""
    case = Case("sgd", model=lambda: FILLED[model]().float())
    with known(), session(build_strategy(options(sync), CPU)) as strategy:
        state, workers = train_on_ranks(strategy, case), strategy.ranks.workers
    if state is None:
        return None
    wanted = train_alone(case, workers)
    apart = {key: (state[key] - tensor).float().norm() for key, tensor in wanted.items()}
    return max(float(apart[key] / tensor.float().norm().clamp(min=1)) for key, tensor in wanted.items())


def normalised(rank: int) -> tuple[list[torch.dtype], bool]:
    """What batch norm computes with in a model that is gathered in bfloat16, and whether all gradients are numbers."""
    torch.manual_seed(0)
    norm, seen = nn.BatchNorm2d(4), []
    module = FullyShardedDDP(
        nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), torch.bfloat16
    )
    norm.register_forward_hook(lambda norm, given, _: seen.extend([given[0].dtype, norm.weight.dtype]))
    module(torch.randn(4, 3, 8, 8)).float().sum().backward()
    module.finish_gradient_synchronization()
    assert norm.running_mean is not None
    return [*seen, norm.running_mean.dtype], all(bool(shard.isfinite().all()) for shard in module.shards)


def refused(rank: int, scalar: bool) -> str:
    """What is said of a parameter that cannot be divided."""
    model = nn.Linear(3, 2)
    model.odd = nn.Parameter(torch.tensor(1.0) if scalar else torch.ones(3, 2).t())
    with pytest.raises(UsageError) as refusal:
        FullyShardedDDP(model)
    return refusal.value.message


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


def partly_sharded(rank: int, compute_dtype: torch.dtype | None, tied: bool) -> dict[str, Any]:
    """Three steps of a model of which linear layers and embeddings alone are sharded, held against one process's.

    Returns:
        The largest relative distance of a gradient of the first step, and of a tensor at the end; the parameters that
        are sharded; the gradients of the others; and how many of them were there at each call of `on_ready`.
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
        steps = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (module, alone)]
        for step in range(3):
            for each, rows, optimizer in ((module, mine, steps[0]), (alone, tokens, steps[1])):
                optimizer.zero_grad()
                logits = each(rows).float()
                nn.functional.cross_entropy(logits.flatten(0, 1), rows.flatten()).backward()
            module.finish_gradient_synchronization()
            if step == 0:
                gradients = {name: _gathered(module, p.grad) for name, p in model.named_parameters()}
                wanted = {name: p.grad for name, p in alone.named_parameters()}
            for optimizer in steps:
                optimizer.step()
    return {
        "gradients": _apart(gradients, wanted),
        "weights": _apart(module.gather_full_params(), alone.state_dict()),
        "sharded": [name for name, p in model.named_parameters() if isinstance(p, DTensor)],
        "plain": [None if gradients[name] is None else gradients[name].tolist() for name in plain],
        "ready": ready,
    }


def _gathered(module: FullyShardedDDP, gradient: Tensor | None) -> Tensor | None:
    """On the module's wire: torch's own gather may take a mesh of an earlier one, which it holds to be the same."""
    return module._whole(gradient) if isinstance(gradient, DTensor) else gradient


def _apart(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest distance of a tensor over its norm; the same are missing."""
    assert [name for name in wanted if wanted[name] is None] == [name for name in wanted if found[name] is None]
    there = {name: tensor for name, tensor in wanted.items() if tensor is not None}
    return max(float((found[name] - tensor).norm() / tensor.norm()) for name, tensor in there.items())


def changed_in_place(rank: int) -> float:
    """How far gradients are from one process's where a view, which the whole module returns, is changed in place."""
    torch.manual_seed(0)
    alone = nn.Linear(4, 3)
    module = FullyShardedDDP(deepcopy(alone))
    with warnings.catch_warnings(action="error"):
        for each in (alone, module):
            output = each(torch.ones(2, 5, 4))
            output *= 2
            output.sum().backward()
    module.finish_gradient_synchronization()
    gathered = {name: _gathered(module, p.grad) for name, p in module.module.named_parameters()}
    return _apart(gathered, {name: p.grad for name, p in alone.named_parameters()})


def nothing_sharded(rank: int) -> str:
    """What is said of a module that has none of the layers to be sharded."""
    with pytest.raises(UsageError) as refusal:
        FullyShardedDDP(nn.Linear(3, 2), sharded=nn.Embedding)
    return refusal.value.message


def peaks_beside_torchs(rank: int) -> dict[str, int]:
    """Those of `make first-gpu`."""
    return peaks_of(WAYS, CPU)


class Weighted(nn.Module):
    """A layer of a type of one's own, with a weight; alone, `lowered` is the type that it computes in."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight, self.lowered = nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5), torch.float32

    def cast(self) -> Tensor:
        return self.weight if self.lowered == torch.float32 else self.weight.to(self.lowered)


class Project(Weighted):
    """A linear layer."""

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", hidden, self.cast())


class LookUp(Weighted):
    """An embedding."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.cast()[tokens]


class Norm(Weighted):
    """RMSNorm, in float32 whatever it is given."""

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        scaled = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (self.weight * scaled).to(hidden.dtype)


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None) -> FullyShardedDDP:
    return FullyShardedDDP(module, compute_dtype, sharded=(Project, LookUp))


def course_fully_sharded(rank: int, compute_dtype: torch.dtype | None, adamw: bool) -> dict[str, Any]:
    """What the course asks of its FSDP, on layers of types of one's own: three steps on halves of shuffled samples.

    Returns:
        Whether all parameters are near one process's after each step; whether every gradient has its parameter's shape
        and type; and the first step's gradients of the norms.
    """
    torch.manual_seed(42)
    layers = LookUp(100, 64), Norm(64), Project(128, 64), nn.ReLU(), Norm(128), Project(64, 128), Project(100, 64)
    alone, model = nn.Sequential(*layers), deepcopy(nn.Sequential(*layers))
    for each in alone:
        if isinstance(each, Project | LookUp) and compute_dtype is not None:
            each.lowered = compute_dtype
    near, gradients, norms = [], [], []
    with warnings.catch_warnings(action="error"):
        module = get_fsdp(model, compute_dtype)
        build = partial(torch.optim.AdamW, lr=1e-3, eps=1e-4) if adamw else partial(torch.optim.SGD, lr=0.01)
        optimizers = [build(each.parameters()) for each in (alone, module)]
        tokens, labels = torch.randint(0, 100, (20, 8)), torch.randint(0, 100, (20,))
        for _ in range(3):
            order = torch.randperm(20)
            for each, rows, optimizer in zip((alone, module), (order, order[rank::2]), optimizers, strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(each(tokens[rows])[:, -1].float(), labels[rows]).backward()
                if each is module:
                    module.finish_gradient_synchronization()
                    found = list(model.parameters())
                    gradients += [p.grad.shape == p.shape and p.grad.dtype == p.dtype for p in found]
                    norms = norms or [p.grad.tolist() for p in found if not isinstance(p, DTensor)]
                optimizer.step()
            whole, atol = module.gather_full_params(), 1e-6 if compute_dtype is None else 1e-4
            near += [torch.allclose(whole[name], p, atol=atol, rtol=1e-4) for name, p in alone.named_parameters()]
    return {"near": all(near), "gradients": all(gradients), "norms": norms}


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
            for key, value in _gradients(alone, rounded, each).items():
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


def _gradients(model: nn.Module, parameters: dict[str, Tensor], batch: Tensor) -> dict[str, Tensor]:
    given = batch.to(next(iter(parameters.values())).dtype)
    loss = torch.func.functional_call(model, parameters, (given,)).float().square().mean()
    found = torch.autograd.grad(loss, list(parameters.values()))
    return {key: gradient.float() for key, gradient in zip(parameters, found, strict=True)}
