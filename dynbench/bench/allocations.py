"""Memory of a device (free, allocated, at most), and its arithmetic peak.

On CPUs every allocation of torch's allocator is counted, as its profiler tells them; what other libraries take by
themselves, as oneDNN for a product, is not. On CUDA the peak is the allocator's own, the rest its memory history.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dynbench.runs.provenance import memory_available_bytes

_HOPPER = {"float32": 67e12, "bfloat16": 989e12, "float16": 989e12}
_PEAKS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H200": _HOPPER,
    "NVIDIA A100-SXM4-40GB": {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
    "NVIDIA A100-SXM4-80GB": {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
}
"""FLOP/s of dense products by device name and type, from the data sheets of NVIDIA; fp32 without TF32, as torch has it
unless told otherwise."""
T = TypeVar("T")
MOST_POINTS = 2000
FRAMES = 3
OWN_FILES = (
    "/torch/",
    "/dynbench/bench/allocations.py",
    "/dynbench/bench/memory_phases.py",
    "/dynbench/bench/memory.py",
    "/dynbench/bench/rank.py",
)
"""In the names of files whose frames say nothing of the work: torch's, and what watches."""


def free_bytes(device: torch.device) -> int:
    """Bytes: of the GPU, or of the machine within what this process's groups allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    free = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))
    allowed = memory_available_bytes()
    return free if allowed is None else min(free, allowed)


def peak_flops(device: str, dtype: str) -> float:
    """FLOP/s; NaN where it is not known.

    Args:
        device: as torch names it.
        dtype: of what is multiplied.
    """
    return _PEAKS.get(device, {}).get(dtype, math.nan)


@dataclass(frozen=True)
class Changes:
    """Memory beside that held when the work began.

    Attributes:
        held: bytes when it ended.
        most: bytes at once.
        ms: when it changed, shape [n], the first 0.
        nbytes: what was held from then, shape [n].
    """

    held: int
    most: int
    ms: NDArray[np.float64]
    nbytes: NDArray[np.int64]


@dataclass(frozen=True)
class Allocation:
    """Memory asked for at one place.

    Attributes:
        nbytes: each time.
        times: how often.
        operator: what asked.
        stack: frames outside of torch, the innermost first.
    """

    nbytes: int
    times: int
    operator: str
    stack: str


def watch(work: Callable[[], T], device: torch.device, snapshot: Path | None = None) -> tuple[T, Changes]:
    """What the work gives, and how memory changed meanwhile.

    Args:
        work: runs on the device.
        device: whose memory it is.
        snapshot: where to keep the memory history for https://pytorch.org/memory_viz; of CUDA only.
    """
    if device.type == "cuda":
        return _watch_cuda(work, device, snapshot)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = work()
    results: Any = watched.profiler.kineto_results
    changes = [(event.start_ns() / 1e6, event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return result, changes_of(sorted(changes, key=lambda change: change[0]))


def changes_of(changes: Sequence[tuple[float, int]]) -> Changes:
    """Of single changes, (ms, bytes), in their order."""
    ms, deltas = (np.array([change[column] for change in changes]) for column in (0, 1))
    held = np.cumsum([0, *deltas]).astype(np.int64)
    since = np.array([0, *(ms - ms[0])]) if len(ms) else np.zeros(1)
    return Changes(int(held[-1]), int(held.max()), since, held)


def _watch_cuda(work: Callable[[], T], device: torch.device, snapshot: Path | None) -> tuple[T, Changes]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with _history():
        result = work()
        torch.cuda.synchronize(device)
        history = torch.cuda.memory._snapshot()
        if snapshot is not None:
            torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]  # torch's
    of_history = changes_of(traced_changes(history, device.index or 0))
    held = torch.cuda.memory_allocated(device) - before
    return result, Changes(held, torch.cuda.max_memory_allocated(device) - before, of_history.ms, of_history.nbytes)


@contextmanager
def _history() -> Iterator[None]:
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def traced_changes(history: Mapping[str, Any], index: int) -> list[tuple[float, int]]:
    """(ms, bytes) of a memory history of CUDA: blocks given out, and those that came back."""
    signs = {"alloc": 1, "free_completed": -1}
    trace = history["device_traces"][index]
    return [(each["time_us"] / 1e3, signs[each["action"]] * each["size"]) for each in trace if each["action"] in signs]


def thinned(changes: Changes) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Times and bytes of at most `MOST_POINTS` points, each the most of those that it stands for."""
    starts = np.unique(np.linspace(0, len(changes.ms) - 1, min(MOST_POINTS, len(changes.ms))).astype(int))
    return changes.ms[starts], np.maximum.reduceat(changes.nbytes, starts)


def largest(work: Callable[[], object], most: int) -> list[Allocation]:
    """The largest tensors that the work makes, those of one size, operator and place once."""
    with _Seen() as seen:
        work()
    ordered = sorted(seen.found.items(), key=lambda item: -item[0][0])
    return [Allocation(nbytes, times, operator, stack) for (nbytes, operator, stack), times in ordered[:most]]


class _Seen(TorchDispatchMode):
    """Counts new storages by their size, operator and place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.found: Counter[tuple[int, str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        old = {each.untyped_storage()._cdata for each in given}
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and (storage := each.untyped_storage())._cdata not in old:
                old.add(storage._cdata)
                self.found[storage.nbytes(), str(func), _place()] += 1
        return result


def _place() -> str:
    """Frames outside of torch, the innermost first, behind the node of autograd that runs, if any."""
    frames = [each for each in traceback.extract_stack() if not any(part in each.filename for part in OWN_FILES)]
    named = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(frames)]
    node = torch._C._current_autograd_node()
    return " < ".join([*([node.name()] if node is not None else []), *named[:FRAMES]])
