"""What warm ranks do with the public classes of `dynbench.sync`, and with strategies on the toy of `sync check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from strategy_jobs import CPU, known, named
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from dynbench.config.layers import load_config
from dynbench.engine.rank.loop import build_strategy, session
from dynbench.engine.rank.optimizer_step import Precision
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
from dynbench.plugins import STRATEGIES
from dynbench.sync import BucketedDDP, FlatDDP, FullyShardedDDP, NaiveDDP, OverlapDDP, ShardedOptimizer
from dynbench.sync.synchronised import SynchronisedModule

PUBLIC: dict[str, type[SynchronisedModule]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlap": OverlapDDP,
    "bucketed": BucketedDDP,
}


class SmallGpt2(nn.Module):
    """The logits behind a row's last token."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": VOCABULARY}
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.inner = GPT2LMHeadModel(GPT2Config(**sizes, **drops, use_cache=False))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens).logits[:, -1]


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    return SmallGpt2().double()


class UsesWeights(nn.Module):
    """Blocks whose weights are used without calling them, and one whose weight is used before it is called, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.by_hand = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
        self.tied = nn.ModuleList([nn.Sequential(nn.Linear(16, VOCABULARY))])
        self.tied[0][0].weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens).mean(1)
        for block in self.by_hand:
            hidden = hidden + nn.functional.linear(hidden, block[0].weight, block[0].bias).tanh()
        return self.tied[0](hidden)


def uses_weights() -> nn.Module:
    torch.manual_seed(0)
    return UsesWeights().double()


MODELS = {"toy": toy_model, "gpt2": gpt2}


def checked(rank: int, sync: str, model: str, optimizer: Any, *settings: str) -> Difference | None:
    """How far the strategy's weights are from one process's, on the rank that has them; others begin with others."""

    def build() -> nn.Module:
        built = MODELS[model]()
        with torch.no_grad():
            for tensor in (*built.parameters(), *built.buffers()):
                if rank and tensor.is_floating_point():
                    tensor.add_(rank)
        return built

    with known():
        wanted = {"find_unused": "true", "bucket_mb": SMALL_BUCKET_MB}
        options = [f"sync.{key}={value}" for key, value in wanted.items() if STRATEGIES[sync].reads(key)]
        config = named(load_config(None, [*options, *settings]), sync, "none")
        return check_strategy(config, Case(optimizer, model=build))


def gathered_late(rank: int, model: str) -> Difference | None:
    """As `checked`, of zero1 whose gathered parameters come when they are waited for, and not before."""
    config = named(load_config(None, [f"sync.bucket_mb={SMALL_BUCKET_MB}"]), "zero1", "none")
    case = Case("adamw", model={**MODELS, "uses_weights": uses_weights}[model])
    with session(build_strategy(config, CPU)) as strategy:
        gather = strategy.wire.gather

        def late(full: Tensor, shard: Tensor) -> Any:
            if full.dtype == torch.uint8:  # which parameters are used
                return gather(full, shard)
            arrived, future = torch.empty_like(full), Mock()
            under_way = gather(arrived, shard)
            future.wait.side_effect = lambda: full.copy_(under_way.wait())
            return future

        with patch.object(strategy.wire, "gather", late):
            state = train_on_ranks(strategy, case)
    return None if state is None else difference(state, train_alone(case, 2))


def sent_during_backward(rank: int, sync: str, steps: int = 3) -> list[tuple[int, int]]:
    """Of each step, gradients that were complete when the first was sent, and when all were."""
    config, found = named(load_config(None, [f"sync.bucket_mb={SMALL_BUCKET_MB}"]), sync, "none"), []
    with known(), session(build_strategy(config, CPU)) as strategy:
        model, complete, at_first = toy_model(), [0], []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _: complete.__setitem__(0, complete[0] + 1))
        module = strategy.wrap(model, CPU)
        for verb in ("mean", "mean_shard"):
            setattr(strategy.wire, verb, noting(getattr(strategy.wire, verb), lambda: at_first.append(complete[0])))
        for step in range(steps):
            complete[0] = 0
            at_first.clear()
            tokens = torch.arange(12).view(2, 6) + 2 * step + rank  # rows that begin even on one rank only
            module(tokens).sum().backward()
            strategy.finish()
            found.append((at_first[0], complete[0]))
            model.zero_grad()
    return found


def noting(inner: Any, note: Any) -> Any:
    def call(*arguments: Any) -> Any:
        note()
        return inner(*arguments)

    return call


def differing(rank: int, name: str, fault: str) -> str:
    """What is said of parameters that differ between ranks."""
    width = 3 if fault == "shape" and rank == 1 else 2
    layers = [nn.Linear(2, width)]
    if fault == "number" and rank == 1:
        layers.append(nn.Linear(2, 2))
    module = nn.Sequential(*layers)
    if fault == "dtype" and rank == 1:
        module.double()
    if fault == "layout":
        module = nn.Conv2d(2, 2, (2, 3)).to(memory_format=torch.channels_last if rank else torch.contiguous_format)
    if fault == "buffer_shape" or (fault == "buffer_number" and rank == 1):
        module.register_buffer("seen", torch.zeros(3 + rank))
    if fault == "buffer_name":
        module.register_buffer("seen" if rank else "kept", torch.zeros(3))
    try:
        PUBLIC[name](module)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Course(nn.Module):
    """As in the tests of the course: layers without biases, one frozen parameter; tied where that is asked."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(10, 10, bias=False)
        self.fc2 = nn.Linear(10, 50 if not tied else 10, bias=False)
        self.fc3 = nn.Linear(self.fc2.out_features, 10 if tied else 5, bias=False)
        if tied:
            self.fc3.weight = self.fc1.weight
        self.no_grad_fixed_param = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def get_ddp_individual_parameters(module: nn.Module) -> nn.Module:
    return OverlapDDP(module)


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float) -> nn.Module:
    return BucketedDDP(module, bucket_size_mb)


