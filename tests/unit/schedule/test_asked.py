"""What the planner's Python interface makes of arguments where they are no mistake; the rest is in `test_refusals`."""

import numpy as np
import pytest

from dynbench.sampler import known_policies, whole_lengths


@pytest.mark.parametrize("given", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], dtype=np.uint8)])
def test_whole_numbers_of_any_type_are_lengths_that_sums_of_squares_do_not_overflow(given):
    lengths = whole_lengths(given)
    assert lengths.tolist() == [3, 1, 2]
    assert lengths.dtype == np.int64


def test_a_sampler_takes_policies_that_know_no_capacities_too_and_names_those_that_do_if_asked():
    every, capped = known_policies(), known_policies(capped=True)
    assert set(capped) < set(every)
    assert {"static", "partition", "window", "prefix"} <= set(capped)
    assert "lpt" in every and "lpt" not in capped
