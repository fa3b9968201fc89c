"""Where whole windows end, against the windows of an epoch laid out one by one."""

from hypothesis import given
from hypothesis import strategies as st

from dynbench.plugins.policies import whole_windows


def ends(window: int, steps_per_epoch: int, most: int) -> set[int]:
    """Numbers of steps after which no window is unfinished."""
    found, at = {0}, 0
    while at <= most:
        for first in range(0, steps_per_epoch, window):
            found.add(at + min(first + window, steps_per_epoch))
        at += steps_per_epoch
    return found


@given(st.integers(0, 80), st.lists(st.integers(1, 20), max_size=3), st.integers(1, 40))
def test_whole_windows_are_the_first_that_all_end_together(steps, windows, steps_per_epoch):
    common = set(range(500)).intersection(*(ends(window, steps_per_epoch, 200) for window in windows))
    assert whole_windows(steps, windows, steps_per_epoch) == min(end for end in common if end >= steps)


@given(st.integers(0, 80), st.integers(1, 20))
def test_without_epochs_they_are_multiples(steps, window):
    assert whole_windows(steps, (window,)) == -(-steps // window) * window
