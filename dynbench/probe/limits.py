"""The limits of a probe's trials: memory, lengths and sizes."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import torch

from dynbench.config.held import copies_served
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Resolved
from dynbench.errors import NothingFits, UsageError
from dynbench.kernels.packed_attention import most_demanding
from dynbench.runs.provenance import ROOT, memory_mb
from dynbench.units import BYTES_PER_MB, parse_bytes
from dynbench.workloads.base import Workload
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.micro_batch import MicroBatch, make_micro_batch
from dynbench.workloads.packed import packs

RESERVE = 0.15
"""Part of a CPU host's available memory that the default budget leaves alone."""


def memory_limit_bytes(resolved: Resolved) -> int | None:
    """The budget of one trial process on a CPU; None on GPUs, where a fraction is set instead.

    Raises:
        UsageError: a limit that is no size.
        UnknownFactError: the system does not say what is available.
    """
    config = resolved.config
    if config.launch.device == "cuda":
        return None
    if config.probe.memory_limit is None:
        assert isinstance(config.launch.nproc, int), "resolved"
        return default_cpu_limit_bytes(config.launch.nproc)
    try:
        return parse_bytes(config.probe.memory_limit)
    except ValueError as error:
        raise UsageError(f"probe.memory_limit: {error}", "Write it like 512MB or 2GiB.") from None


def default_cpu_limit_bytes(world_size: int, root: Path = ROOT) -> int:
    """An equal share, per rank, of the memory that is available now within the container's limit, less a reserve.

    Args:
        world_size: ranks (G).
        root: where `/proc` and `/sys` are.

    Raises:
        UnknownFactError: the system does not say.
    """
    available = memory_mb(root)["available"]
    assert available is not None
    return int(available * BYTES_PER_MB * (1 - RESERVE) / world_size)


def served_mb(config: Config, parameters_mb: float, limit_mb: float | None) -> float | None:
    """Memory that a rank that serves needs, by the size of the parameters that are trained; None where none does.

    Args:
        config: its strategy and optimizer.
        parameters_mb: of one copy, MB.
        limit_mb: what a process may use; None where that is not known.

    Raises:
        NothingFits: it is more than that.
    """
    needed = copies_served(config) * parameters_mb
    if limit_mb is not None and needed > limit_mb:
        raise NothingFits(
            f"probe: a server of sync.name {config.sync.name!r} holds {needed:,.0f} MB of parameters, gradients and "
            f"optimizer state, more than the {limit_mb:,.0f} MB of a process",
            "Raise the memory limit (--memory-limit), or take a smaller model or another strategy.",
        )
    return needed or None


def resident_bytes() -> int:
    """Resident memory of this process, interpreter and libraries included: what a training run reports peaks of."""
    return _status("VmRSS:")


def limit_process(limit_bytes: int) -> None:
    """Let the kernel refuse this process memory that would make more than the limit resident.

    `RLIMIT_DATA` counts private writable mappings since Linux 4.7 (getrlimit(2)), so that the allocator fails at once
    and the process survives, where a control group would have it killed. It knows neither the pages of libraries nor
    which of the mappings are in use, so what is allowed is what is mapped now and what is left below the limit; to be
    called again before every trial. What is mapped and becomes resident later is not refused: a peak has the last word.
    """
    allowed = _status("VmData:") + max(0, limit_bytes - resident_bytes())
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most))


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key.rstrip(':')}")


def shaped(workload: Workload, n: int, length: int, device: torch.device, most: bool = False) -> TokenisedData:
    """`n` samples, one token short of `length`; packed, of `length`.

    Short, so that padding to `length` leaves a mask: without padding the attention drops it and takes a kernel that
    training hardly ever gets.

    Args:
        workload: whose tokens and labels they have.
        n: how many.
        length: tokens.
        device: where they will be run.
        most: of a packed row, other lengths that need more memory, if there are any; as many tokens and as long.
    """
    lengths = [max(1, length - 1)] * n
    if packs(workload):
        lengths = list(most_demanding(n, length, device)) if most else [length] * n
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    total, count = int(offsets[-1]), len(lengths)
    tokens = np.resize(workload.train.tokens[:total], total)
    labels, weights = np.resize(workload.train.labels, count), workload.train.weights
    return TokenisedData(
        tokens,
        offsets,
        labels,
        "probe",
        weights=None if weights is None else np.resize(weights[weights > 0], count),
    )


def shaped_batch(workload: Workload, n: int, length: int, device: torch.device, most: bool = False) -> MicroBatch:
    """`shaped` samples as one micro-batch, padded to `length`, or as one packed row."""
    data = shaped(workload, n, length, device, most)
    return make_micro_batch(workload, data, np.arange(len(data), dtype=np.int64), length, device)
