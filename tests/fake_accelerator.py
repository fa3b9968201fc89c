"""What runs on GPUs, run on an accelerator that does not exist: its tensors have shapes, types and a device, no values.

torch takes back ends that are written in Python, which is experimental, and under its `FakeTensorMode` one needs no
operator of its own. There, an operator that is given tensors of two devices raises, as on a GPU, and so does what reads
a tensor's values, for which a GPU were waited for.

As a program, it registers the accelerator in its process and writes a line of JSON for each case: its name, and what
it raised or null.
"""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from compressors import FORMS, OWN, Channel, Done, compressor
from packed import CHANGES, row_of, tiny_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from toys import TiedModel
from transformers import initialization

from dynbench.compress import CompressedMean
from dynbench.compress.codec import Known
from dynbench.compress.compressing import Compressing
from dynbench.compress.quantised import Fp16
from dynbench.compress.sketch import CountSketch
from dynbench.config.layers import load_config
from dynbench.kernels import Boundaries, FlashAttentionTorch, use_packed_rows
from dynbench.kernels.packed_attention import attend
from dynbench.plugins import STRATEGIES
from dynbench.wire.base import NullWire
from dynbench.wire.segment import lay_out

SETUP = "_setup_privateuseone_for_python_backend"
"""Of `torch.utils.backend_registration`; versions of torch may lack it."""
NAME = "fakegpu"
RANKS = 2
LENGTHS = (2, 5, 5, 9)
"""Of the samples of a packed row."""
PLANTED = "planted: a codec that adds a tensor of the host's"

COMPRESSORS_LEFT_OUT = {
    **dict.fromkeys(("topk", "randomk", "threshold", "thresholdv", "gradiveq"), "how much is sent depends on values"),
    "fp16_torch": "torch's own hook sends by itself",
    "none": "nothing is computed",
}
STRATEGIES_LEFT_OUT = {
    **dict.fromkeys(("ddp", "ddp_noop", "zero1_torch"), "torch's reducer, in C++, reads memory"),
    "fsdp": "torch's, which wants streams of the accelerator",
    "local_sgd_torch": "torch's, which sends by itself",
}


class Alone(Channel):
    """A rank whose others have what it has."""

    def __init__(self) -> None:
        super().__init__(0, RANKS, None, [])  # type: ignore[arg-type]  # nobody is met

    def _exchange(self, name: str, given: Tensor) -> list[Tensor]:
        return [given.clone() for _ in range(RANKS)]


class Silent(NullWire):
    """Likewise, without torch's futures, which look at memory."""

    def _begin(self, *_: object) -> Done:  # type: ignore[override]
        return Done()


class OnTheHost(Fp16):
    """Forgets where its gradient is."""

    def encode(self, values: Tensor, known: Known, out: Iterable[Tensor]) -> None:
        super().encode(values + torch.zeros(len(values)), known, list(out))


def remain(*tensors: Tensor) -> None:
    """Refuse a tensor that is not on the accelerator."""
    assert {each.device.type for each in tensors} == {NAME}, [each.device for each in tensors]


