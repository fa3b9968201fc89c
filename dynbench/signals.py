"""Signals that ask a process to stop, handled for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from dynbench.errors import Terminated

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)


def outlives_terminal() -> bool:
    """Whether SIGHUP is ignored, as nohup leaves it; then it stays so."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def handle(handler: Handler, signals: tuple[signal.Signals, ...] = STOPPING) -> None:
    """Set a handler for good; a SIGHUP that is ignored stays so."""
    for signum in signals:
        if signum is not signal.SIGHUP or not outlives_terminal():
            signal.signal(signum, handler)


@contextmanager
def handled(handler: Handler, *, where_unhandled: bool = False) -> Iterator[None]:
    """Set a handler; the old ones come back. Only the main thread can: in another one, nothing changes.

    Args:
        handler: of what asks to stop; a SIGHUP that is ignored stays so.
        where_unhandled: leave the signals alone that have a handler of somebody's, or are ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in STOPPING}
    handle(handler, tuple(signum for signum in STOPPING if not where_unhandled or before[signum] in _UNHANDLED))
    try:
        yield
    finally:
        for signum, old in before.items():
            if old is not None:  # as one is that was set outside of Python
                signal.signal(signum, old)


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that asks to stop is heard when this is left, so that nothing inside is torn apart."""
    came: list[int] = []
    with handled(lambda signum, _frame: came.append(signum)):
        yield
    for signum in came[:1]:
        signal.raise_signal(signum)


def terminate(signum: int, _frame: FrameType | None) -> NoReturn:
    """The handler that makes a signal an exception, which everything on the way sees.

    Raises:
        Terminated: always.
    """
    raise Terminated(signum)
