"""The parts of a window's search, each by itself: guesses, their price, the moves between them, small changes."""

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.schedule import window as window_search
from dynbench.schedule import window_sweep as window_guess
from dynbench.schedule.cost import CostModel
from dynbench.schedule.window import SPREADS, random_variance, search
from dynbench.schedule.window_sweep import REACH, THRESHOLD_SPREAD, Deal, SortedWindow, guesses, polished

EIGHT = SortedWindow(np.array([9, 8, 6, 4, 4, 3, 2, 1]), steps=2, workers=2, cost=CostModel())
TWELVE = SortedWindow(np.array([10, 10, 5, 5, 5, 5, 2, 2, 2, 2, 1, 1]), steps=2, workers=3, cost=CostModel())


def heavy(seed: int, steps: int, workers: int, batch: int, cost: CostModel | None = None) -> SortedWindow:
    lengths = np.sort(np.clip(np.random.default_rng(seed).lognormal(4, 1, steps * batch), 2, 500).astype(np.int64))
    return SortedWindow(lengths[::-1].copy(), steps, workers, cost or CostModel())


def thresholds_of(window: SortedWindow, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What guesses of a window begin with."""
    given_: list[list[int]] = []
    monkeypatch.setattr(window_guess, "_by_rounds", lambda window, thresholds: given_.append(thresholds))
    next(guesses(window, 0.0))
    return given_[0]


def test_thresholds_lie_evenly_about_the_least_that_takes_all_samples(monkeypatch):
    for seed in range(5):
        window = heavy(seed, 4, 3, 12)
        thresholds = thresholds_of(window, monkeypatch)
        least = next(t for t in range(1, 10**6) if reaches(window, t))
        base = thresholds[0] / (1 + THRESHOLD_SPREAD)
        assert least - 1 <= base <= least * (1 + 2 / 256) + 1
        shifts = np.array(thresholds) / base - 1
        assert shifts == pytest.approx(THRESHOLD_SPREAD * np.array([1, 1 / 3, -1 / 3, -1]), abs=1.5 / base)


def reaches(window: SortedWindow, threshold: int) -> bool:
    """Whether as many shares as the window has take all samples, each what the threshold allows, or one."""
    start = 0
    for _ in range(window.steps * window.workers):
        if start < len(window.work):
            start += max(threshold // window.work[start], 1)
    return start >= len(window.work)


def test_a_lone_step_and_hardly_any_work_have_thresholds_too(monkeypatch):
    (only,) = thresholds_of(heavy(0, 1, 3, 12), monkeypatch)
    assert only > 1
    free = SortedWindow(np.array([2, 1]), 2, 1, CostModel("measured", alpha=1.0, beta=0.0))
    assert thresholds_of(free, monkeypatch) == [1, 1]


@pytest.mark.parametrize(("workers", "closing"), [(1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (12, 3)])
def test_a_quarter_of_the_shares_closes_the_steps(workers, closing):
    assert window_guess._closing_shares(SortedWindow(np.ones(2 * workers), 2, workers, CostModel())) == closing


@pytest.mark.parametrize(("thresholds", "order"), [([9, 16], [0, 1, 1, 0]), ([16, 9], [1, 0, 0, 1])])
def test_in_rounds_the_longest_samples_go_where_they_fill_best(thresholds, order):
    """The 9 fills a threshold of 9; the other step takes 8 and 6, and lacks fewer samples at the end."""
    deal = window_guess._by_rounds(EIGHT, thresholds)
    assert (deal.order, deal.counts) == (order, [1, 2, 2, 3])


def test_steps_open_when_the_open_ones_are_filled():
    deal = window_guess._by_opening(TWELVE, [10, 10], slack_tokens=100.0)
    assert (deal.order, deal.counts) == ([0, 0, 1, 1, 1, 0], [1, 1, 2, 2, 2, 4])


@pytest.mark.parametrize(("slack", "opened_second"), [(-1.0, False), (-1.5, True)])
def test_a_step_that_would_take_too_many_tokens_waits(slack, opened_second):
    """19 tokens above its shortest samples are spare without slack, of which each 10 takes 9."""
    deal = window_guess._by_opening(TWELVE, [10, 10], slack)
    assert deal.order[:2] == ([0, 1] if opened_second else [0, 0])


def test_a_step_opens_at_its_dearest_sample_where_that_is_above_its_threshold():
    thresholds = [4, 12]
    deal = window_guess._by_opening(TWELVE, thresholds, slack_tokens=100.0)
    assert deal.thresholds == [10, 12]
    assert thresholds == [4, 12], "the other guess begins with the same"


def test_where_nothing_fits_and_all_steps_are_open_the_one_with_most_to_spare_goes_on():
    deal = window_guess._by_opening(TWELVE, [10, 20], slack_tokens=-19.0)  # one 10 in the first, both 5 in the second
    assert deal.order[:3] == [0, 1, 0]


@pytest.mark.parametrize(
    ("how", "moved"),
    [(0.0, 1000), (0.125, 1200), (0.2, 1320), (0.25, 900), (0.75, 1030), (0.9001, 334), (0.95, 1000), (0.999, 2934)],
)
def test_a_threshold_moves_towards_the_last_share_or_a_little_or_far(how, moved):
    assert abs(window_search._moved_threshold(EIGHT, 1000, 1400, how) - moved) <= 1


def neighbour(kind: float, where: float = 0.0, whither: float = 0.0, which: float = 0.0, how: float = 0.0):
    deal = Deal([0, 1] * 5, [100, 200], [1] * 10, [90, 190], [50, 150], 0)
    window = SortedWindow(np.ones(20), 2, 5, CostModel())
    order, thresholds = window_search._neighbour(window, deal, [kind, where, whither, which, how])
    assert (deal.order, deal.thresholds) == ([0, 1] * 5, [100, 200]), "the deal itself stays"
    changed = [place for place, step in enumerate(order) if step != deal.order[place]]
    return changed, thresholds


def test_a_move_swaps_two_shares_or_moves_a_threshold_or_both():
    assert neighbour(0.2, where=0.5, whither=0.0) == ([4, 5], [100, 200])
    assert neighbour(0.2, where=0.5, whither=0.9) == ([], [100, 200]), "two shares of one step"
    assert neighbour(0.2, where=0.999, whither=0.6) == ([], [100, 200])
    assert neighbour(0.2, where=0.999, whither=0.4) == ([7, 8], [100, 200])
    assert neighbour(0.9, which=0.6, how=0.25) == ([], [100, 171])
    assert neighbour(0.9, which=0.4, how=0.25) == ([], [81, 200])
    assert neighbour(0.5, which=0.6, how=0.25) == ([0, 1], [100, 171])
    assert neighbour(0.549)[0] == [0, 1] and neighbour(0.551)[0] == []
    assert neighbour(0.449)[1] == [100, 200] and neighbour(0.451)[1] == [90, 200]


def test_the_last_share_is_swapped_with_none_beyond():
    deal = Deal([0, 0, 1, 1], [9, 9], [1] * 4, [9, 9], [9, 9], 0)
    window = SortedWindow(np.ones(4), 2, 2, CostModel())
    order, _ = window_search._neighbour(window, deal, [0.1, 0.99, 0.99, 0.0, 0.0])
    assert order == [0, 0, 1, 1] and window.steps == 2
    assert window_search._neighbour(window, deal, [0.1, 0.3, 0.99, 0.0, 0.0])[0] == [1, 0, 0, 1]


def judge_of(window: SortedWindow, allowed: float) -> window_search._Judge:
    return window_search._Judge(window, allowed, scale=100.0)


def test_a_spread_beyond_the_allowed_one_is_priced_by_how_far():
    deal = EIGHT.sweep([0, 1, 1, 0], [9, 16])  # prices 9 and 16; 15 and 22 tokens, of 4 samples each
    judge = judge_of(EIGHT, 1.0)
    assert judge.variance([15, 22]) == 3.5**2 / 16
    assert judge.penalised(deal) == (25.0, True)
    assert judge_of(EIGHT, 3.5**2 / 16).penalised(deal) == (25.0, True)
    price, valid = judge_of(EIGHT, 3.5**2 / 32).penalised(deal)
    assert (price, valid) == (pytest.approx(25 + 0.5 * 100 * 1), False)
    assert judge_of(EIGHT, 3.5**2 / 32).penalised(deal, limit=24.9) == (25.0, False), "dear enough without"
    assert judge_of(EIGHT, 0.0).penalised(EIGHT.sweep([0, 1, 1, 0], [9, 16]))[1] is False
    assert not judge.is_spread(np.array([15, 22]))
    assert judge_of(EIGHT, 3.5**2 / 17).is_spread(np.array([15, 22]))
    assert not judge_of(EIGHT, 3.5**2 / 16).is_spread(np.array([15, 22]))


def test_samples_above_the_capacities_are_priced_each():
    scarce = SortedWindow(np.full(12, 5), steps=2, workers=2, cost=CostModel(), limits=[2] * 12)
    deal = scarce.sweep([0, 1, 1, 0], [5, 5])
    assert deal.excess == 4
    assert judge_of(scarce, 1.0).penalised(deal) == (scarce.price(deal) + 400.0, False)


def test_thresholds_are_moved_until_the_steps_are_alike(monkeypatch):
    """A step with fewer tokens gets a higher threshold: it takes more of the long samples."""
    window = heavy(6, 4, 4, 16)
    start = window.sweep([0, 0, 1, 1, 2, 2, 3, 3] * 2, [400, 500, 600, 700])
    tokens = np.array(window.step_tokens(start))
    judge = judge_of(window, random_variance(window))
    swept, sweep = [], SortedWindow.sweep
    monkeypatch.setattr(SortedWindow, "sweep", lambda *asked: swept.append(asked[1:]) or sweep(*asked))
    deal = window_search._draw_together(judge, start)
    assert judge.variance(window.step_tokens(deal)) <= judge.allowed_variance
    surplus = 1 - 0.9 * math.sqrt(judge.allowed_variance / judge.variance(tokens.tolist()))
    moved = np.array([400, 500, 600, 700]) * (1 + surplus * (tokens.mean() - tokens) / tokens)
    assert swept[0] == (start.order, moved.astype(int).tolist())
    assert len(swept) == 3, "as often as it takes"
    assert window_search._draw_together(judge, deal) is deal
    before = len(swept)
    window_search._draw_together(judge_of(window, 0.0), start)
    assert len(swept) == before + 10, "it is tried so often and no more"


def test_what_a_search_is_made_of(monkeypatch):
    """Sweeps, prices and slack follow from the window's size, its work and the spread of random batches."""
    asked: list[tuple[window_search._Judge, int]] = []
    slacks: list[float] = []
    real = window_search.guesses
    monkeypatch.setattr(window_search, "_anneal", lambda judge, start, sweeps, rng: asked.append((judge, sweeps)))
    monkeypatch.setattr(window_search, "guesses", lambda window, slack: slacks.append(slack) or real(window, slack))
    for cost, power in ((CostModel(), 1), (CostModel("tokens_sq"), 2)):
        window = heavy(1, 8, 4, 16, cost)
        assert search(window, np.random.default_rng(0)) is None
        for (judge, sweeps), spread, slack in zip(asked, SPREADS, slacks, strict=True):
            assert sweeps == 8 * 3000 // (32 + 15)
            assert judge.scale == pytest.approx(8 * (sum(window.work) / 32) ** power)
            assert judge.allowed_variance == pytest.approx(spread**2 * random_variance(window))
            assert slack == pytest.approx(0.5 * math.sqrt(judge.allowed_variance) * 16)
        asked.clear()
        slacks.clear()
    search(SortedWindow(np.ones(1200, dtype=np.int64), 2, 600, CostModel()), np.random.default_rng(0))
    assert asked[0][1] == 24


@pytest.mark.parametrize(("steps", "batch"), [(2, 3), (2, 4), (3, 2), (4, 2)])
def test_the_spread_of_random_batches_is_that_of_all_ways_to_draw_one(steps, batch):
    lengths = np.sort(np.random.default_rng(steps * batch).integers(1, 50, steps * batch))[::-1].copy()
    means = [np.mean(drawn) for drawn in combinations(lengths.tolist(), batch)]
    window = SortedWindow(lengths, steps, 1, CostModel())
    assert random_variance(window) == pytest.approx(np.mean((means - lengths.mean()) ** 2))


class Limits(window_search._Judge):
    """A deal of price 5 whose neighbours all have one price; what a trial may cost is noted."""

    noted: list[float]
    trial = 1e9
    valid = False

    def penalised(self, deal, limit=math.inf):
        if limit == math.inf:
            return 5.0, self.valid
        self.noted.append(limit)
        return self.trial, False


class Slowly:
    """Draws that are all the same."""

    def exponential(self, size):
        return np.full(size, 3.0)

    def random(self, shape):
        return np.full(shape, 0.5)


@pytest.mark.parametrize("trial", [1e9, 5.1], ids=["too dear", "dearer but taken"])
def test_annealing_cools_evenly_from_its_temperature(monkeypatch, trial):
    monkeypatch.setattr(Limits, "noted", [], raising=False)
    monkeypatch.setattr(Limits, "trial", trial)
    judge = Limits(EIGHT, 1.0, scale=100.0)
    assert window_search._anneal(judge, EIGHT.sweep([0, 1, 1, 0], [9, 16]), 10, Slowly()) is None
    slacks = 3 * 0.01 * 100 / 2 * (1 - np.arange(10) / 10)
    current = np.array([5.0] + 9 * [5.0 if trial > 6 else trial])
    assert Limits.noted == pytest.approx(current + slacks)


def test_annealing_that_finds_nothing_valid_gives_its_start_back(monkeypatch):
    monkeypatch.setattr(Limits, "noted", [], raising=False)
    monkeypatch.setattr(Limits, "valid", True)
    start = EIGHT.sweep([0, 1, 1, 0], [9, 16])
    assert window_search._anneal(Limits(EIGHT, 1.0, scale=100.0), start, 10, Slowly()) is start


def test_annealing_keeps_the_cheapest_valid_deal(monkeypatch):
    window = heavy(2, 4, 3, 12)
    judge = window_search._Judge(window, random_variance(window), float(sum(window.work)))
    swept: list[Deal] = []
    sweep = SortedWindow.sweep
    start = window.sweep([0, 1, 2, 3] * 3, [400] * 4)
    monkeypatch.setattr(SortedWindow, "sweep", lambda *asked: swept.append(sweep(*asked)) or swept[-1])
    best = window_search._anneal(judge, start, 200, np.random.default_rng(0))
    assert len(swept) == 200
    valid = [judge.penalised(deal)[0] for deal in (start, *swept) if judge.penalised(deal)[1]]
    assert best is not None and judge.penalised(best) == (min(valid), True)
    assert window_search._anneal(judge_of(window, 0.0), start, 5, np.random.default_rng(0)) is None


def changes(window: SortedWindow, order: list[int], counts: list[int]):
    """Every small change of a plan, one by one."""
    places = range(len(order))
    for one, other in permutations(places, 2):
        if order[one] == order[other] and counts[one] > 1:
            changed = counts.copy()
            changed[one], changed[other] = counts[one] - 1, counts[other] + 1
            yield order, changed
        if order[one] != order[other] and one < other <= one + REACH:
            moved, changed = order.copy(), counts.copy()
            moved[one], moved[other] = order[other], order[one]
            changed[one], changed[other] = counts[other], counts[one]
            yield moved, changed


def judged(window: SortedWindow, order: list[int], counts: list[int]) -> tuple[float, list[int]]:
    """Price of a plan, infinite above the capacities, and the steps' tokens."""
    dearest, tokens, start = [0] * window.steps, [0] * window.steps, 0
    for step, count in zip(order, counts, strict=True):
        if window.limits is not None and count > window.limits[start]:
            return math.inf, tokens
        dearest[step] = max(dearest[step], count * window.work[start])
        tokens[step] += int(window.lengths[start : start + count].sum())
        start += count
    power = 2 if window.cost.cost_type == "tokens_sq" else 1
    return sum(one**power for one in dearest), tokens


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from(["tokens", "tokens_sq"]),
    st.sampled_from([None, 6]),
    st.booleans(),
)
def test_each_round_makes_the_cheapest_of_all_small_changes(seed, steps, workers, cost_type, limit, spread):
    rng = np.random.default_rng(seed)
    window = heavy(seed, steps, workers, 3 * workers + 1, CostModel(cost_type))
    if limit is not None:
        window = SortedWindow(window.lengths, steps, workers, window.cost, [limit] * len(window.lengths))
    order = rng.permutation(np.repeat(np.arange(steps), workers)).tolist()
    thresholds = [int(sum(window.work) / steps / workers)] * steps
    counts = window.sweep(order, thresholds).counts
    price, tokens = judged(window, order, counts)
    if price == math.inf:
        return
    allowed = np.var(tokens) if spread else math.inf

    def too_far(tokens: np.ndarray) -> bool:
        return bool(np.var(tokens) > allowed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_guess, "CHECKED", 10**6)
        patch.setattr(window_guess, "ROUNDS", 1)
        for _ in range(20):
            known = [judged(window, *change) for change in changes(window, order, counts)]
            cheapest = min([met for met, tokens in known if not too_far(np.array(tokens))], default=math.inf)
            order, counts = polished(window, order, counts, too_far, rng)
            found, tokens = judged(window, order, counts)
            assert not too_far(np.array(tokens))
            assert found == min(price, cheapest)
            if cheapest >= price:
                break
            price = found


def test_many_changes_are_drawn_from(monkeypatch):
    monkeypatch.setattr(window_guess, "PRICED", 40)
    chosen, other = window_guess._some(np.arange(100), 4, np.random.default_rng(0), np.arange(100), -np.arange(100))
    assert len(chosen) == len(set(chosen.tolist())) == 5
    assert (chosen == -other).all()
    (few,) = window_guess._some(np.array([3, 1]), 4, np.random.default_rng(0), np.arange(100))
    assert few.tolist() == [3, 1]
    (one,) = window_guess._some(np.arange(9), 400, np.random.default_rng(0), np.arange(9))
    assert len(one) == 1
