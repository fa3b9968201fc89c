"""Sizes and times as people type them."""

from __future__ import annotations

import pytest

from dynbench.units import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("1.5h", 5400), (" 2D ", 172_800), ("1w", 604_800)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "m", "-1h", "1h30m", "2026-11-20", "20 min", "1y"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; write it like 90s"):
        parse_duration_s(text)
