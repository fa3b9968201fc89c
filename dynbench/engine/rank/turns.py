"""The steps of a launch: of one arm one after the other, of several in turns, each under a clock of its own."""

from __future__ import annotations

import gc
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynbench.config.schema import Train
from dynbench.engine.failure import EVALUATING, PositionFile
from dynbench.engine.rank.rank_process import StopFlag
from dynbench.engine.turn_order import Turns, plan_rounds

if TYPE_CHECKING:
    from dynbench.engine.rank.loop import ArmLoop

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of an arm in its launch.

    Attributes:
        step: number of the arm's step, from 0.
        measured: neither in the warm-up, nor in the round after an evaluation of arms that take turns.
        turn: number of the turn in the launch, from 0.
        leaving: the last step before another arm, an evaluation, the end of the warm-up or of the run: what still
            runs in the background ends within it, so that measured steps have what they started, time and bytes.
    """

    step: int
    measured: bool
    turn: int = 0
    leaving: bool = False


@dataclass(eq=False)
class Switch:
    """What happens between two turns, out of all clocks.

    Random states of Python, numpy and torch belong to the arm. Python's garbage is collected here, within
    `garbage_between_turns`: a collection in the middle of a step would be charged to the arm that happens to be on.

    Args:
        players: the arms.
        device: of this rank.
        on_turn: called with the arm that comes.
        meet: returns when every rank has called it.
    """

    players: Sequence[ArmLoop]
    device: torch.device
    on_turn: Callable[[int], None]
    meet: Callable[[], None]

    def __post_init__(self) -> None:
        self._states = [_random_state(self.device)] * len(self.players)
        self._on: int | None = None

    def __call__(self, arm: int) -> None:
        """Hand over to an arm, which may be the one that had the last turn; ranks leave this at one time."""
        gc.collect()  # before an arm leaves: memory that only cycles hold would be left with the next one
        if self._on is not None:
            self.players[self._on].leave()
            self._states[self._on] = _random_state(self.device)
        self._on = arm
        self.on_turn(arm)
        _restore_random(self._states[arm], self.device)
        self.players[arm].enter()
        self.meet()


@contextmanager
def garbage_between_turns() -> Iterator[None]:
    """Inside it Python collects garbage only on `gc.collect()`, and looks only at what was made inside."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def play(
    train: Train,
    players: Sequence[ArmLoop],
    turns: Turns | None,
    stop: StopFlag,
    switch: Switch | None,
    position: PositionFile | None = None,
) -> None:
    """All steps of all arms, or as many as are done when a signal asks to stop.

    Args:
        train: how many steps; the same for all arms.
        players: their loops, in the order of `turns.arms`.
        turns: how they take turns; None for one arm.
        stop: tells of the signal.
        switch: hands over from arm to arm; None for one arm.
        position: notes steps and evaluations that begin.
    """
    position = position or PositionFile()
    hand_over: Callable[[int], None] = switch or (lambda arm: None)

    def due(step: int) -> bool:
        return any(player.due(step) for player in players)

    orders: Iterator[Sequence[int]] = repeat((0,)) if turns is None else turns.rounds()
    block, turn = turns.block if turns is not None else 1, count()
    compiled: int | None = None
    done: dict[int, int] = {}
    with stop.defer():
        for round_ in plan_rounds(train, due, block, alone=switch is None):
            order = next(orders)
            if round_.measured and compiled is None:
                compiled = graphs_compiled()
            for arm in order:
                hand_over(arm)
                players[arm].restart()
                number = next(turn)
                for step in round_.steps:
                    leaving = step == round_.steps[-1]
                    position.at_step(step)
                    try:
                        players[arm].step(Moment(step, round_.measured, number, leaving))
                        done[arm] = step
                    except Exception as error:
                        if stop.signum is None or not players[arm].is_between_steps():
                            raise
                        # Another rank was stopped a step earlier, and is gone.
                        _log.warning("step %d: left unfinished, as the run is to stop (%s)", step, error)
                    if stop.signum is not None:
                        for each, last in done.items():
                            players[each].interrupted(last)
                        return
            if round_.evaluated:
                position.at(EVALUATING)
                step = round_.steps[-1]
                for arm in filter(lambda arm: players[arm].due(step), order):
                    hand_over(arm)
                    players[arm].evaluate(step)
    if compiled is not None and (more := graphs_compiled() - compiled):
        _log.warning(
            "torch.compile made %d graphs while steps were measured, 0 is the limit: their time is in these steps; "
            "raise train.warmup_steps, or compile with dynamic=True",
            more,
        )


def graphs_compiled() -> int:
    """Graphs that torch.compile has made in this process; nothing is imported to ask."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _random_state(device: torch.device) -> tuple[Any, ...]:
    """What the generators of this process would draw next; code of the user's own may use any of them."""
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), on_device


def _restore_random(state: tuple[Any, ...], device: torch.device) -> None:
    of_python, of_numpy, of_cpu, on_device = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_cpu)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)
