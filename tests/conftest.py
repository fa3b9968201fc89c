"""Fixtures of all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pixel
import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings
from said import cli as cli
from warm import gloo_ranks

from dynbench.runs.store import RunStore
from dynbench.signals import STOPPING

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported, by whatever imports it
os.environ.setdefault("POLARS_MAX_THREADS", "1")  # of a pool that spins while it has nothing to do
# nohup ignores the one, a script that starts tests in the background the other; what tests start would pass that on.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
"""`make test` draws the same examples every time; HYPOTHESIS_PROFILE=search draws new ones."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` gathers from its two parts what was skipped."""
    parser.addoption("--skipped-to", type=Path, help="Append how many tests were skipped, and why, to this file.")


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: they are left out of what the garbage collector looks through in each test."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """What was skipped, and why, a line for each reason."""
    file = None if hasattr(config, "workerinput") else config.getoption("--skipped-to")  # pytest-xdist: once for all
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items() if file else ():
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{count} tests were skipped: {reason.removeprefix('Skipped: ')}\n")


@pytest.fixture(autouse=True)
def untouched_logging_and_signals() -> Iterator[None]:
    """Logging and signal handlers are after a test what they were: commands set them, with -q or for virtual ranks.

    Logging that a fixture set is put back before the test. With coverage, a forked process whose handler raises can
    escape its own exit and go on with the tests.
    """
    heard = {signum: signal.getsignal(signum) for signum in STOPPING}
    root = logging.getLogger()
    handlers = [each for each in root.handlers if type(each).__module__ != "dynbench.cli.common"]
    for logger, level in ((root, logging.WARNING), (logging.getLogger("dynbench"), logging.NOTSET)):
        logger.setLevel(level)
    root.handlers[:] = handlers
    yield
    root.handlers[:] = handlers
    root.setLevel(logging.WARNING)
    for signum, handler in heard.items():
        signal.signal(signum, handler)


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """No test is about a loss of power: files need not be on the disk once they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


ranks = gloo_ranks(2)
"""They stay for the whole session, and start when first asked something."""


@pytest.fixture
def alone() -> Iterator[None]:
    """A gloo process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty registry."""
    return RunStore(tmp_path / "results")


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is made into pixels."""
    pixel.unrendered(monkeypatch)
