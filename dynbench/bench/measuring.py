"""What work takes on a device: the time of every call, memory in use and at most, and what is free.

On CPUs every allocation of torch's allocator is counted, as its profiler tells them; what other libraries take by
themselves, as oneDNN for a product, is not. On CUDA the peak is the allocator's own, the rest its memory history.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dynbench.clock import clock_for
from dynbench.runs.provenance import memory_mb
from dynbench.units import BYTES_PER_MB

T = TypeVar("T")
MOST_POINTS = 2000
PREFIX = "dynbench::"
"""Of the names of our ranges in a profile."""
FRAMES = 3
OWN_FILES = ("/torch/", *(f"/dynbench/bench/{name}.py" for name in ("measuring", "memory", "rank")))
"""In the names of files whose frames say nothing of the work: torch's, and what watches."""


def free_bytes(device: torch.device) -> int:
    """Bytes: of the GPU, or of the machine within what this process's groups allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = memory_mb()["available"]
    assert available is not None, "of this system"
    return int(available * BYTES_PER_MB)


def time_calls(
    run: Callable[[], object], count: int, device: torch.device, prepare: Callable[[], object] = lambda: None
) -> NDArray[np.float64]:
    """Milliseconds of every call, shape [count], each from an idle device until it is idle again.

    Args:
        run: what is timed.
        count: how often.
        device: that it runs on.
        prepare: called before each, not timed.
    """
    clock, times = clock_for(device), np.empty(count)
    for index in range(count):
        prepare()
        clock.synchronise()
        start = clock.mark()
        run()
        end = clock.mark()
        clock.synchronise()
        times[index] = clock.elapsed_ms(start, end)
    return times


@dataclass(frozen=True)
class Changes:
    """Memory beside that in use when the work began.

    Attributes:
        after: bytes when it ended.
        most: bytes at once.
        ms: when it changed, shape [n], the first 0.
        nbytes: in use from then, shape [n].
    """

    after: int
    most: int
    ms: NDArray[np.float64]
    nbytes: NDArray[np.int64]


@dataclass(frozen=True)
class Allocation:
    """Memory allocated at one place.

    Attributes:
        nbytes: each time.
        times: how often.
        operator: that allocated it.
        stack: frames outside of torch, the innermost first.
    """

    nbytes: int
    times: int
    operator: str
    stack: str


def watch(
    work: Callable[[], T], device: torch.device, snapshot: Path | None = None, *, history: bool = True
) -> tuple[T, Changes]:
    """What the work gives, and how memory changed meanwhile.

    Args:
        work: runs on the device.
        device: whose memory it is.
        snapshot: where to keep the memory history for https://pytorch.org/memory_viz; of CUDA only.
        history: whether the single changes are wanted, for which CUDA's allocator has to record; of the CPU they come
            anyway.
    """
    if device.type == "cuda":
        return _watch_cuda(work, device, snapshot, history)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = work()
    results: Any = watched.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda change: change[0])
    return result, changes_of([(ns / 1e6, nbytes) for ns, nbytes in changes])


def changes_of(changes: Sequence[tuple[float, int]]) -> Changes:
    """Of single changes, (ms, bytes), in their order."""
    ms, deltas = (np.array([change[column] for change in changes]) for column in (0, 1))
    used = np.cumsum([0, *deltas]).astype(np.int64)
    since = np.array([0, *(ms - ms[0])]) if len(ms) else np.zeros(1)
    return Changes(int(used[-1]), int(used.max()), since, used)


def _watch_cuda(
    work: Callable[[], T], device: torch.device, snapshot: Path | None, with_history: bool
) -> tuple[T, Changes]:
    cuda, found = torch.cuda, changes_of([])
    cuda.synchronize(device)
    cuda.reset_peak_memory_stats(device)
    before = cuda.memory_allocated(device)
    if with_history:
        cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        result = work()
        cuda.synchronize(device)
        if with_history:
            found = changes_of(traced_changes(cuda.memory._snapshot(), device.index or 0))
        if snapshot is not None:
            cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]  # torch's
    finally:
        if with_history:
            cuda.memory._record_memory_history(enabled=None)
    after, most = cuda.memory_allocated(device) - before, cuda.max_memory_allocated(device) - before
    return result, replace(found, after=after, most=most)


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


@contextmanager
def span(name: str) -> Iterator[None]:
    """A range in the profile of torch, and in that of nsys where CUDA is."""
    in_nvtx = torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext()
    with record_function(PREFIX + name), in_nvtx:
        yield
