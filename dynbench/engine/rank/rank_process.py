"""One rank as a process: who it is, its process group, its signals, its log."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Launch, decided
from dynbench.engine.failure import PositionFile
from dynbench.signals import handle, handled

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class RankContext:
    """This process among the ranks."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    position: PositionFile = field(default_factory=PositionFile, compare=False)
    """Where it is, for messages once it hangs or is gone."""

    @property
    def is_first(self) -> bool:
        """Rank 0 decides and writes what exists once."""
        return self.rank == 0

    def speaks(self, ranks: Ranks) -> bool:
        """Whether what this rank says is for people: of rank 0, and of the first that trains."""
        return self.is_first or self.rank == ranks.servers

    @classmethod
    def from_environment(cls, device: str, environment: Mapping[str, str] = os.environ) -> RankContext:
        """From torchrun's variables; `device` is cpu or cuda."""
        local_rank = int(environment["LOCAL_RANK"])
        on_gpu = device == "cuda"
        return cls(
            rank=int(environment["RANK"]),
            local_rank=local_rank,
            world_size=int(environment["WORLD_SIZE"]),
            device=torch.device("cuda", gpu_index(local_rank, environment)) if on_gpu else torch.device("cpu"),
        )


def gpu_index(local_rank: int, environment: Mapping[str, str]) -> int:
    """The GPU of a rank: its own number, or 0 where srun shows each task its own GPU only."""
    return 0 if "SLURM_LOCALID" in environment and torch.cuda.device_count() == 1 else local_rank


@contextmanager
def process_group(context: RankContext, settings: Launch) -> Iterator[None]:
    """The process group of a run: gloo, and nccl for tensors on GPUs.

    CPU tensors go through gloo on GPU machines too, so that small host facts (batch sizes, plans, digests) are
    exchanged without touching the device.

    Closing an nccl group is a collective: a rank that fails after it has used a GPU leaves its groups open, or it would
    wait for ranks that never come, and has to end without the interpreter's shutdown.
    """
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    backend = "cpu:gloo,cuda:nccl" if context.device.type == "cuda" else "gloo"
    with handled(signal.SIG_DFL):  # torch waits in here for a launcher that may be gone, and hears no Python handler
        dist.init_process_group(backend, timeout=timedelta(seconds=settings.timeout_s))
    try:
        yield
    except BaseException:
        used_gpu = context.device.type == "cuda" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's
        if not used_gpu:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def exit_now(code: int) -> NoReturn:
    """End this process without the interpreter's shutdown, in which gloo's threads abort and nccl waits for its peers.

    What was logged and printed is written out.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def set_threads(settings: Launch) -> None:
    """Computing threads of this process; to tokenise it has those of the other ranks here, which wait meanwhile."""
    threads = decided(settings.threads)
    torch.set_num_threads(threads)
    ranks_here = settings.world_size or decided(settings.nproc)  # resolved, only virtual ranks have a world size
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads * ranks_here))  # of the library tokenizers


class StopFlag:
    """Remembers SIGTERM, SIGINT or SIGHUP until the step in progress is recorded.

    Outside the loop, and on the second signal, the process ends at once. A SIGHUP that is ignored, as under nohup,
    stays so.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.deferred = False
        handle(self._on_signal)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum is not None or not self.deferred:
            sys.exit(128 + signum)
        self.signum = signum

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Inside it a first signal only sets `signum`."""
        self.deferred = True
        try:
            yield
        finally:
            self.deferred = False


def die_with_parent(parent: int | None = None) -> None:
    """Ask Linux to send SIGTERM when the launcher dies, however it dies; elsewhere there is no such thing.

    Args:
        parent: the launcher's process id; when it is gone already, this process ends here.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def redirect_output(log: Path) -> None:
    """Send everything this process prints, in any language, to one file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def set_up_logging(context: RankContext, ranks: Ranks) -> None:
    """Rank 0 and the first that trains speak, the others only warn; every line says what the rank is."""
    level = logging.INFO if context.speaks(ranks) else logging.WARNING
    title = ranks.title(context.rank)
    logging.basicConfig(level=level, format=f"%(asctime)s {title} %(levelname)s %(name)s: %(message)s")
