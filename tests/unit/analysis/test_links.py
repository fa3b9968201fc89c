"""Steps over links of other speeds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.analysis.links import SPEEDS_GBPS, faster_gbps, predicted_ms


def summary(step: float, transfer: float, sent: float, raw: float, coding: float = 0.0, hidden: float = 0.0) -> Any:
    """Times in ms, bytes in MB."""
    return {
        "step_time_ms": {"mean": step},
        "comm_transfer_ms": {"mean": transfer},
        "overlap_fraction": hidden,
        "bytes_wire": {"mean": sent * 1e6},
        "gradient_bytes_raw": {"mean": raw * 1e6},
        "compression_ratio": raw / sent,
        "compression": {"compress_ms": 0.75 * coding, "decompress_ms": 0.25 * coding} if coding else None,
    }


PLAIN = summary(step=100, transfer=20, sent=100, raw=100)
CODED = summary(step=130, transfer=10, sent=25, raw=100, coding=40)


def test_compression_pays_below_the_speed_at_which_both_steps_take_as_long() -> None:
    """75 MB less in 40 ms of coding: 15 Gb/s, with 80 ms of other work in both."""
    spans = faster_gbps([CODED], [PLAIN])
    assert spans == [(0.0, pytest.approx(15.0))]
    assert predicted_ms([PLAIN], 15) == pytest.approx(predicted_ms([CODED], 15))
    assert faster_gbps([PLAIN], [CODED]) == [(pytest.approx(15.0), None)]
    assert faster_gbps([PLAIN], [PLAIN]) == []


@given(data=st.data())
def test_spans_agree_with_the_predicted_times_at_every_speed(data: st.DataObject) -> None:
    """Whatever was hidden, and however many launches: also where an arm is ahead on slow and on fast links only."""
    numbers = st.tuples(*(st.floats(low, high) for low, high in ((40, 200), (1, 30), (0.5, 120), (0, 1))))
    arm, baseline = (
        [summary(step, transfer, sent, raw=200, hidden=hidden) for step, transfer, sent, hidden in each]
        for each in data.draw(st.tuples(*(st.lists(numbers, min_size=1, max_size=3) for _ in range(2))))
    )
    spans = faster_gbps(arm, baseline)
    assert spans is not None and spans == sorted(spans)
    ends = [end for span in spans for end in span if end]
    for gbps in (
        *(float(speed) for speed in SPEEDS_GBPS),
        1e-3,
        1e4,
        *(end * off for end in ends for off in (0.9, 1.1)),
    ):
        ahead, other = predicted_ms(arm, gbps), predicted_ms(baseline, gbps)
        assert ahead is not None and other is not None
        if abs(ahead - other) > 1e-6 * other:
            inside = any(low < gbps and (high is None or gbps < high) for low, high in spans)
            assert inside == (ahead < other)


@pytest.mark.parametrize(("hidden", "gbps", "expected"), [(0, 10, 160), (0.75, 10, 160), (0, 400, 82), (0.75, 400, 95)])
def test_what_was_hidden_stays_hidden(hidden: float, gbps: float, expected: float) -> None:
    """100 MB take 80 ms over 10 Gb/s and 2 ms over 400; of the 20 ms of transfer, the hidden ones cost nothing."""
    assert predicted_ms([summary(100, 20, 100, 100, hidden=hidden)], gbps) == pytest.approx(expected)
