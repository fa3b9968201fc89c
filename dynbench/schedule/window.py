"""Several global batches dealt together, so that few steps are dear and the ranks of each step finish together.

First plans, the better of which is improved by annealing, then polished. A point of the search is what
`SortedWindow.sweep` turns into a plan: the order in which the steps take their shares, and a threshold per step. The
counts follow from them, slack is filled by the sweep, and the plan always has B samples in every step. A few hundred
sweeps of simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) are then enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynbench.errors import NothingFits
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.partition import Partition
from dynbench.schedule.partition_search import sort_longest_first
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan, cut, single
from dynbench.schedule.policy import BatchPolicy, Problem
from dynbench.schedule.window_sweep import Deal, SortedWindow, guesses, polished

SPREADS = (0.97, 1.0)
"""Allowed standard deviations of the steps' mean lengths, relative to random batches.

The second is used where the first cannot be kept: a single very long sample alone can spread the means that much.
"""
SWEPT_SHARES = 3000
"""Shares swept per step that is planned: what the search costs, at about 0.2 microseconds each."""
SWEEP_OVERHEAD = 15
"""What one sweep costs besides its shares, in shares."""
MIN_SWEEPS = 24

_TEMPERATURE = 0.01
"""Of the annealing's start, relative to a step's mean price."""
_PENALTY = 0.5
"""Price of exceeding the allowed variance by once itself, relative to the whole price."""
_ROUNDING = 1e-9
_REPAIRS = 10


@dataclass(frozen=True, slots=True)
class _Judge:
    """Prices deals, valid or not.

    Args:
        window: the samples.
        allowed_variance: of the steps' mean lengths, tokens².
        scale: a typical price, the unit of the penalties.
    """

    window: SortedWindow
    allowed_variance: float
    scale: float

    def penalised(self, deal: Deal, limit: float = math.inf) -> tuple[float, bool]:
        """Price plus penalties, and whether the deal is valid; above `limit` the spread may be left out."""
        price = float(self.window.price(deal)) + self.scale * deal.excess
        if price > limit:
            return price, False
        over = self.variance(self.window.step_tokens(deal)) / max(self.allowed_variance, _ROUNDING) - 1
        if over <= _ROUNDING:
            return price, deal.excess == 0
        return price + _PENALTY * self.scale * over, False

    def is_spread(self, tokens: IntArray) -> bool:
        """Whether the steps' mean lengths are spread further than allowed, by their tokens, shape [W]."""
        over = self.variance(tokens.tolist()) / max(self.allowed_variance, _ROUNDING) - 1
        return over > _ROUNDING

    def variance(self, tokens: list[int]) -> float:
        """Variance of the steps' mean lengths, tokens²."""
        mean = sum(tokens) / len(tokens)
        return sum((total - mean) ** 2 for total in tokens) / len(tokens) / self.window.global_batch**2


