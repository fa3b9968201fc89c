"""A few ranks on this machine's CPU that answer questions and end with them."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context, resource_tracker
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TypeVar

from dynbench.engine.rank.rank_process import die_with_parent
from dynbench.errors import WorkerFailed

Answer = TypeVar("Answer")
PATIENCE = timedelta(seconds=60)
POLL_S = 0.2


def answers_of_ranks(
    job: Callable[..., Iterable[Answer]], arguments: tuple[object, ...], world_size: int, command: str, hint: str
) -> Iterator[Answer]:
    """What a job yields on any of the ranks, as it comes; none of them is left, whatever ends this.

    Args:
        job: a function of a module, called on every rank of a gloo group; what it yields is pickled.
        arguments: of the job.
        world_size: ranks.
        command: for messages.
        hint: what to do where a rank fails.

    Raises:
        WorkerFailed: a rank ended with an error.
    """
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

    answers: SimpleQueue[Answer] = get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="dynbench-ranks-") as folder:
        with _deaf_to_ctrl_c():
            context = start_processes(  # type: ignore[no-untyped-call]  # torch's is untyped
                _rank, (job, arguments, world_size, folder, answers), world_size, join=False, start_method="spawn"
            )
        try:
            ended = False
            while not ended:
                ended = context.join(timeout=POLL_S)
                while not answers.empty():
                    yield answers.get()
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
    rank: int,
    job: Callable[..., Iterable[Answer]],
    arguments: tuple[object, ...],
    world_size: int,
    folder: str,
    answers: SimpleQueue[Answer],
) -> None:
    """One of the processes."""
    import torch
    import torch.distributed as dist

    die_with_parent()
    torch.set_num_threads(1)
    meet = (Path(folder) / "meet").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world_size, timeout=PATIENCE)
    for answer in job(*arguments):
        answers.put(answer)
    dist.barrier()
    dist.destroy_process_group()
