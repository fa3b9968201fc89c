"""The launch order: every arm as often as asked, and immune to linear drift."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynbench.experiment.order import PlannedLaunch, abba_order


def test_three_arms_twice() -> None:
    assert [launch.arm for launch in abba_order(["a", "b", "c"], 2)] == ["a", "b", "c", "c", "b", "a"]


@given(st.integers(2, 6), st.integers(1, 5))
def test_every_arm_is_launched_once_per_block_at_the_same_mean_position(n_arms: int, half: int) -> None:
    arms = [f"arm{i}" for i in range(n_arms)]

    order = abba_order(arms, 2 * half)

    assert len(set(order)) == len(order) == n_arms * 2 * half
    positions = {arm: [i for i, launch in enumerate(order) if launch.arm == arm] for arm in arms}
    assert len({sum(found) for found in positions.values()}) == 1
    assert [launch.block for launch in order] == sorted(launch.block for launch in order)


def test_an_odd_number_of_launches_lets_drift_through() -> None:
    order = abba_order(["a", "b"], 3)

    assert order[-1] == PlannedLaunch("b", 2)
    assert sum(i for i, launch in enumerate(order) if launch.arm == "a") != sum(
        i for i, launch in enumerate(order) if launch.arm == "b"
    )
