"""Capacities that cannot hold the batch are found before the launch, with the largest batch that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.layers import load_config
from dynbench.engine.plan_check import check_capacity
from dynbench.errors import NothingFits

PREFIX = ("schedule.mode=dynamic", "schedule.policy=prefix")


def check(*overrides: str) -> None:
    check_capacity(load_config(None, overrides), 4, Path("nowhere"))


@pytest.mark.parametrize(
    ("overrides", "largest"),
    [
        (("schedule.capacity=15",), 60),
        (("schedule.mode=dynamic", "schedule.capacity=15"), 60),
        (("schedule.capacity=[40, 40, 40, 12]",), 48),
        (("schedule.mode=dynamic", "schedule.capacity=[20, 20, 20, 3]"), 63),
        (("schedule.capacity=7", "schedule.micro_batches=2"), 56),
        (
            (
                "schedule.mode=dynamic",
                "schedule.policy=prefix",
                "schedule.buffer=16",
                "schedule.capacity=[1, 99, 99, 99]",
            ),
            49,
        ),
    ],
)
def test_largest_that_fits(overrides: tuple[str, ...], largest: int) -> None:
    with pytest.raises(NothingFits, match=f"no more than {largest} can fit") as caught:
        check(*overrides)
    assert caught.value.exit_code == 4
    check(*overrides, f"train.global_batch={largest}")


@pytest.mark.parametrize(
    "overrides", [(), ("schedule.capacity=16",), ("schedule.capacity=1", "schedule.micro_batches=auto")]
)
def test_what_fits_passes(overrides: tuple[str, ...]) -> None:
    check(*overrides)
