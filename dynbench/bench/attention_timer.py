"""The times of a pass of attention, by our clock or by Triton's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynbench.clock import clock_for
from dynbench.plugins.benchmarks import TimedOptions

Times = NDArray[np.float64]
Timer = Callable[..., Any]


class Backward(Protocol):
    """The backward pass from a result."""

    def __call__(self, result: Tensor, *, again: bool = False) -> object:
        """Gradients; with `again`, what the pass needs is kept for another."""


def pass_times(
    each: str,
    forward: Callable[[], Tensor],
    backward: Backward,
    options: TimedOptions,
    device: torch.device,
    timer: str,
    *,
    keeps_graph: bool,
) -> tuple[Times, str]:
    """Milliseconds of every iteration, shape [n], and whose timer measured them, `own` or `triton`.

    Args:
        each: `forward`, `backward` or `both`.
        forward: the pass; its result has what `backward` needs.
        backward: from that result.
        options: iterations, and those before them that do not count; of Triton's timer at least as many.
        device: where they run.
        timer: which is wanted.
        keeps_graph: whether the backward pass of a result can be run more than once, as Triton's timer does.
    """
    measure = triton_timer(device) if timer == "triton" and (keeps_graph or each != "backward") else None
    if measure is None:
        return _own_times(each, forward, backward, options, device), "own"
    run: Callable[[], object] = forward if each == "forward" else lambda: backward(forward())
    if each == "backward":
        result = forward()
        run = partial(backward, result, again=True)
    ms = float(_timed(run, 2, device)[-1])
    rep = options.iterations * ms
    times = list(measure(run, warmup=options.warmup * ms, rep=rep, return_mode="all"))
    each_ms = rep / len(times)  # as it reckons, with what emptying the cache takes
    while (missing := options.iterations - len(times)) > 0:
        times += measure(run, warmup=0, rep=missing * each_ms, return_mode="all")
    return np.array(times), "triton"


def triton_timer(device: torch.device) -> Timer | None:
    """Triton's `do_bench`, which empties the L2 cache before each iteration and waits for none; None without either.

    It takes how long to run in ms, and makes at least one iteration.
    """
    if device.type != "cuda":
        return None
    try:
        from triton.testing import do_bench
    except ImportError:
        return None
    found: Timer = do_bench
    return found


def _own_times(
    each: str, forward: Callable[[], Tensor], backward: Backward, options: TimedOptions, device: torch.device
) -> Times:
    """Each iteration from an idle device on; a backward pass has a forward pass of its own, which is not timed."""
    count = options.warmup + options.iterations
    if each == "backward":
        ready: list[Tensor] = []
        times = _timed(lambda: backward(ready.pop()), count, device, lambda: ready.append(forward()))
    else:
        times = _timed(forward if each == "forward" else lambda: backward(forward()), count, device)
    return times[options.warmup :]


def _timed(
    run: Callable[[], object], count: int, device: torch.device, prepare: Callable[[], object] = lambda: None
) -> Times:
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
