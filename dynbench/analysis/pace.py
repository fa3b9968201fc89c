"""The pace of a run's steps: how long each takes for what its tokens let expect.

Step times spread mostly because steps differ in work. Without it, what comes with time, or with the arm before, shows.
"""

from __future__ import annotations

import numpy as np

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.stats import FloatArray, theil_sen

MOST_STEPS = 500
"""The line is fitted to so many steps, of more to evenly spaced ones."""


def step_tokens(run: MergedRun) -> FloatArray:
    """Padded tokens of the rank that has most, of every measured step; shape [steps]."""
    return run.measured["padded_tokens_max"].to_numpy().astype(np.float64)


def step_paces(run: MergedRun) -> FloatArray:
    """Time of every measured step over a line fitted to the steps' tokens, 1 for the usual one; shape [steps].

    Outliers hardly move the line. No step is expected to take less than the quickest one did.
    """
    times = run.measured["step_time_max_ms"].to_numpy().astype(np.float64)
    tokens = step_tokens(run)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(len(times), MOST_STEPS)).astype(np.int64))
    slope = theil_sen(tokens[chosen], times[chosen])
    overhead = float(np.median(times - slope * tokens))
    paces: FloatArray = times / np.maximum(overhead + slope * tokens, times.min())
    return paces