def on_after_backward(ddp_model: Any, optimizer: torch.optim.Optimizer) -> None:
    ddp_model.finish_gradient_synchronization()


def on_train_batch_start(ddp_model: Any, optimizer: torch.optim.Optimizer) -> None:
    pass


def course(rank: int, tied: bool, bucket_size_mb: float | None, individual: bool) -> list[float]:
    """The course's training: largest difference from one process after each step; rank 0 keeps its weights."""
    torch.manual_seed(rank)
    alone = Course(tied)
    given = deepcopy(alone)
    ddp = get_ddp_individual_parameters(given) if individual else get_ddp_bucketed(given, bucket_size_mb)
    for (name, mine), (_, shared) in zip(alone.named_parameters(), ddp.named_parameters(), strict=True):
        assert torch.equal(mine, shared) == (rank == 0 or name == "no_grad_fixed_param")
    dist_check(ddp)
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(20, 10, generator=generator), torch.randn(20, alone.fc3.out_features, generator=generator)
    with torch.no_grad():
        for mine, first in zip(alone.parameters(), ddp.parameters(), strict=True):
            mine.copy_(first)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (alone, ddp)]
    found = []
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(alone(x), y).backward()
        optimizers[0].step()
        on_train_batch_start(ddp, optimizers[1])
        mine = slice(rank * 10, rank * 10 + 10)
        nn.functional.mse_loss(ddp(x[mine]), y[mine]).backward()
        on_after_backward(ddp, optimizers[1])
        optimizers[1].step()
        pairs = zip(alone.parameters(), ddp.parameters(), strict=True)
        found.append(max(float((a - b).abs().max()) for a, b in pairs))
        order = torch.randperm(20, generator=torch.Generator().manual_seed(42 + step))
        x, y = x[order], y[order]
    dist_check(ddp)
    return found


def dist_check(module: nn.Module) -> None:
    """All ranks hold the same."""
    for parameter in module.parameters():
        others = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(others, parameter.detach().clone())
        assert all(torch.equal(parameter, other) for other in others)