def average(make: Callable[[], Compressing]) -> None:
    """Two means of a gradient, the second with what the first left out, and one of a shard."""
    averaging, channel = make(), Alone()
    segments = lay_out({"weight": (24, 40), "bias": (24,)}.items())
    flat = torch.randn(24 * 41, device=NAME)
    shard = torch.empty(len(flat) // RANKS, device=NAME)
    for _ in range(2):
        averaging.mean(channel, flat, segments)
    averaging.mean_shard(channel, flat, segments, shard)
    remain(flat, shard)


def packed(arrangement: str, causal: bool, window: int | None) -> None:
    """Attention to a sample's own tokens, heads in groups, there and back."""
    boundaries = Boundaries(LENGTHS, arrangement=arrangement).to(NAME)  # type: ignore[arg-type]  # one of two
    states = [torch.randn(sum(LENGTHS), heads, 8, device=NAME, requires_grad=True) for heads in (4, 2, 2)]
    attended = attend(*states, boundaries, causal=causal, window=window)
    attended.sum().backward()
    remain(attended, *(each.grad for each in states))


def packed_model(name: str) -> None:
    """A forward and a backward pass of an architecture over a packed row."""
    with patch.object(initialization, "trunc_normal_", lambda tensor, **_: tensor):  # reads values
        model = use_packed_rows(tiny_model(name)).to(NAME).train()
    given, boundaries = row_of([[5] * n for n in LENGTHS])
    output = model(input_ids=given.to(NAME), boundaries=boundaries.to(NAME))
    output.logits.sum().backward()
    remain(output.logits, *(each.grad for each in model.parameters() if each.grad is not None))


def flash(causal: bool, packs: bool) -> None:
    """Several tiles, there and back."""
    lengths = (700, 1500, 1500)
    boundaries = Boundaries(lengths).to(NAME) if packs else None
    states = [torch.randn(2, 3, sum(lengths), 16, device=NAME, requires_grad=True) for _ in range(3)]
    result = FlashAttentionTorch.apply(*states, causal, boundaries)
    result.sum().backward()
    remain(result, *(each.grad for each in states))


def synchronise(name: str) -> None:
    """Two steps of a strategy with two micro-batches each, on a rank that trains."""
    entry = STRATEGIES.find(name)
    settings = load_config(None, ["sync.inner_steps=1"]).sync.model_copy(update={"name": name})
    wire = Silent(entry.servers, RANKS, dist.group.WORLD, echoes=True)
    strategy = entry.load()(settings, wire)
    module = strategy.wrap(TiedModel(), torch.device(NAME))
    optimizer = strategy.build_optimizer(module.parameters(), lambda each: torch.optim.SGD(each, 0.1, momentum=0.9))
    given, valid = torch.ones(2, 6, dtype=torch.int64, device=NAME), torch.ones(2, 6, device=NAME)
    for _ in range(2):
        with strategy.accumulating():
            module(given, valid).sum().backward()
        module(given, valid).sum().backward()
        strategy.finish()
        remain(strategy.gradient_norm())
        strategy.step(optimizer, SimpleNamespace(step=lambda each: each.step()))  # in no precision but its own
        optimizer.zero_grad()
    strategy.drain()
    remain(*strategy.model.parameters(), *strategy.buffers())


FORMS_TRIED = [form for form in (*FORMS, *OWN) if COMPRESSORS_LEFT_OUT.keys().isdisjoint(form.split()[0].split("+"))]
"""Compressors with options, but those left out and what is made of them."""
CASES: Mapping[str, Callable[[], object]] = {
    **{f"compress {form}": partial(average, partial(compressor, form)) for form in FORMS_TRIED},
    **{
        f"packed attention, {arrangement}, {causal=}, {window=}": partial(packed, arrangement, causal, window)
        for arrangement in ("by_length", "repadded")
        for causal in (True, False)
        for window in (None, 3)
    },
    **{f"packed {name}": partial(packed_model, name) for name in CHANGES},
    **{f"flash, {causal=}, {packs=}": partial(flash, causal, packs) for causal in (0, 1) for packs in (0, 1)},
    **{f"sync {name}": partial(synchronise, name) for name in STRATEGIES.entries if name not in STRATEGIES_LEFT_OUT},
}


def moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    """In place of torch's `Module.to`, which fails by chance: it exchanges such tensors, if nothing refers to them."""
    there: dict[Tensor, Tensor] = {}
    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor not in there:
                    moved = tensor.detach().to(device)
                    is_trained = isinstance(tensor, nn.Parameter)
                    there[tensor] = nn.Parameter(moved, tensor.requires_grad) if is_trained else moved
                tensors[name] = None if tensor is None else there[tensor]
    return module


def place(tensor: Tensor) -> int:
    """In place of an address, which such tensors lack: equal for views that begin alike."""
    return tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()


def of_the_host(make: Callable[..., None]) -> Callable[..., None]:
    """In place of a function that draws on the host, and reads what it drew."""

    def made(*given: object) -> None:
        with unset_fake_temporarily():
            make(*given)

    return made


@contextmanager
def prepared() -> Iterator[None]:
    """The accelerator is there, with ranks that nothing goes between, and what torch lacks for it is made up for."""
    getattr(importlib.import_module("torch.utils.backend_registration"), SETUP)(NAME)
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=RANKS)
    with (
        patch.object(Tensor, "data_ptr", place),
        patch.object(nn.Module, "to", moved),
        patch.object(dist, "all_gather_object", lambda everyone, mine, group: None),
        patch.object(torch, "Generator", lambda device=None: SimpleNamespace(manual_seed=lambda seed: None)),
        patch.object(CountSketch, "__init__", of_the_host(CountSketch.__init__)),
    ):
        yield


def raised_by(case: Callable[[], object]) -> str | None:
    """What a case raises, and where outside of torch."""
    try:
        with FakeTensorMode():
            case()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if "/torch/" not in frame.filename][-1]
        return f"{type(error).__name__}: {error}\nin {last.name} ({last.filename}:{last.lineno})"
    return None


if __name__ == "__main__":
    planted = partial(average, partial(CompressedMean, OnTheHost(), min_elements=0))
    with prepared():
        for name, case in {**CASES, PLANTED: planted}.items():
            print(json.dumps([name, raised_by(case)]))
