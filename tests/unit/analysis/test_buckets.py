"""Steps with buckets of other sizes: the model fitted to some, and tried on those that were left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from dynbench.analysis.buckets import BucketFit, BucketPoint, bucket_point, fit_buckets, nearest
from dynbench.analysis.figures import charts
from dynbench.analysis.figures.strategies import bucket_steps
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.runs.run import Run
from dynbench.units import mib

TOTAL = 500e6
CALLS = (1, 2, 3, 6, 12, 22, 50, 62)
LEFT_OUT = (2, 6, 22)


def points(steps: Sequence[float], calls: Sequence[int] = CALLS) -> list[BucketPoint]:
    return [BucketPoint(f"n{n}", f"{mib(TOTAL) / n}", n, TOTAL, ms) for n, ms in zip(calls, steps, strict=True)]


def model(constant: float = 2000.0, call: float = 5.0, shorter: float = 500.0) -> list[float]:
    return [constant + call * n + shorter / n for n in CALLS]


def fitted(found: Sequence[BucketPoint]) -> BucketFit:
    fit = fit_buckets(found)
    assert fit is not None
    return fit


def coefficients(fit: BucketFit) -> tuple[float, float, float]:
    return fit.constant_ms, fit.call_ms, fit.shorter_ms


def test_buckets_are_full_but_for_the_last() -> None:
    """Where sending is longer, the link waits for the first bucket to be computed, in 40 ms for all, and no longer."""

    def at(size_mib: float) -> BucketPoint:
        part = size_mib / mib(TOTAL)
        return BucketPoint(f"{size_mib:g}", f"{size_mib}", math.ceil(1 / part), TOTAL, 400 + 40 * min(1.0, part))

    fit = fitted([at(size) for size in (1000, 400, 200, 100, 50, 25, 5)])
    assert coefficients(fit) == pytest.approx((400, 0, 40)) and fit.worst < 1e-9
    alike = [point._replace(size=f"{mib(TOTAL) / point.calls}") for point in (*fit.fitted, *fit.held_out)]
    assert fitted(alike).worst > 0.001


@given(st.tuples(st.floats(100, 5000), st.floats(0.5, 50), st.floats(50, 5000)))
def test_the_fit_finds_the_parts_again_and_its_least_is_where_both_are_equal(parts: tuple[float, float, float]) -> None:
    fit = fitted(points(model(*parts)))
    assert coefficients(fit) == pytest.approx(parts, rel=1e-6)
    assert [point.calls for point in fit.held_out] == list(LEFT_OUT) and fit.worst < 1e-9
    if fit.case == "constant":  # steps so alike that their mean predicts as well
        assert fit.worst_of_mean <= fit.worst and fit.best_calls is None
        return
    assert fit.best_calls == pytest.approx(max(1, math.sqrt(parts[2] / parts[1])))
    assert fit.best_bytes == pytest.approx(TOTAL / fit.best_calls)
    best, *others = (BucketPoint("", "parameter", fit.best_calls * times, TOTAL, 0.0) for times in (1, 0.9, 1.1))
    assert all(fit.step_ms(best) <= fit.step_ms(other) for other in others if other.calls >= 1)


def test_arms_with_as_many_buckets_are_left_out_together_and_too_few_numbers_are_not_fitted() -> None:
    twice = [*points(model()), BucketPoint("again", "1", 6, TOTAL, 2100.0)]
    assert {point.arm for point in fitted(twice).held_out} == {"n2", "n6", "n22", "again"}
    assert fit_buckets(points(model()[:4], CALLS[:4])) is None and fit_buckets(points(model()[:5], CALLS[:5]))
    assert fit_buckets([point._replace(size="one") for point in points(model())]) is None, "no sizes"


CASES = {
    "best": model(),
    "no_call": model(call=0.0),
    "no_overlap": model(shorter=0.0),
    "misses": [2000.0 + 600 * (n == 6) for n in CALLS],
    "constant": [2000.0] * len(CALLS),
}
"""Steps by what the model says of them; that of 6 buckets, which is left out, is beyond any model of the others."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_best_size_is_named_and_drawn_only_where_the_model_holds_and_has_one(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    found = points(CASES[case])
    fit = fitted(found)
    assert (fit.case, fit.holds) == (case, case not in ("misses", "constant"))
    by_arm = {point.arm: point for point in found}
    monkeypatch.setattr("dynbench.analysis.figures.strategies.bucket_point", lambda arm, *_: by_arm[arm])
    run = merge_run(make_run())
    with matplotlib.rc_context(charts.RC):
        drawn = bucket_steps([ArmView(arm, (run,)) for arm in by_arm])
    assert drawn is not None
    assert len([line for line in drawn.figure.axes[0].lines if line.get_linestyle() == ":"]) == (case == "best")
    printed = " ".join(text.get_text() for text in drawn.figure.findobj(Text))
    assert ("MiB." in printed) == (case == "best") == (fit.best_bytes is not None)


def test_a_miss_beyond_the_limit_is_one_and_the_nearest_arm_is_so_by_ratio() -> None:
    steps = dict(zip(CALLS, model(), strict=True))
    for part in (1.099, 1.101, 0.901, 0.899):
        fit = fitted(points([*(steps | {6: steps[6] / part}).values()]))
        assert fit.worst == pytest.approx(abs(part - 1)) and (fit.worst <= fit.within) == (abs(part - 1) < 0.1)
    assert nearest(points(model()), TOTAL / 8.6).calls == 12


SUMMARY: dict[str, object] = {
    "collectives": {"mean": 12.0},
    "bytes_raw": {"mean": TOTAL},
    "step_time_ms": {"mean": 300.0},
    "workers": 2,
}


@pytest.mark.parametrize(
    ("name", "bucket_mb", "size", "calls"),
    [
        ("bucketed", 10.0, "10.0", 11),
        ("bucketed", "none", "one", 11),
        ("ddp", 25.0, "25.0", 12),
        ("overlap", 25.0, "parameter", 11),
        ("flat", 25.0, "one", 11),
        ("ps", 25.0, None, 0),
        ("fsdp", 25.0, None, 0),
    ],
)
def test_an_arm_is_a_point_where_it_all_reduces_in_buckets(
    name: str, bucket_mb: object, size: str | None, calls: int
) -> None:
    """One call of our own strategies tells which parameters were used."""
    config = {"sync.name": name, "sync.bucket_mb": bucket_mb}
    found = bucket_point("arm", config, [SUMMARY])
    assert found == (None if size is None else BucketPoint("arm", size, calls, TOTAL, 300.0))
    assert bucket_point("arm", config, [{**SUMMARY, "bytes_raw": {"mean": 0.0}}]) is None, "it sends nothing"
