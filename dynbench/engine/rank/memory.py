"""Memory of a rank: the peak of a step, and what the rank holds of a model by kind.

The peak is that of the CUDA allocator, or of the process on a CPU. What a rank holds is counted in tensors, not in
pages, at three moments of its first step.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dynbench.config.ranks import parameter_copies, ranks_of, residual_copies, server_copies
from dynbench.config.schema import Config, decided
from dynbench.engine.planning import load_probe
from dynbench.engine.rank.exchange import gather_objects
from dynbench.engine.rank.replica import Replica
from dynbench.errors import ReplicasTooLarge
from dynbench.runs.atomic import write_json
from dynbench.runs.provenance import UnknownFactError, memory_mb
from dynbench.runs.run import Run
from dynbench.units import mb

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = b"5"
MOMENTS = ("initialised", "before_step", "after_step")
"""The model, its strategy and its optimizer are made; gradients are synchronised; the optimizer has stepped."""
SHARE = 0.5
"""Of the memory, what all replicas may take where nothing says how much a step needs."""
SHARE_PROBED = 0.1
"""The same where the capacities are probed limits, up to which a step may use all the rest."""


class MemoryNow(NamedTuple):
    """A reading of a meter, MB."""

    peak_mb: float | None
    """Largest use since the last reset; None where it cannot be told apart from that of other arms."""
    reserved_mb: float | None
    """Held from the system now; None likewise."""


class MemoryMeter:
    """Peak since the last reset, and what is held now; of a process on a CPU that holds several arms, unknown."""

    source = "unknown: the process holds several arms, and its resident memory is that of all of them"
    """What the numbers are, for `env.json`."""

    def reset(self) -> None:
        """Forget the peak."""

    def now(self) -> MemoryNow:
        """What there is to say now."""
        return MemoryNow(None, None)

    def enter(self) -> None:
        """From here on, what is allocated in this process is this arm's."""

    def leave(self) -> None:
        """Up to here it was."""


class CudaMemory(MemoryMeter):
    """PyTorch's caching allocator on one device.

    Args:
        device: the device.
        shared: the process holds several arms: what rests for the others does not count. Between `enter` and `leave`
            only this arm allocates; the meter is made before the arm allocates anything.
    """

    source = "peak and reserved bytes of the CUDA caching allocator, reset every step"

    def __init__(self, device: torch.device, *, shared: bool = False) -> None:
        self._device, self._shared = device, shared
        self._own = self._others = 0
        if shared:
            self.source = (
                "peak bytes of the CUDA caching allocator less those that rest for the other arms of the launch, reset "
                "every step; what the allocator reserves is for all arms together and not stated"
            )
        self.enter()

    def enter(self) -> None:
        """All that is allocated beyond this arm's own rests for others."""
        if self._shared:
            self._others = torch.cuda.memory_allocated(self._device) - self._own

    def leave(self) -> None:
        """What is allocated beyond the others' is this arm's."""
        if self._shared:
            self._own = torch.cuda.memory_allocated(self._device) - self._others

    def reset(self) -> None:
        """Forget the allocator's peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def now(self) -> MemoryNow:
        """Most bytes allocated by this arm's tensors, and what the allocator holds."""
        peak = torch.cuda.max_memory_allocated(self._device) - self._others
        return MemoryNow(mb(peak), None if self._shared else mb(torch.cuda.memory_reserved(self._device)))


