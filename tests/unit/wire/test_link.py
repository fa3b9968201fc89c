"""An emulated link: when what is sent has arrived, by clocks set by hand, and that nothing arrives before."""

from __future__ import annotations

import pytest
from torch.futures import Future

from dynbench.wire.channel import Arrivals, Link

SIZE = 1000
"""Takes a second over the link."""


def test_a_call_takes_the_longer_of_the_link_and_the_machine() -> None:
    link = Arrivals(SIZE)
    assert link.arrives("all_reduce", SIZE, 0.0, 0.1) == pytest.approx(1.0), "the link"
    assert link.arrives("all_reduce", SIZE, 10.0, 13.0) == pytest.approx(13.9), "called late by another rank, at 12.9"
    assert link.arrives("send", SIZE, 20.0, 23.0) == pytest.approx(23.0), "the machine"
    assert link.arrives("all_reduce", 0, 30.0, 30.5) == 30.5


def test_calls_under_way_at_once_go_one_after_the_other() -> None:
    link = Arrivals(SIZE)
    arrived = [link.arrives("all_reduce", SIZE // 2, 0.0, 0.01 * moved) for moved in (1, 2, 3)]
    assert arrived == pytest.approx([0.5, 1.0, 1.5], abs=0.02)
    assert link.arrives("all_reduce", SIZE // 2, 5.0, 5.01) == pytest.approx(5.5), "a free link begins at once"


@pytest.mark.parametrize("gbps", [0.001, 0.01])
def test_bits_are_eight_to_a_byte(gbps: float) -> None:
    size = 12_500
    assert Arrivals(gbps * 1e9 / 8).arrives("send", size, 0.0, 0.0) == pytest.approx(size * 8 / (gbps * 1e9))


def test_errors_arrive_at_once() -> None:
    link, broken = Link(0.001), Future[None]()
    late = link.carry("send", 2_500_000_000, lambda: broken)
    broken.set_exception(ValueError("gone"))
    with pytest.raises(Exception, match="gone"):
        late.wait()
    link.close()
