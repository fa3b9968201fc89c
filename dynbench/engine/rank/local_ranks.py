"""A few ranks on this machine's CPU that answer questions and end with them."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from dynbench.engine.rank.rank_process import die_with_parent
from dynbench.errors import WorkerFailed

PATIENCE = timedelta(seconds=60)
POLL_S = 0.2


def answers_of_ranks(
    job: Callable[..., Iterable[object]], arguments: tuple[object, ...], world_size: int, command: str, hint: str
) -> Iterator[Any]:
    """What a job yields on any of the ranks, as it comes; none of them is left, whatever ends this.

    Args:
        job: a function of a module, called on every rank of a gloo group; it yields what JSON can hold.
        arguments: of the job.
        world_size: ranks.
        command: for messages.
        hint: what to do where a rank fails.

    Raises:
        WorkerFailed: a rank ended with an error.
    """
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

    with tempfile.TemporaryDirectory(prefix="dynbench-ranks-") as folder:
        files, told = [Path(folder) / f"{rank}.jsonl" for rank in range(world_size)], [0] * world_size
        for file in files:
            file.touch()
        with _deaf_to_ctrl_c():
            context = start_processes(  # type: ignore[no-untyped-call]  # torch's is untyped
                _rank, (job, arguments, world_size, folder), world_size, join=False, start_method="spawn"
            )
        try:
            ended = False
            while not ended:
                ended = context.join(timeout=POLL_S)
                for rank, file in enumerate(files):
                    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                    complete = [line for line in lines if line.endswith("\n")]
                    yield from map(json.loads, complete[told[rank] :])
                    told[rank] = len(complete)
        except (ProcessRaisedException, ProcessExitedException) as error:
            raise WorkerFailed(
                f"{command}: rank {error.error_index} of {world_size}: {str(error).strip().splitlines()[-1]}",
                hint,
                rank=error.error_index,
            ) from error
        finally:
            for process in context.processes:
                process.kill()
                process.join()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in it never hear SIGINT: it is meant for this one, which hears it afterwards."""
    resource_tracker.ensure_running()  # which unblocks it when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank(
    rank: int, job: Callable[..., Iterable[object]], arguments: tuple[object, ...], world_size: int, folder: str
) -> None:
    """One of the processes, which writes what the job yields on it."""
    import torch
    import torch.distributed as dist

    die_with_parent()
    torch.set_num_threads(1)
    meet = (Path(folder) / "meet").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world_size, timeout=PATIENCE)
    with (Path(folder) / f"{rank}.jsonl").open("a", encoding="utf-8") as file:
        for answer in job(*arguments):
            file.write(json.dumps(answer) + "\n")
            file.flush()
    dist.barrier()
    dist.destroy_process_group()