class ResidentMemory(MemoryMeter):
    """The process's resident memory; writing 5 to clear_refs resets its peak (proc(5), Linux 4.0).

    Raises:
        OSError: the kernel does not offer the files, or forbids the reset.
    """

    source = "peak resident memory of the process (VmHWM), reset every step; reserved is what is resident now (VmRSS)"

    def __init__(self) -> None:
        self._clear = os.open(_CLEAR_REFS, os.O_WRONLY)
        self._status = os.open(_STATUS, os.O_RDONLY)
        self.reset()
        if not self.now().peak_mb:
            raise OSError(f"{_STATUS} has no VmHWM")

    def reset(self) -> None:
        """Set the peak to what is resident now; about 10 microseconds."""
        os.pwrite(self._clear, _RESET_PEAK, 0)

    def now(self) -> MemoryNow:
        """Most resident memory, and what is resident."""
        kb = dict.fromkeys((b"VmHWM", b"VmRSS"), 0)
        for line in os.pread(self._status, 8192, 0).splitlines():
            key, _, value = line.partition(b":")
            if key in kb:
                kb[key] = int(value.split()[0])
        return MemoryNow(*(mb(size * 1024) for size in kb.values()))


class LifetimePeak(MemoryMeter):
    """The process's peak since it started, also as what it holds now; the fallback where it cannot be reset."""

    source = "peak resident memory of the process since its start (getrusage): this system cannot reset it"

    def now(self) -> MemoryNow:
        """Most resident memory since the start."""
        unit = 1 if sys.platform == "darwin" else 1024
        peak = mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
        return MemoryNow(peak, peak)


def memory_meter(device: torch.device) -> MemoryMeter:
    """The best meter that the device and the system offer."""
    if device.type == "cuda":
        return CudaMemory(device)
    try:
        return ResidentMemory()
    except OSError:
        return LifetimePeak()


def arm_meter(device: torch.device) -> MemoryMeter:
    """A meter of one arm in a process that holds several."""
    return CudaMemory(device, shared=True) if device.type == "cuda" else MemoryMeter()


