"""What ranks tell each other of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dynbench.sync.shared_model import unused_everywhere
from dynbench.wire.base import NullWire

GPU = torch.device("cuda", 0)


class OnGpu(TorchFunctionMode):
    """Tensors of a GPU are on the CPU, and every copy to it is noted: whether the host went on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[torch.Tensor] = []
        self.went_on: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is torch.Tensor.to and args[1] == GPU:
            self.went_on.append(bool(named.get("non_blocking")) and any(args[0] is each for each in self.pinned))
            return args[0]
        pin = named.pop("pin_memory", False)
        if named.get("device") == GPU:
            named["device"] = "cpu"
        made = func(*args, **named)
        if pin:
            self.pinned.append(made)
        return made


def test_the_host_does_not_wait_for_a_gpu_to_say_what_it_has_used() -> None:
    with OnGpu() as seen:
        assert unused_everywhere((0, 1, 2), 3, NullWire(0, 2), GPU) == frozenset()
    assert seen.went_on == [True]


def test_what_no_rank_has_used() -> None:
    assert unused_everywhere((0, 2), 4, NullWire(0, 2), torch.device("cpu")) == {1, 3}
    assert unused_everywhere((), 0, NullWire(0, 2), torch.device("cpu")) == frozenset()
