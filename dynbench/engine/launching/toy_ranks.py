"""Strategies checked on ranks of their own, processes of this machine that end with the check."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path

from dynbench.engine.rank.rank_process import die_with_parent
from dynbench.engine.rank.toy_check import Case, Difference, OptimizerName, check_strategy, config_of
from dynbench.errors import WorkerFailed
from dynbench.plugins import STRATEGIES

OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adamw")
PATIENCE = timedelta(seconds=60)
POLL_S = 0.2


@dataclass(frozen=True)
class Checked:
    """One strategy after the steps of one optimizer, as `sync check --json` lists it."""

    strategy: str
    """Its name."""
    optimizer: str
    """sgd or adamw."""
    ranks: int
    """Of the group, those that serve among them."""
    difference: float
    """Largest absolute difference of a weight."""
    tensor: str
    """Where that is."""
    exact: bool
    """Whether the strategy promises none beyond rounding."""
    passed: bool
    """Whether it keeps that promise; one that does not promise it passes."""


def check_strategies(names: Sequence[str], ranks: int) -> Generator[Checked, None, None]:
    """Train the toy with each strategy on so many ranks that train, and one process beside them.

    Args:
        names: of the registry.
        ranks: that train; those that serve come on top.

    Raises:
        UsageError: a name that is not registered.
        WorkerFailed: a rank ended with an error.
    """
    entries = [STRATEGIES.find(name) for name in names]
    for servers in sorted({entry.servers for entry in entries}):
        group = [entry.name for entry in entries if entry.servers == servers]
        for name, optimizer, found in _on_processes(group, ranks + servers):
            exact = STRATEGIES[name].exact
            passed = not exact or found.of_rounding <= 1
            yield Checked(name, optimizer, ranks + servers, found.largest, found.name, exact, passed)


def _on_processes(names: Sequence[str], world_size: int) -> Iterator[tuple[str, str, Difference]]:
    """What the ranks find, as they find it; none of them is left, whatever ends this."""
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

    with tempfile.TemporaryDirectory(prefix="dynbench-check-") as folder:
        found, told = Path(folder) / "found.jsonl", 0
        found.touch()
        with _deaf_to_ctrl_c():
            context = start_processes(  # type: ignore[no-untyped-call]  # torch's is untyped
                _rank, (list(names), world_size, folder), world_size, join=False, start_method="spawn"
            )
        try:
            ended = False
            while not ended:
                ended = context.join(timeout=POLL_S)
                lines = found.read_text(encoding="utf-8").splitlines(keepends=True)
                complete = [line for line in lines if line.endswith("\n")]
                for line in complete[told:]:
                    name, optimizer, difference = json.loads(line)
                    yield name, optimizer, Difference(**difference)
                told = len(complete)
        except (ProcessRaisedException, ProcessExitedException) as error:
            raise WorkerFailed(
                f"sync check: rank {error.error_index} of {world_size}: {str(error).strip().splitlines()[-1]}",
                f"Check one strategy at a time: dynbench sync check {names[0]}.",
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


def _rank(rank: int, names: Sequence[str], world_size: int, folder: str) -> None:
    """One of the processes; the one that has the states writes how far they are apart."""
    import torch
    import torch.distributed as dist

    die_with_parent()
    torch.set_num_threads(1)
    meet = (Path(folder) / "meet").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world_size, timeout=PATIENCE)
    for name in names:
        for optimizer in OPTIMIZERS:
            found = check_strategy(config_of(name), Case(optimizer))
            if found is not None:
                with (Path(folder) / "found.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, optimizer, asdict(found)]) + "\n")
    dist.barrier()
    dist.destroy_process_group()