class HeldMemory:
    """Counts what a rank holds, where that is wanted, in its first step.

    A tensor of several ranks counts with this rank's part of it, and storage that several share counts once. What lives
    within a pass only is not held at any of the moments, but for the activations: what autograd saves for the backward
    pass of a micro-batch.

    Args:
        run: its folder.
        rank: the rank.
        replica: the model, strategy and optimizer.
        memory: tells the peak up to a moment, where it can.
        wanted: whether anything is counted.
    """

    def __init__(self, run: Run, rank: int, replica: Replica, memory: MemoryMeter, *, wanted: bool) -> None:
        self._rank, self._file, self._wanted = rank, run.held_file(rank), wanted
        self._replica, self._memory = replica, memory
        self._found: dict[str, dict[str, float | None]] = {}
        self._activations = 0
        self._note(MOMENTS[0])

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The forward and backward passes of a step, at whose end the gradients are synchronised."""
        if not self._wanted:
            yield
            return
        saved = Saved()
        with saved_tensors_hooks(saved.save, lambda saved: saved.tensor):
            yield
        self._activations = saved.most
        self._note(MOMENTS[1])

    def stepped(self) -> None:
        """The optimizer has stepped; gradients are still there. What was counted is written."""
        if self._wanted:
            self._note(MOMENTS[2])
            model = self._replica.model.parameters()
            whole = sum(each.numel() * each.element_size() for each in model if each.requires_grad)
            facts = {"rank": self._rank, "whole_mb": mb(whole), "activations_mb": mb(self._activations)}
            write_json(self._file, {**facts, **self._found})
            self._wanted = False

    def _note(self, moment: str) -> None:
        if not self._wanted:
            return
        replica, optimizer = self._replica, self._replica.optimizer
        stepping = getattr(optimizer, "optim", optimizer)  # a ZeroRedundancyOptimizer's own
        groups = (each for group in optimizer.param_groups for each in group["params"])
        parameters = [*replica.strategy.module.parameters(), *groups]
        kinds: dict[str, Iterable[Tensor]] = {
            "parameters_mb": parameters,
            "gradients_mb": [each.grad for each in parameters if each.grad is not None],
            "optimizer_mb": [
                value
                for state in stepping.state.values()
                for value in state.values()
                if isinstance(value, Tensor) and value.dim()
            ],
            "strategy_mb": replica.strategy.buffers(),
        }
        counted: set[int] = set()
        found: dict[str, float | None] = {kind: mb(_bytes(tensors, counted)) for kind, tensors in kinds.items()}
        self._found[moment] = {**found, "peak_mb": self._memory.now().peak_mb}


class Saved:
    """What autograd has saved and not let go of, storage that several tensors share counted once, in bytes.

    A micro-batch lets go of its own in its backward pass, after which the next has other storage at the same addresses.
    """

    def __init__(self) -> None:
        self.now = self.most = 0
        self._users: Counter[int] = Counter()

    def save(self, tensor: Tensor) -> _SavedTensor:
        """Count a tensor for as long as what is returned lives; parameters are in memory anyway."""
        of_parameter = isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)
        return _SavedTensor(tensor, None if of_parameter else self)

    def count(self, storage: int, size: int, users: int) -> None:
        """So many more users of a storage of `size` bytes, or fewer."""
        before, self._users[storage] = self._users[storage], self._users[storage] + users
        if not before or not self._users[storage]:
            self.now += users * size
            self.most = max(self.most, self.now)


class _SavedTensor:
    def __init__(self, tensor: Tensor, of: Saved | None) -> None:
        self.tensor, self._of = tensor, of
        if of is not None:
            storage = _storage(tensor)
            self._storage, self._size = storage._cdata, storage.nbytes()
            of.count(self._storage, self._size, 1)

    def __del__(self) -> None:
        if self._of is not None:
            self._of.count(self._storage, self._size, -1)


def _bytes(tensors: Iterable[Tensor], counted: set[int]) -> int:
    """Of storage that is not among that `counted`, which it joins."""
    total = 0
    for tensor in tensors:
        storage = _storage(tensor)
        if storage.nbytes() and storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor has a part
    return local.untyped_storage()


def check_room(configs: Sequence[Config], model: nn.Module, device: torch.device, root: Path | None = None) -> None:
    """Refuse several arms whose replicas do not fit, before the second is built; a collective.

    Args:
        configs: of all arms of the launch.
        model: of the one that was built; the others have such a one.
        device: where it is.
        root: results folder in which a probe run is looked up.

    Raises:
        ReplicasTooLarge: on some rank they do not fit; raised on every rank.
    """
    if len(configs) == 1:
        return
    parameters_mb = mb(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))
    replicas_mb = sum(map(_copies, configs)) * parameters_mb
    share = SHARE_PROBED if any(_probed_limits(config, root) for config in configs) else SHARE
    room_mb = min(gather_objects(_room_mb(configs[0], device)))
    if replicas_mb > share * room_mb:
        raise ReplicasTooLarge(
            f"the models of {len(configs)} arms take {replicas_mb:,.0f} MB per rank at rest, more than {share:.0%} of "
            f"{room_mb:,.0f} MB",
            "Launch the arms apart: launches.mode=apart (--launch-mode apart).",
        )


def _copies(config: Config) -> float:
    """Of the parameters, in a rank of an arm that holds most of them."""
    ranks = ranks_of(config, decided(config.launch.nproc) * config.launch.nnodes)
    return max(parameter_copies(config, ranks) + residual_copies(config), server_copies(config))


def _probed_limits(config: Config, root: Path | None) -> bool:
    """Whether a probe found where memory ends."""
    capacity = config.schedule.capacity
    if not isinstance(capacity, str):
        return False
    tables = load_probe(capacity, "schedule.capacity", root).tables
    return any(most is not None for rows in tables for _, most in rows)


def _room_mb(config: Config, device: torch.device) -> float:
    """Memory for a rank, MB: of its GPU, or its share of what is available; without end where that is not known."""
    if device.type == "cuda":
        return mb(torch.cuda.get_device_properties(device).total_memory)
    try:
        available = memory_mb()["available"]
    except UnknownFactError:
        return float("inf")
    return float("inf") if available is None else available / decided(config.launch.nproc)