def search(window: SortedWindow, rng: np.random.Generator) -> tuple[list[int], list[int]] | None:
    """Step and samples of each share of the best plan found, longest samples first, shape [W*G].

    It keeps to the capacities and to an allowed spread; None when none was found.

    Args:
        window: the samples of at least two steps.
        rng: makes the annealing's choices; from the same state comes the same plan.
    """
    scale = window.steps * (sum(window.work) / window.steps / window.workers) ** window.power
    shares = window.steps * window.workers
    sweeps = max(window.steps * SWEPT_SHARES // (shares + SWEEP_OVERHEAD), MIN_SWEEPS)
    for spread in SPREADS:
        judge = _Judge(window, spread**2 * random_variance(window), scale)
        slack_tokens = 0.5 * math.sqrt(judge.allowed_variance) * window.global_batch
        starts = [_draw_together(judge, guess) for guess in guesses(window, slack_tokens)]
        start = min(starts, key=lambda deal: judge.penalised(deal)[0])
        best = _anneal(judge, start, sweeps, rng)
        if best is not None:
            return polished(window, best.order, best.counts, judge.is_spread, rng)
    return None


def random_variance(window: SortedWindow) -> float:
    """Expected variance of the steps' mean lengths about the window's mean if its samples are dealt at random, tokens².

    B of W*B samples drawn without replacement have a mean of variance s²/B * (1 - 1/W), s² being the window's sample
    variance (Cochran, Sampling Techniques, theorem 2.2).
    """
    return float(window.lengths.var(ddof=1)) / window.global_batch * (1 - 1 / window.steps)


def _draw_together(judge: _Judge, deal: Deal) -> Deal:
    """Move the steps' mean lengths to the allowed spread: a higher threshold brings more long samples, fewer short."""
    for _ in range(_REPAIRS):
        tokens = judge.window.step_tokens(deal)
        variance = judge.variance(tokens)
        if variance <= judge.allowed_variance:
            break
        mean = sum(tokens) / len(tokens)
        surplus = 1 - 0.9 * math.sqrt(judge.allowed_variance / variance)
        thresholds = [
            max(int(threshold * (1 + surplus * (mean - tokens[step]) / tokens[step])), 1)
            for step, threshold in enumerate(deal.thresholds)
        ]
        deal = judge.window.sweep(deal.order, thresholds)
    return deal


def _anneal(judge: _Judge, deal: Deal, sweeps: int, rng: np.random.Generator) -> Deal | None:
    """The cheapest valid deal on the way."""
    window = judge.window
    current, valid = judge.penalised(deal)
    best, least = (deal, current) if valid else (None, math.inf)
    cooling = _TEMPERATURE * judge.scale / window.steps * (1 - np.arange(sweeps) / sweeps)
    slacks = rng.exponential(size=sweeps) * cooling
    draws: list[list[float]] = np.column_stack((slacks, rng.random((sweeps, 5)))).tolist()
    for slack, *draw in draws:
        trial = window.sweep(*_neighbour(window, deal, draw))
        price, valid = judge.penalised(trial, limit=current + slack)
        if price <= current + slack:
            deal, current = trial, price
            if valid and price < least:
                best, least = trial, price
    return best


def _neighbour(window: SortedWindow, deal: Deal, draw: list[float]) -> tuple[list[int], list[int]]:
    """Order and thresholds next to those of `deal`: two shares swap steps, or a step's threshold moves, or both.

    Args:
        window: the samples.
        deal: where the search is.
        draw: five numbers in [0, 1).
    """
    kind, where, whither, which, how = draw
    order, thresholds = deal.order, deal.thresholds
    if kind < 0.55:
        # The last fifth of the shares, short and flexible, is worth few swaps.
        first = int(where * 0.8 * len(order))
        second = min(first + 1 + int(whither * window.steps), len(order) - 1)
        order = order.copy()
        order[first], order[second] = order[second], order[first]
    if kind > 0.45:
        step = int(which * window.steps)
        thresholds = thresholds.copy()
        thresholds[step] = _moved_threshold(window, deal.heads[step], deal.lasts[step], how)
    return order, thresholds


def _moved_threshold(window: SortedWindow, head: int, last: int, how: float) -> int:
    """Towards where the last share costs as much as the others; or a little up or down; or far, to other counts."""
    if how < 0.25:
        return int(head + 8 * how * (last - head) / window.workers)
    if how < 0.9:
        return int(head * (0.9 + 0.26 * (how - 0.25)))
    return int(head * 9 ** (10 * (how - 0.9)) / 3)


class Window(BatchPolicy):
    """Least sum over a window's steps of the slowest rank's cost; a heuristic.

    Every step gets exactly B of the window's samples, and the steps' mean lengths are spread no more than those of
    random batches; the steps come in random order. Never worse than `partition` on the same batches, whose plan is the
    fallback; with W=1, and for a lone batch at an epoch's end, it is `partition`. Ranks that differ are planned as if
    all had the least capacity and the same speed; each step's samples are then split by `partition`, which knows them.

    N micro-batches per rank are planned as N ranks each, and a second cost of the samples is not looked at; each step's
    samples are then split by `partition`, too. With `auto`, N is tried from 1 on until it no longer makes the window
    faster.

    Raises:
        NothingFits: a step's samples do not fit into the capacities.
    """

    level = "window"
    splits = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._partition = Partition(problem)

    def change_speeds(self, speeds: FloatArray | None) -> None:
        """As the base, from the next window on."""
        super().change_speeds(speeds)
        self._partition.change_speeds(speeds)

    @property
    def window(self) -> int:
        """Global batches dealt together (W)."""
        return self.problem.window

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """Plans of consecutive steps, with the samples of their global batches exchanged between them."""
        if len(batches) == 1:
            return self._partition.deal(batches, first_step)
        together = self._together(np.concatenate(batches), len(batches), first_step)
        try:
            alone = self._partition.deal(batches, first_step)
        except NothingFits:
            if together is None:
                raise
            return together
        if together is not None and self._total_cost(together) <= self._total_cost(alone):
            return together
        return [replace(plan, exact="none") for plan in alone]

    def check(self, batches: Sequence[IntArray], first_step: int) -> None:
        """As the base; the search is run only where `partition`, the fallback, cannot deal the batches one by one."""
        try:
            self._partition.check(batches, first_step)
        except NothingFits:
            self.deal(batches, first_step)

    def _together(self, ids: IntArray, steps: int, first_step: int) -> Sequence[StepPlan] | None:
        """The window dealt with as many micro-batches per rank as asked for, or as are best; None without a plan."""
        problem, wanted = self.problem, self.problem.micro_batches
        if wanted != "auto":
            return self._dealt(ids, steps, first_step, wanted)
        best, least = None, math.inf
        for parts in range(1, problem.global_batch // problem.workers + 1):
            plans = self._dealt(ids, steps, first_step, parts)
            cost = math.inf if plans is None else self._total_cost(plans)
            if best is not None and cost >= least:
                break
            best, least = plans, cost
            if best is not None and problem.cost.cost_type != "measured":
                break
        return best

    def _dealt(self, ids: IntArray, steps: int, first_step: int, parts: int) -> Sequence[StepPlan] | None:
        """The window dealt with `parts` micro-batches per rank."""
        problem = self.problem
        shares = plan_window(
            problem.lengths[ids],
            problem.workers * parts,
            steps,
            problem.cost,
            seed=[problem.seed, first_step],
            limits=self._limits(problem.padded_lengths[ids]),
        )
        if shares is None:
            return None
        groups = [[ids[positions] for positions in step] for step in shares]
        if not problem.equal_ranks or problem.micro_batches != 1 or problem.extra is not None:
            # `partition` knows what the search does not.
            split = self._partition.deal([np.concatenate(step) for step in groups], first_step)
            return [replace(plan, exact="none") for plan in split]
        return [StepPlan(step, single(group)) for step, group in enumerate(groups, first_step)]

    def _limits(self, padded_lengths: IntArray) -> IntArray | None:
        """Largest share that every rank can hold at these lengths, same shape; None for no limit."""
        if self.problem.capacity.unlimited:
            return None
        limits: IntArray = self.problem.capacity.limits(self.problem.workers, padded_lengths).min(axis=0)
        return limits

    def _total_cost(self, plans: Sequence[StepPlan]) -> float:
        return sum(step_cost(plan, self.problem) for plan in plans)


def plan_window(
    lengths: IntArray,
    workers: int,
    steps: int,
    cost: CostModel,
    *,
    seed: int | Sequence[int] = 0,
    limits: IntArray | None = None,
) -> list[list[IntArray]] | None:
    """Deal the samples of several global batches over equal ranks.

    Args:
        lengths: tokens before padding, shape [W*B], in any order.
        workers: ranks that train (G).
        steps: global batches (W), at least 2.
        cost: predicted cost of a micro-batch.
        seed: of the search, and of the order of the steps; the same seed gives the same plan.
        limits: largest share that may hold each sample, shape [W*B], non-increasing in length; none by default.

    Returns:
        Per step and rank, positions in `lengths`; None when no plan was found that keeps to the limits and to the
        allowed spread of the steps' mean lengths.
    """
    order, rng = sort_longest_first(lengths), np.random.default_rng(seed)
    sorted_limits = None if limits is None else limits[order].tolist()
    found = search(SortedWindow(lengths[order], steps, workers, cost, sorted_limits), rng)
    if found is None:
        return None
    # The search deals the longest samples first: as it leaves them, a window's first steps would be its dearest.
    places = rng.permutation(steps)
    shares: list[list[IntArray]] = [[] for _ in range(steps)]
    for share, positions in enumerate(cut(order, found[1])):
        shares[places[found[0][share]]].append(positions)
    return shares
