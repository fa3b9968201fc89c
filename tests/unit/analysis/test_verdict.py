import math

import numpy as np
import pytest

from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.analysis.verdict import Verdict, decide, sentence


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.10, 1.20, Verdict.FASTER),
        (0.80, 0.90, Verdict.SLOWER),
        (0.99, 1.01, Verdict.SAME),
        (1.001, 1.015, Verdict.SAME),
        (0.95, 1.05, Verdict.AMBIGUOUS),
        (0.99, 1.30, Verdict.AMBIGUOUS),
        (1.001, 1.03, Verdict.AMBIGUOUS),
        (None, None, Verdict.ESTIMATE),
    ],
)
def test_verdicts(low, high, verdict):
    estimate = math.sqrt(low * high) if low else 1.5
    assert decide(Ratio(estimate, low, high, 4), noise=0.02) == verdict


def test_a_wider_noise_threshold_turns_faster_into_same():
    ratio = Ratio(1.05, 1.03, 1.07, 4)
    assert decide(ratio, 0.02) == Verdict.FASTER
    assert decide(ratio, 0.08) == Verdict.SAME


@pytest.mark.parametrize("aa_noise", [0.01, 0.05, 0.3, 5.0])
@pytest.mark.parametrize(("low", "high"), [(1.08, 1.11), (0.97, 1.03), (0.99, 1.01), (0.9, 1.3), (1.001, 1.015)])
@pytest.mark.parametrize("turned", [False, True])
def test_noise_of_equal_arms_only_ever_takes_certainty_away(low, high, aa_noise, turned):
    ratio = Ratio(math.sqrt(low * high), low, high, 4)
    ratio = Ratio(1 / ratio.estimate, 1 / high, 1 / low, 4) if turned else ratio
    alone, beside = decide(ratio, 0.02), decide(ratio, 0.02, aa_noise)
    assert beside == alone or (alone in (Verdict.FASTER, Verdict.SLOWER) and beside == Verdict.AMBIGUOUS)
    assert (beside == alone) or abs(math.log(ratio.estimate)) <= math.log1p(aa_noise)


def launches(rng, factor, pairs=4):
    """Totals of two arms, B slower by `factor`, under launch noise of 1.5 % and a drift of 3 % over the session."""
    order = "ABBA" * (pairs // 2)
    times = [
        (1 + 0.03 * k / len(order)) * (factor if arm == "B" else 1) * (1 + 0.015 * rng.standard_normal())
        for k, arm in enumerate(order)
    ]
    return [[t for t, arm in zip(times, order, strict=True) if arm == side] for side in "AB"]


def test_equal_arms_are_not_called_different_and_a_planted_slowdown_is():
    rng = np.random.default_rng(0)
    same = [decide(paired_ratio(*launches(rng, 1.0)), 0.02) for _ in range(200)]
    slow = [decide(paired_ratio(*launches(rng, 1.1)), 0.02) for _ in range(200)]
    assert np.mean([verdict in (Verdict.SAME, Verdict.AMBIGUOUS) for verdict in same]) >= 0.95
    assert np.mean([verdict == Verdict.SLOWER for verdict in slow]) >= 0.9


def test_the_sentence_carries_the_numbers():
    text = sentence(Verdict.FASTER, "static", "partition", Ratio(1.31, 1.25, 1.38, 4), 0.02, 0.95)
    assert "partition is 1.310 times as fast as static" in text
    assert "95 % interval of the speed-up [1.250, 1.380] over 4 paired launches" in text
    assert "noise threshold of 2.0 %" in text
    beside = sentence(Verdict.AMBIGUOUS, "static", "partition", Ratio(1.31, 1.25, 1.38, 4), 0.02, 0.95, aa_noise=0.4)
    assert "as much, 40.0 %" in beside and "noise threshold" not in beside
    single = sentence(Verdict.ESTIMATE, "a", "b", Ratio(1.3, None, None, 1), 0.02, 0.95)
    assert single.endswith("one paired launch gives no interval")
