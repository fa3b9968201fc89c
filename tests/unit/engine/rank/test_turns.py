"""Arms in turns: which steps, in which order, under whose clock, with whose random state."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import groupby, islice, pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hands import Hands
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.schema import Train
from dynbench.engine.rank import turns as module
from dynbench.engine.rank.memory import CudaMemory
from dynbench.engine.rank.rank_process import StopFlag
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.turns import Moment, Switch, garbage_between_turns, play
from dynbench.engine.turn_order import Turns, read_turns, williams_square
from dynbench.errors import RecordError

CPU = torch.device("cpu")
NAMES = "abcdefghi"
Events = list[tuple[str, str, int]]


class Arm:
    """A loop that keeps what happens to it; a rank that plays it may be told to stop in one of its steps."""

    def __init__(self, name: str, events: Events, every: int = 0, last: int = -1) -> None:
        self.name, self.events, self.every, self.last = name, events, every, last
        self.moments: list[Moment] = []
        self.drawn: list[tuple[float, float, float]] = []

    def restart(self) -> None:
        pass

    enter = leave = restart

    def step(self, moment: Moment) -> None:
        self.events.append((self.name, "step", moment.step))
        self.moments.append(moment)
        self.drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))

    def due(self, step: int) -> bool:
        return step == self.last or (self.every > 0 and (step + 1) % self.every == 0)

    def evaluate(self, step: int) -> None:
        self.events.append((self.name, "evaluate", step))

    def is_between_steps(self) -> bool:
        return True

    def interrupted(self, step: int) -> None:
        self.events.append((self.name, "interrupted", step))


def unset() -> StopFlag:
    """A flag that hears no signal."""
    stop = StopFlag.__new__(StopFlag)
    stop.signum, stop.deferred = None, False
    return stop


def play_all(
    players: Sequence[Arm],
    train: Train,
    block: int = 1,
    stop: StopFlag | None = None,
    meet: Callable[[], None] = lambda: None,
) -> None:
    turns, switch = None, None
    if len(players) > 1:
        turns = Turns(tuple(player.name for player in players), block, seed=1)
        switch = Switch(players, CPU, lambda arm: None, meet)
    with patch.object(gc, "collect"):  # of a whole test session
        play(train, players, turns, stop or unset(), switch)


def run(arms: int, train: Train, block: int = 1, every: int = 0, last: int = -1) -> tuple[list[Arm], Events]:
    events: Events = []
    players = [Arm(name, events, every, last) for name in NAMES[:arms]]
    play_all(players, train, block)
    return players, events


@pytest.mark.slow
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 20), st.integers(1, 9), st.integers(0, 7))
def test_every_arm_runs_every_step_once_in_order(arms, warmup, steps, block, every):
    """In turns of a block at most, numbered over all arms; all arms evaluate at one point, and leave before it."""
    train = Train(steps=steps, warmup_steps=warmup)
    players, events = run(arms, train, block, every, last=warmup + steps - 1)
    evaluated = [step for step in range(warmup + steps) if players[0].due(step)]
    ends, settling = {*evaluated, warmup - 1}, {step + 1 for step in evaluated if arms > 1}
    for player in players:
        assert [moment.step for moment in player.moments] == list(range(warmup + steps))
        for _, moments in groupby(player.moments, key=lambda moment: moment.turn):
            turn = list(moments)
            first, last = turn[0].step, turn[-1].step
            most = warmup + steps if arms == 1 else 1 if first in settling else block
            assert len(turn) == most or (len(turn) < most and last in ends)
            assert ends.isdisjoint(range(first, last))
            assert [moment.leaving for moment in turn] == [False] * (len(turn) - 1) + [True]
            assert {moment.measured for moment in turn} == {first >= warmup and first not in settling}
    turns = {(moment.turn, player.name) for player in players for moment in player.moments}
    assert sorted(number for number, _ in turns) == list(range(len(turns)))
    stages = [(what, step) for _, what, step in events if step in evaluated]
    assert stages == [(what, step) for step in evaluated for what in ("step", "evaluate") for _ in players]


def told(stop: StopFlag, signum: int | None, events: Events, *, fails: bool, between: bool = True) -> Arm:
    """Whose fourth step hears a signal; it may fail, as one that others have left, before its optimizer or in it."""
    arm = Arm("a", events)
    step = arm.step

    def hears(moment: Moment) -> None:
        if moment.step == 3:
            stop.signum = signum
            if fails:
                raise RuntimeError("Connection closed by peer")
        step(moment)

    arm.step, arm.is_between_steps = hears, lambda: between  # type: ignore[method-assign]
    return arm


def test_a_signal_ends_it_after_the_step_in_progress():
    stop, events = unset(), []
    players = [told(stop, 15, events, fails=False), Arm("b", events)]
    play_all(players, Train(steps=9, warmup_steps=0), stop=stop)
    *_, end, first, second = events
    assert end == ("a", "step", 3)
    assert {first, second} == {(player.name, "interrupted", player.moments[-1].step) for player in players}


@pytest.mark.parametrize(("signum", "between", "kept"), [(15, True, True), (15, False, False), (None, True, False)])
def test_a_rank_that_the_others_left_at_a_signal_keeps_its_last_whole_step(signum, between, kept):
    stop, events = unset(), []
    with nullcontext() if kept else pytest.raises(RuntimeError, match="Connection closed"):
        play_all([told(stop, signum, events, fails=True, between=between)], Train(steps=9, warmup_steps=0), stop=stop)
    assert [event for event in events if event[1] == "interrupted"] == ([("a", "interrupted", 2)] if kept else [])


def test_random_states_are_the_arms_own():
    drawn = []
    for arms in (1, 3):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        players, _ = run(arms, Train(steps=5, warmup_steps=0))
        drawn += [player.drawn for player in players]
    assert drawn == drawn[:1] * 4


class Timed(Arm):
    """An arm that is timed as the real ones are, and whose steps start work that goes on.

    Whoever steps next waits for that work, as for the cores; a last step before another arm does itself.
    """

    def __init__(self, name: str, hands: Hands, starts_ms: float, behind_ms: list[float]) -> None:
        super().__init__(name, [])
        self.timer, self.times_ms = StepTimer(CPU), []
        self._hands, self._starts_ms, self._behind_ms = hands, starts_ms, behind_ms

    def restart(self) -> None:
        self.timer.restart()

    def step(self, moment: Moment) -> None:
        self._wait()
        self._behind_ms.append(self._starts_ms)
        if moment.leaving:
            self._wait()
        self.times_ms.append(self.timer.end_step()[1])

    def _wait(self) -> None:
        while self._behind_ms:
            self._hands.pass_ms(self._behind_ms.pop())


@pytest.mark.parametrize(("block", "times_ms"), [(1, [200, 200, 200, 200]), (2, [0, 400, 0, 400])])
def test_a_turns_time_holds_what_the_arm_started_and_no_meeting_of_ranks(hands, block, times_ms):
    behind_ms: list[float] = []
    arms = [Timed("a", hands, 200, behind_ms), Timed("b", hands, 0, behind_ms)]
    play_all(arms, Train(steps=4, warmup_steps=0), block, meet=lambda: hands.pass_ms(1000))
    assert [arm.times_ms for arm in arms] == [times_ms, [0] * 4]


@pytest.mark.slow
def test_garbage_is_collected_between_turns_only():
    with garbage_between_turns():
        assert not gc.isenabled() and gc.get_freeze_count() > 0
        run(2, Train(steps=2, warmup_steps=0))
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == 0


@pytest.mark.parametrize("when", [0, 3])
def test_graphs_compiled_while_steps_are_measured_are_told(monkeypatch, caplog, when):
    """Not those of the warm-up of two steps."""
    made = []
    monkeypatch.setattr(module, "graphs_compiled", lambda: len(made))
    monkeypatch.setattr(Arm, "step", lambda self, moment: made.extend([self] * (moment.step == when)))
    run(2, Train(steps=4, warmup_steps=2))
    assert ("2 graphs" in caplog.text) == (when == 3)


def test_memory_that_only_cycles_hold_is_the_arms_that_left_it(monkeypatch):
    """Planted: an arm leaves 100 MB in a cycle, and the next one allocates 10."""
    mb, held = 1_000_000, [0]
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[0])
    arms = [CudaMemory(CPU, shared=True) for _ in range(2)]
    switch = Switch(arms, CPU, lambda arm: None, lambda: None)  # type: ignore[arg-type]  # it enters and leaves them

    def collect() -> None:
        held[0] = 0

    with patch.object(gc, "collect", collect):
        switch(0)
        held[0] += 100 * mb
        switch(1)
        held[0] += 10 * mb
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: held[0])
        assert arms[1].now().peak_mb == 10


ARMS = st.integers(2, 9)


def rounds(arms: int, number: int, **drawn: int) -> list[list[int]]:
    return list(islice(Turns(tuple(NAMES[:arms]), **drawn).rounds(), number))


def is_balanced(rows: list[list[int]]) -> bool:
    """Every arm follows every other equally often, and stands at each place equally often."""
    n = len(rows[0])
    follows = Counter(pair for row in rows for pair in pairwise(row))
    places = Counter((place, arm) for row in rows for place, arm in enumerate(row))
    return (len(follows), len(places)) == (n * (n - 1), n * n) and all(
        len(set(counts.values())) == 1 for counts in (follows, places)
    )


@given(ARMS, st.integers(0, 99), st.integers(0, 9))
def test_every_round_has_every_arm_and_a_drift_meets_all_alike(n, seed, launch):
    """In the least number of rounds in which every arm can follow every other equally often and stand everywhere."""
    whole = n if n % 2 == 0 else 2 * n
    assert len(williams_square(n)) == whole
    found = rounds(n, 3 * whole, seed=seed, launch=launch)
    assert all(sorted(order) == list(range(n)) for order in found)
    for cycle in (found[:whole], found[whole : 2 * whole]):
        at = [sum(order.index(arm) for order in cycle) for arm in range(n)]
        assert len(set(at)) == 1
        assert is_balanced(cycle)


@given(ARMS, st.integers(0, 99), st.integers(0, 4))
def test_what_is_built_first_in_one_launch_is_built_last_in_the_next(n, seed, pair):
    names = tuple(NAMES[:n])
    one, next_one = (Turns(names, seed=seed, launch=2 * pair + odd).building() for odd in (0, 1))
    assert sorted(one) == list(range(n)) and next_one == one[::-1]


def test_orders_are_drawn_anew_and_equal_for_equal_seeds():
    drawn = {tuple(map(tuple, rounds(4, 8, seed=seed, launch=launch))) for seed in range(6) for launch in range(6)}
    assert len(drawn) > 20
    assert rounds(5, 20, seed=3, launch=2) == rounds(5, 20, seed=3, launch=2)


def test_it_is_kept_for_the_ranks(tmp_path):
    assert read_turns(tmp_path) is None
    turns = Turns(("a", "b"), 8, 5, 3)
    turns.write(tmp_path)
    assert read_turns(tmp_path) == turns
    (tmp_path / "turns.json").write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"turns\.json"):
        read_turns(tmp_path)
