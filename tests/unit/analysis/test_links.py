"""Steps over links of other speeds, and in buckets of other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from dynbench.analysis.figures import charts
from dynbench.analysis.figures.strategies import bucket_overhead
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.links import (
    EXPLAINS,
    SPEEDS_GBPS,
    BucketPoint,
    bears_out,
    bucket_point,
    faster_gbps,
    fit_buckets,
    nearest,
    predicted_ms,
)
from dynbench.analysis.merge import merge_run
from dynbench.runs.run import Run


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


TOTAL = 100e6
CALLS = (1, 4, 10, 50, 161)


def points(call_ms: float, bytes_per_ms: float, calls: tuple[int, ...] = CALLS) -> list[BucketPoint]:
    return [
        BucketPoint(f"n{n}", "25.0", n, TOTAL, n * call_ms + TOTAL / n / bytes_per_ms, 500.0, True, 50.0, 50.0)
        for n in calls
    ]


def test_the_fit_finds_overhead_and_bandwidth_again_and_the_best_size_is_where_both_parts_are_equal() -> None:
    fit = fit_buckets(points(0.5, 1e6))
    assert fit is not None and fit.bytes_per_ms is not None and fit.best_bytes is not None
    assert (fit.call_ms, fit.bytes_per_ms, fit.r_squared) == pytest.approx((0.5, 1e6, 1.0))
    assert fit.best_bytes == pytest.approx(math.sqrt(TOTAL * 0.5 * 1e6))
    n = TOTAL / fit.best_bytes
    assert n * fit.call_ms == pytest.approx(TOTAL / n / fit.bytes_per_ms)
    assert all(fit.overhead_ms(n) <= fit.overhead_ms(n * part) for part in (0.9, 1.1))
    assert nearest(points(0.5, 1e6), fit.best_bytes).calls == 10


UNRULY = (30.0, 60.0, 5.0, 60.0, 45.0)
"""Overheads, ms, that no model of a cost per call and a transfer explains, the least nearest the fitted best size."""


def unruly() -> list[BucketPoint]:
    return [point._replace(overhead_ms=ms) for point, ms in zip(points(0.5, 1e6), UNRULY, strict=True)]


def unequal() -> list[BucketPoint]:
    return [point._replace(compute_ms=200.0) for point in points(0.5, 1e6)]


@pytest.mark.parametrize(
    ("found", "good", "explains"),
    [(points(0.5, 1e6), True, True), (unruly(), False, False), (unequal(), False, True)],
    ids=["borne out", "bad fit", "assumption fails"],
)
def test_what_arms_do_not_bear_out_has_neither_curve_nor_optimum(
    make_run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    found: list[BucketPoint],
    good: bool,
    explains: bool,
) -> None:
    fit = fit_buckets(found)
    assert fit is not None and fit.r_squared is not None and fit.best_bytes is not None
    assert fit.explains == explains == (fit.r_squared >= EXPLAINS) and bears_out(found, fit) == good
    by_arm = {point.arm: point._replace(size=f"{place}") for place, point in enumerate(found, start=1)}
    monkeypatch.setattr("dynbench.analysis.figures.strategies.bucket_point", lambda arm, *_: by_arm[arm])
    run = merge_run(make_run())
    with matplotlib.rc_context(charts.RC):
        drawn = bucket_overhead([ArmView(arm, (run,)) for arm in by_arm])
    assert drawn is not None
    lines = drawn.figure.axes[0].lines
    assert len([line for line in lines if line.get_linestyle() != "None"]) == (2 if good else 0), "curve and optimum"
    assert drawn.table["fitted_ms"].null_count() == (0 if good else len(found))
    best, printed = (
        f"{fit.best_bytes / 2**20:.3g} MiB",
        " ".join(text.get_text() for text in drawn.figure.findobj(Text)),
    )
    assert (best in printed, f"{fit.r_squared:.2f}" in printed, "No line" in printed) == (good, not explains, not good)


SUMMARY: dict[str, object] = {
    "collectives": {"mean": 12.0},
    "bytes_raw": {"mean": TOTAL},
    "step_time_ms": {"mean": 300.0},
    "exposed_comm_ms": {"mean": 40.0},
    "workers": 2,
}


@pytest.mark.parametrize(
    ("config", "size", "calls"),
    [
        ({"sync.name": "bucketed", "sync.bucket_mb": 10.0}, "10.0", 11),
        ({"sync.name": "bucketed", "sync.bucket_mb": "none"}, "one", 11),
        ({"sync.name": "ddp", "sync.bucket_mb": 25.0}, "25.0", 12),
        ({"sync.name": "overlap", "sync.bucket_mb": 25.0}, "parameter", 11),
        ({"sync.name": "flat", "sync.bucket_mb": 25.0}, "one", 11),
        ({"sync.name": "ps", "sync.bucket_mb": 25.0}, None, 0),
        ({"sync.name": "fsdp", "sync.bucket_mb": 25.0}, None, 0),
    ],
)
def test_an_arm_is_a_point_where_it_all_reduces_in_buckets(
    config: dict[str, object], size: str | None, calls: int
) -> None:
    """One call of our own strategies tells which parameters were used."""
    found = bucket_point("arm", config, [SUMMARY])
    if size is None:
        assert found is None
        return
    assert found == BucketPoint("arm", size, calls, TOTAL, 40.0, 300.0, against_null=False)
    beyond = bucket_point("arm", config, [SUMMARY | {"exposed_vs_null_ms": {"mean": 30.0}}])
    assert beyond is not None and (beyond.overhead_ms, beyond.against_null) == (30.0, True)
    assert bucket_point("arm", config, [{**SUMMARY, "bytes_raw": {"mean": 0.0}}]) is None, "it sends nothing"