def states(rank: int, name: str) -> tuple[list[bool], list[bool]]:
    """Which gradients are None after steps in which no rank, or one, used a branch; and under no_sync."""
    model = toy_model()
    module = PUBLIC[name](model)
    named = dict(model.named_parameters())
    found = []
    for first in (1, rank):  # rows that begin odd; on rank 0 even
        module(torch.full((2, 6), first)).sum().backward()
        module.finish_gradient_synchronization()
        found.append([named[key].grad is None for key in ("unused.weight", "turn.weight", "frozen.weight")])
        model.zero_grad()
    return found[0], found[1]


def odd_layouts(rank: int, name: str) -> float:
    """Largest error of the mean gradient of parameters that are not contiguous, of several types, or empty."""

    def build() -> nn.Module:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
        model[2].weight = nn.Parameter(torch.randn(16, 2).t())
        model[2].bias = nn.Parameter(torch.randn(2).double())
        model.register_parameter("empty", nn.Parameter(torch.empty(0)))
        return model

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        flat = model[1](model[0](x))
        return ((flat @ model[2].weight.t()).double() + model[2].bias).square().sum()

    x = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(2))
    alone, mine = build(), build()
    module = PUBLIC[name](mine)
    (loss(alone, x) / 2).backward()
    loss(module.module, x[rank * 2 : rank * 2 + 2]).backward()
    module.finish_gradient_synchronization()
    pairs = [(a.grad, b.grad) for a, b in zip(alone.parameters(), mine.parameters(), strict=True) if a.numel()]
    return max(float((a - b).abs().max()) for a, b in pairs)


def sharded(rank: int, optimizer_cls: type[torch.optim.Optimizer], settings: dict[str, float]) -> dict[str, Any]:
    """A sharded optimizer beside the same on every rank by itself, with groups, a schedule, and a group added late."""
    torch.manual_seed(0)
    mine = [nn.Parameter(torch.randn(size).double()) for size in (7, 30, 2, 11, 5)]
    mine[2].requires_grad_(False)
    alone = [nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in mine]
    groups = lambda params: [{"params": params[:2]}, {"params": params[2:4], "lr": 0.05}]  # noqa: E731
    ours = ShardedOptimizer(groups(mine), optimizer_cls, **settings)
    theirs = optimizer_cls(groups(alone), **settings)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (ours, theirs)]
    for step in range(6):
        if step == 3:
            for each, params in ((ours, mine), (theirs, alone)):
                each.add_param_group({"params": params[4:], "lr": 0.2})
        for number, (a, b) in enumerate(zip(mine, alone, strict=True)):
            if a.requires_grad and (step, number) != (2, 1):
                b.grad = torch.randn(a.shape, generator=torch.Generator().manual_seed(step * 9 + number)).double()
                a.grad = b.grad.clone()
        for each in (ours, theirs, *schedules):
            each.step()
        for each in (ours, theirs):
            each.zero_grad()
    whole, wanted = ours.state_dict(), theirs.state_dict()
    return {
        "apart": max(float((a - b).abs().max().detach()) for a, b in zip(mine, alone, strict=True)),
        "held": sum(p.numel() for p in ours.owned(rank)),
        "states": len(ours.state),
        "groups": [[group["lr"], group["params"]] for group in whole["param_groups"]],
        "wanted_groups": [[group["lr"], group["params"]] for group in wanted["param_groups"]],
        "state": whole["state"],
        "wanted_state": wanted["state"],
        "loaded": loaded_apart(whole if rank == 0 else {}, mine, groups, optimizer_cls, settings),
    }


def loaded_apart(state: Any, params: list[nn.Parameter], groups: Any, optimizer_cls: Any, settings: Any) -> float:
    """How far a step goes wrong after the state, which rank 0 alone has, was loaded, held against all the state."""
    again = ShardedOptimizer([*groups(params), {"params": params[4:]}], optimizer_cls, **settings)
    again.load_state_dict(deepcopy(state))
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.ones_like(p) if p.requires_grad else None
    again.step()
    alone = [nn.Parameter(p.clone(), requires_grad=q.requires_grad) for p, q in zip(before, params, strict=True)]
    one = optimizer_cls([*groups(alone), {"params": alone[4:]}], **settings)
    one.load_state_dict(deepcopy(state_of_first(state)))
    for p in alone:
        p.grad = torch.ones_like(p) if p.requires_grad else None
    one.step()
    return max(float((a - b).abs().max()) for a, b in zip(params, alone, strict=True))


