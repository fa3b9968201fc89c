"""Steps over links of other speeds: what compression saves, and the share of communication by brute force."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.analysis.link_map import LinkModel, LinkPoint, link_map, link_point
from dynbench.analysis.links import SPEEDS_GBPS, faster_gbps, predicted_ms

MB = 1e6
MODEL = LinkModel(fixed_ms=200.0, token_ms=2.0, waited_ms=100.0, sent=300 * MB, root=60 * MB, blocks=7.0)
MODELS = st.builds(
    LinkModel,
    fixed_ms=st.floats(1, 500),
    token_ms=st.floats(0.01, 10),
    waited_ms=st.floats(0, 500),
    sent=st.floats(1e6, 1e9),
    root=st.floats(0, 5e5),
    blocks=st.integers(2, 50).map(float),
)
SPEEDS, TOKENS = st.floats(0.01, 100), st.floats(1, 4096)


def passes_ms(model: LinkModel, compute_ms: float, transfer_ms: float) -> float:
    """When all is sent and computed: the root alone, then alike pieces one by one, each computed once it is sent."""
    others = (model.sent - 2 * model.root) / 3
    ends = model.root / model.sent * transfer_ms, model.root / (model.root + others) * compute_ms
    pieces = round(model.blocks) - 1
    sent = computed = sum(ends)
    for _ in range(pieces):
        sent += 3 * others / model.sent * transfer_ms / pieces
        computed = max(sent, computed) + others / (model.root + others) * compute_ms / pieces
    return computed + ends[0]


@given(model=MODELS, gbps=SPEEDS, tokens=TOKENS)
def test_the_share_is_that_of_a_pipeline_played_through(model: LinkModel, gbps: float, tokens: float) -> None:
    compute = model.compute_ms(tokens)
    transfer = model.sent * 8 / (gbps * 1e9) * 1e3
    waited = model.waited_ms + passes_ms(model, compute, transfer) - compute
    assert model.share(gbps, tokens) == pytest.approx(waited / (compute + waited), rel=1e-6, abs=1e-9)


@given(model=MODELS, tokens=TOKENS)
def test_the_line_is_where_the_share_passes_one_half(model: LinkModel, tokens: float) -> None:
    half = model.half_gbps(tokens)
    if half == inf:
        assert model.share(inf, tokens) > 0.5
    else:
        assert model.share(half * 0.99, tokens) >= 0.5 - 1e-9 >= model.share(half * 1.01, tokens) - 2e-9


def measured(gbps: float | None, tokens: float, workers: int = 2) -> LinkPoint:
    """A point that the model has made."""
    compute, share = MODEL.compute_ms(tokens), MODEL.share(gbps or inf, tokens)
    waited = compute * share / (1 - share)
    return LinkPoint(f"{gbps}, {tokens}", workers, gbps, tokens, compute, waited, 0.6 * waited, *MODEL[3:])


BASES = [measured(None, 64), measured(None, 1024)]
LINKED = [measured(gbps, tokens) for gbps in (0.5, 2.0, 8.0) for tokens in (64, 256)]


def test_it_is_fitted_to_the_arms_without_a_link_alone_and_finds_the_model_that_made_them() -> None:
    slower = [point._replace(waited_ms=10 * point.waited_ms, compute_ms=1.0, sent=1.0) for point in LINKED]
    found = link_map([*BASES, *slower, measured(1.0, 64, workers=4), measured(None, 64, workers=4)])
    assert found is not None and found.model == pytest.approx(MODEL)
    assert (found.points, found.bases) == (slower, BASES), "all on as many ranks"
    assert found.mean_error > 0.02 and abs(found.errors[found.worst]) >= found.mean_error
    exact = found._replace(points=LINKED)
    assert [exact.predicted(point) for point in (*BASES, *LINKED)] == pytest.approx(
        [point.share for point in (*BASES, *LINKED)]
    )


@pytest.mark.parametrize("points", [BASES, LINKED, [*BASES[:1], *LINKED], [*BASES[:1], *BASES[:1], *LINKED]])
def test_there_is_no_map_without_links_or_enough_to_fit_to(points: list[LinkPoint]) -> None:
    assert link_map(points) is None


CONFIG: dict[str, object] = {"sync.name": "fsdp", "compress.name": "none"}
SUMMARY: dict[str, Any] = {
    "time_ms": {"compute": 1000.0, "wait": 40.0, "exposed_comm": 260.0},
    "sync_forward_ms": {"mean": 100.0},
    "sync_optimizer_ms": {"mean": 50.0},
    "real_tokens": 5120,
    "steps": 10,
    "workers": 2,
    "bytes_wire": {"mean": 300 * MB},
    "link_gbps": 2.0,
    "by_operation": [
        {"operation": "all_gather", "calls": 13.0, "bytes": 180 * MB},
        {"operation": "reduce_scatter", "calls": 7.0, "bytes": 120 * MB},
    ],
}


@pytest.mark.parametrize(
    "otherwise",
    [
        {"sync.name": "ddp"},
        {"compress.name": "int8"},
        {"sync.gather_bf16": True},
        {"by_operation": []},
        {"sync_forward_ms": {}},
        {"bytes_wire": {"mean": 0.0}},
    ],
    ids=["not sharded", "compressed", "gathered in bf16", "calls not kept", "waiting not told", "one rank"],
)
def test_other_arms_are_none(otherwise: dict[str, Any]) -> None:
    """By a setting or a number of the summary."""
    point = LinkPoint("arm", 2, 2.0, 256.0, 1000.0, 250.0, 150.0, 300 * MB, 60 * MB, 7.0)
    assert link_point("arm", CONFIG, [SUMMARY]) == point and point.share == 0.2
    assert link_point("arm", CONFIG | otherwise, [SUMMARY | otherwise]) is None


def summary(step: float, transfer: float, sent: float, hidden: float) -> Any:
    """Times in ms, bytes in MB."""
    times = {"step_time_ms": {"mean": step}, "comm_transfer_ms": {"mean": transfer}, "overlap_fraction": hidden}
    return {**times, "bytes_wire": {"mean": sent * MB}}


@given(data=st.data())
def test_spans_agree_with_the_predicted_times_at_every_speed(data: st.DataObject) -> None:
    """Whatever was hidden, and however many launches: also where an arm is ahead on slow and on fast links only."""
    numbers = st.tuples(*(st.floats(low, high) for low, high in ((40, 200), (1, 30), (0.5, 120), (0, 1))))
    arm, baseline = (
        [summary(*drawn) for drawn in each]
        for each in data.draw(st.tuples(*(st.lists(numbers, min_size=1, max_size=3) for _ in range(2))))
    )
    spans = faster_gbps(arm, baseline)
    assert spans is not None and spans == sorted(spans)
    ends = [end for span in spans for end in span if end]
    beside = [end * off for end in ends for off in (0.9, 1.1)]
    for gbps in (*map(float, SPEEDS_GBPS), 1e-3, 1e4, *beside):
        ahead, other = predicted_ms(arm, gbps), predicted_ms(baseline, gbps)
        assert ahead is not None and other is not None
        if abs(ahead - other) > 1e-6 * other:
            inside = any(low < gbps and (high is None or gbps < high) for low, high in spans)
            assert inside == (ahead < other)


@pytest.mark.parametrize(("hidden", "gbps", "expected"), [(0, 10, 160), (0.75, 10, 160), (0, 400, 82), (0.75, 400, 95)])
def test_what_was_hidden_stays_hidden(hidden: float, gbps: float, expected: float) -> None:
    """100 MB take 80 ms over 10 Gb/s and 2 ms over 400; of the 20 ms of transfer, the hidden ones cost nothing."""
    assert predicted_ms([summary(100, 20, 100, hidden)], gbps) == pytest.approx(expected)
