"""Arms that take turns by single steps within a launch: the interval over launches covers the truth, one over steps no.

Simulated step times have what a busy machine does to them: outliers with a heavy tail, a drift within the launch, noise
that lasts over steps, launches of different speed, and a place in memory that makes an arm slower for a launch.
"""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from dynbench.analysis.stats import paired_ratio, student_t_quantile

SPEEDUP = 1.05
SESSIONS = 3000


def step_times(launches, *, steps=40, seed=11):
    """Step times of two arms, each [sessions, launches, steps]: ABBA by single steps, on the same batches.

    A batch's work has a standard deviation of 30 %, AR(1) noise (rho 0.6) of 5 %, the drift over a launch of 10 %, a
    launch of 6 %, an arm's place in a launch of 2 %; 1 % of steps take longer by half a step and a Pareto tail.
    """
    rng = np.random.default_rng(seed)
    shape = (SESSIONS, launches, 2 * steps)
    noise = 0.05 * lfilter([0.8], [1, -0.6], rng.standard_normal(shape), axis=-1)
    drift = 0.1 * rng.standard_normal((SESSIONS, launches, 1)) * np.linspace(0, 1, 2 * steps)
    outliers = np.where(rng.random(shape) < 0.01, 0.5 * (1 + rng.pareto(3, shape)), 0)
    launch = np.exp(0.06 * rng.standard_normal((SESSIONS, launches, 1)))
    work = np.repeat(rng.lognormal(0, 0.3, (SESSIONS, launches, steps)), 2, axis=-1)
    times = work * np.exp(noise + drift) * launch + outliers
    first = np.tile([True, False, False, True], steps // 2)
    place = np.exp(0.02 * rng.standard_normal((SESSIONS, launches, 2)))
    return times[..., first] * place[..., :1] * SPEEDUP, times[..., ~first] * place[..., 1:]


@pytest.mark.slow
@pytest.mark.parametrize("launches", [4, 8])
def test_a_ratio_per_launch_covers_the_truth_as_often_as_it_says(launches):
    before, after = (times.sum(axis=-1) for times in step_times(launches))
    ratios = [paired_ratio(a, b) for a, b in zip(before, after, strict=True)]
    assert 0.93 <= np.mean([ratio.low <= SPEEDUP <= ratio.high for ratio in ratios]) <= 0.97


@pytest.mark.parametrize("launches", [4, 8])
def test_an_interval_over_steps_would_not_cover(launches):
    before, after = step_times(launches)
    logs = (np.log(before) - np.log(after)).reshape(SESSIONS, -1)
    half = student_t_quantile(0.975, logs.shape[1] - 1) * logs.std(axis=1, ddof=1) / math.sqrt(logs.shape[1])
    assert np.mean(np.abs(logs.mean(axis=1) - math.log(SPEEDUP)) <= half) < 0.75