def state_of_first(state: Any) -> Any:
    """What rank 0 has, on every rank."""
    shared = [state]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def at_another_size(rank: int, folder: str, load: bool) -> list[float] | None:
    """A sharded optimizer's state saved, and loaded, perhaps by another number of ranks; the weights after a step."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(size).double()) for size in (7, 30, 11)]
    optimizer = ShardedOptimizer(params, torch.optim.AdamW, lr=0.1)
    for p in params:
        p.grad = p.detach().clone()
    if load:
        optimizer.load_state_dict(torch.load(f"{folder}/state.pt") if rank == 0 else {})
    optimizer.step()
    if not load:
        state = optimizer.state_dict()
        if rank == 0:
            torch.save(state, f"{folder}/state.pt")
    return [float(p.sum()) for p in params]


def meetings(rank: int, fragments: int) -> tuple[list[int], list[int], int]:
    """Over two rounds of four steps of DiLoCo: parameters that met after each, bytes handed in, and all parameters."""
    settings = ["sync.inner_steps=4", f"sync.fragments={fragments}"]
    with session(build_strategy(named(load_config(None, settings), "diloco", "none"), CPU)) as strategy:
        module = strategy.wrap(toy_model(), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
        rows, sent = [], []
        strategy.wire.take()
        for _ in range(8):
            module(torch.arange(12).view(2, 6)).sum().backward()
            strategy.finish()
            strategy.step(optimizer, Precision("fp32", CPU))
            optimizer.zero_grad()
            rows.append(strategy.row()["met_parameters"])
            sent.append(strategy.wire.take().bytes_raw)
        return rows, sent, sum(p.numel() for p in module.parameters() if p.requires_grad)


def outer_steps(rank: int) -> tuple[list[float], list[float]]:
    """A weight over DiLoCo's rounds, and over steps of torch's Nesterov along the mean of what the ranks did."""
    settings = ["sync.inner_steps=2", "sync.outer_rate=0.5", "sync.outer_momentum=0.8"]
    weight = nn.Parameter(torch.ones(1).double())
    outer = torch.optim.SGD([weight], lr=0.5, momentum=0.8, nesterov=True)
    ours, theirs = [], []
    with session(build_strategy(named(load_config(None, settings), "diloco", "none"), CPU)) as strategy:
        module = nn.Linear(1, 1, bias=False).double()
        nn.init.ones_(module.weight)
        strategy.wrap(module, CPU)
        inner = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
        for _ in range(4):
            start = weight.detach().clone()
            moved = sum(2 * 0.1 * (other + 1) for other in range(2)) / 2  # each rank by its own constant gradient
            for _ in range(2):
                (module.weight * (rank + 1)).sum().backward()
                strategy.finish()
                strategy.step(inner, Precision("fp32", CPU))
                inner.zero_grad()
            weight.grad = torch.full_like(start, moved)
            outer.step()
            ours.append(float(module.weight))
            theirs.append(float(weight))
    return ours, theirs


def waits_noted(rank: int, sync: str) -> bool:
    """Whether in a second step something is waited for between `finish` and the next, as the strategy says itself."""
    noted: list[bool] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        noted.append(True)
        yield

    with session(build_strategy(named(load_config(None, ["sync.inner_steps=1"]), sync, "none"), CPU)) as strategy:
        strategy.waiting = waiting
        module = strategy.wrap(gpt2(), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
        for _ in range(2):
            noted.clear()
            if strategy.ranks.serves(rank):
                strategy.serve()
            else:
                module(torch.arange(12).view(2, 6)).sum().backward()
                strategy.finish()
            strategy.step(optimizer, Precision("fp32", CPU))
            optimizer.zero_grad()
        return any(noted)


def messages(rank: int, sync: str) -> list[int]:
    """Of two steps, the messages of a rank under a parameter server."""
    with session(build_strategy(named(load_config(None, []), sync, "none"), CPU)) as strategy:
        module = strategy.wrap(toy_model(), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
        found = []
        for _ in range(2):
            if rank == 0:
                strategy.serve()
            else:
                module(torch.arange(12).view(2, 6)).sum().backward()
                strategy.finish()
            strategy.step(optimizer, Precision("fp32", CPU))
            optimizer.zero_grad()
            found.append(strategy.row()["messages"])
        return found


def pushed_buffers(rank: int) -> dict[str, float]:
    """What the server has of a running mean after the workers saw three rows of 1 and one row of 5."""
    with session(build_strategy(named(load_config(None, []), "ps", "none"), CPU)) as strategy:
        module = strategy.wrap(nn.BatchNorm1d(2, momentum=None).train(), CPU)
        if rank == 1:
            module(torch.ones(3, 2))
        if rank == 2:
            module(torch.full((2, 2), 5.0))
            strategy._rows.fill_(1)
            module.num_batches_tracked.fill_(2)
        state = strategy.full_state()
        return {} if state is None else {
            "mean": float(state["running_mean"][0]), "batches": int(state["num_batches_tracked"])
        }  # fmt: skip


def get_sharded_optimizer(params: Any, optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any) -> Any:
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None) -> nn.Module:
    return FullyShardedDDP(module, compute_dtype)


def fsdp_gather_full_params(fsdp_model: Any) -> dict[str, Tensor]:
    return fsdp_model.gather_full_params()


def course_sharded(rank: int, tied: bool) -> tuple[float, float]:
    """Steps with the sharded optimizer, and fully sharded, from equal weights: largest difference from one process."""
    torch.manual_seed(0)
    alone = [Course(tied) for _ in range(2)]
    models = [deepcopy(alone[0]), get_fsdp(deepcopy(alone[1]), None)]
    settings = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    theirs = [torch.optim.AdamW(model.parameters(), **settings) for model in alone]
    ours = [
        get_sharded_optimizer(models[0].parameters(), torch.optim.AdamW, **settings),
        torch.optim.AdamW(models[1].parameters(), **settings),
    ]
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(20, 10, generator=generator), torch.randn(20, alone[0].fc3.out_features, generator=generator)
    for _ in range(5):
        for number, (model, mine, single, other) in enumerate(zip(models, ours, alone, theirs, strict=True)):
            part = slice(rank * 10, rank * 10 + 10) if number else slice(None)
            for each, optimizer, rows in ((model, mine, part), (single, other, slice(None))):
                optimizer.zero_grad()
                nn.functional.mse_loss(each(x[rows]), y[rows]).backward()
                if isinstance(each, FullyShardedDDP):
                    on_after_backward(each, optimizer)
                optimizer.step()
    found = [dict(models[0].state_dict()), fsdp_gather_full_params(models[1])]
    first, second = (
        max(float((state[name] - tensor).abs().max()) for name, tensor in single.state_dict().items())
        for state, single in zip(found, alone, strict=True)
    )
    return first, second


def process_id(rank: int) -> int:
    return os.getpid()


def killed(rank: int, sync: str) -> None:
    """Steps of a strategy, in the second of which the last rank ends between its forward and its backward pass."""
    config = named(load_config(None, ["launch.timeout_s=60", "sync.inner_steps=1"]), sync, "none")
    strategy = build_strategy(config, CPU)
    module = strategy.wrap(gpt2(), CPU)
    optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=0.1))
    for step in range(3):
        if strategy.ranks.serves(rank):
            strategy.serve()
        else:
            loss = module(torch.arange(12).view(2, 6)).sum()
            if step == 1 and rank == strategy.ranks.world_size - 1:
                os._exit(9)
            loss.backward()
            strategy.finish()
        strategy.step(optimizer, Precision("fp32", CPU))
        optimizer.zero_grad()
