"""`window` against a slow annealing search under the same constraints, and on real lengths."""

import math
import random
import time
from functools import partial

import numpy as np
import pytest
from plan_rules import plans_of, total_cost

from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem
from dynbench.schedule.traces import built_in_trace
from dynbench.schedule.window import plan_window, random_variance
from dynbench.schedule.window_sweep import SortedWindow

MOVES = 150_000
SST2 = [(2, 64, 8), (4, 32, 8), (8, 64, 4)]


class Judge:
    """Annealing over shares that are contiguous in sorted length: their steps and their counts, moved one by one.

    It knows no thresholds and no guesses, and may spread the steps' mean lengths as far as random batches do.

    Args:
        lengths: the window's samples, shape [W*B].
        steps: W.
        workers: G.
        seed: of the moves.
    """

    def __init__(self, lengths: np.ndarray, steps: int, workers: int, seed: int = 0) -> None:
        falling = np.sort(lengths)[::-1]
        self.lengths = falling.tolist()
        self.before = np.concatenate(([0], np.cumsum(falling))).tolist()
        self.steps, self.batch = steps, len(lengths) // steps
        self.allowed = random_variance(SortedWindow(falling, steps, workers, CostModel()))
        self.rng = random.Random(seed)
        turns = [list(range(steps))[:: 1 if turn % 2 else -1] for turn in range(workers)]
        self.order = [step for turn in turns for step in turn]
        extra = self.batch % workers
        self.counts = [self.batch // workers + (share // steps < extra) for share in range(len(self.order))]

    def price(self, order: list[int], counts: list[int]) -> tuple[float, bool]:
        """Sum of the steps' maxima, penalised where the means are spread too far, and whether they are not."""
        maxima, tokens, start = [0] * self.steps, [0] * self.steps, 0
        for step, count in zip(order, counts, strict=True):
            cost = count * self.lengths[start]
            if cost > maxima[step]:
                maxima[step] = cost
            tokens[step] += self.before[start + count] - self.before[start]
            start += count
        mean = self.before[-1] / self.steps
        variance = sum((total - mean) ** 2 for total in tokens) / self.steps / self.batch**2
        over = max(variance / self.allowed - 1, 0)
        return sum(maxima) * (1 + 0.5 * over), over <= 1e-9

    def move(self) -> tuple[list[int], list[int]] | None:
        """A neighbour: samples pass between two shares of a step, or two shares change places; None if it cannot be."""
        order, counts, size = self.order, self.counts.copy(), len(self.order)
        one = self.rng.randrange(size)
        if self.rng.random() < 0.5:
            other = self.rng.choice([share for share in range(size) if order[share] == order[one]])
            amount = self.rng.choice((1, 1, 1, 2, 4))
            counts[one] -= amount
            counts[other] += amount
            return (order, counts) if counts[one] >= 1 and one != other else None
        other = one + 1 if self.rng.random() < 0.5 else self.rng.randrange(size)
        if other >= size or order[one] == order[other]:
            return None
        order = order.copy()
        order[one], order[other] = order[other], order[one]
        counts[one], counts[other] = counts[other], counts[one]
        return order, counts

    def search(self, moves: int) -> float:
        """Least price met that keeps to the spread."""
        current, _ = self.price(self.order, self.counts)
        hot, best = 0.05 * self.before[-1] / len(self.order), math.inf
        for index in range(moves):
            trial = self.move()
            if trial is None:
                continue
            price, valid = self.price(*trial)
            heat = hot * 0.005 ** (index / moves)
            if price <= current or self.rng.random() < math.exp((current - price) / heat):
                self.order, self.counts = trial
                current = price
                if valid:
                    best = min(best, price)
        return best


def sst2_problem(workers: int, batch: int, window: int) -> Problem:
    return Problem(built_in_trace("sst2").lengths, workers, batch, window=window)


def window_cost(lengths: np.ndarray, shares) -> int:
    return sum(max(len(share) * int(lengths[share].max()) for share in step) for step in shares)


def test_the_judge_ends_where_it_should():
    """Two lengths, two ranks: four long ones cost what sixteen short ones do."""
    lengths = np.r_[np.full(8, 40), np.full(32, 10)]
    assert Judge(lengths, 2, 2).search(4000) == 2 * 160


def sst2_window(workers: int, batch: int, window: int) -> np.ndarray:
    """Lengths of the first window of an epoch."""
    problem = sst2_problem(workers, batch, window)
    return problem.lengths[problem.data_order().epoch_batches(0)[:window].ravel()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "batch", "window"),
    [pytest.param(*case, marks=() if case[0] == 4 else pytest.mark.matrix) for case in SST2],
)
def test_planning_is_within_three_percent_of_a_search_that_prices_fifty_times_as_many_plans(
    monkeypatch, workers, batch, window
):
    sweeps, sweep = [], SortedWindow.sweep
    monkeypatch.setattr(SortedWindow, "sweep", lambda *arguments: sweeps.append(1) or sweep(*arguments))
    lengths = sst2_window(workers, batch, window)
    planned = window_cost(lengths, plan_window(lengths, workers, window, CostModel(), seed=0))
    assert 0 < 50 * len(sweeps) <= MOVES
    judged = Judge(lengths, window, workers).search(MOVES)
    print(f"G={workers}, B={batch}, W={window}: planned {planned / judged - 1:+.1%} of the judge's cost")
    assert planned <= 1.03 * judged


@pytest.mark.clock
@pytest.mark.parametrize(("workers", "batch", "window"), SST2)
def test_planning_is_fifty_times_faster_than_that_search(workers, batch, window):
    lengths = sst2_window(workers, batch, window)
    seconds = []
    for work in (
        partial(plan_window, lengths, workers, window, CostModel(), seed=0),
        partial(Judge(lengths, window, workers).search, MOVES),
    ):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    plan, judge = seconds
    print(f"G={workers}, B={batch}, W={window}: {plan / window * 1e3:.2f} ms a step, {judge / plan:.0f} times faster")
    assert judge / plan > 50


@pytest.mark.parametrize(
    ("workers", "batch", "window", "ratio"), [(2, 64, 8, 2.57), (4, 32, 8, 2.79), (8, 64, 4, 3.01), (4, 32, 16, 2.81)]
)
def test_sst2_windows_reach_their_ratio_to_static_with_no_more_spread(workers, batch, window, ratio):
    problem = sst2_problem(workers, batch, window)
    static, planned = (plans_of(name, problem, 25 * window) for name in ("static", "window"))
    assert total_cost(static, problem) / total_cost(planned, problem) >= ratio
    spreads = [np.std([problem.lengths[plan.sample_ids()].mean() for plan in plans]) for plans in (static, planned)]
    assert spreads[1] <= spreads[0]
