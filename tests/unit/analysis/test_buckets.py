"""The model of bucket sizes finds what points were made of, and says where it has no best size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import matplotlib
import pytest
from matplotlib.text import Text

from dynbench.analysis.figures import charts
from dynbench.analysis.figures.strategies import bucket_overhead
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.links import EXPLAINS, BucketPoint, bears_out, bucket_point, fit_buckets, nearest
from dynbench.analysis.merge import merge_run
from dynbench.runs.run import Run

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


def test_without_one_of_the_two_parts_there_is_no_best_size() -> None:
    only_calls, only_bytes = fit_buckets(points(0.5, math.inf)), fit_buckets(points(0.0, 1e6))
    assert only_calls is not None and only_calls.bytes_per_ms is None and only_calls.best_bytes is None
    assert only_bytes is not None and only_bytes.best_bytes is None and only_bytes.call_ms == pytest.approx(0)
    assert fit_buckets(points(0.5, 1e6, (1, 4, 4, 1))) is None, "two unknowns, two numbers of buckets"


UNRULY = (30.0, 5.0, 60.0, 4.0, 45.0)
"""Overheads, ms, that no model of a cost per call and a transfer explains."""


def unruly() -> list[BucketPoint]:
    return [dataclasses.replace(point, overhead_ms=ms) for point, ms in zip(points(0.5, 1e6), UNRULY, strict=True)]


def unequal() -> list[BucketPoint]:
    return [dataclasses.replace(point, compute_ms=200.0) for point in points(0.5, 1e6)]


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
    by_arm = {point.arm: dataclasses.replace(point, size=f"{place}") for place, point in enumerate(found, start=1)}
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
