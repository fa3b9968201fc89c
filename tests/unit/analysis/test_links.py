"""The speed of a link below which compression pays, and steps over links of other speeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.analysis.links import SPEEDS_GBPS, faster_gbps, link_sentence, over_link, predicted_ms, spans_text
from dynbench.analysis.record import Span
from dynbench.analysis.summary import summarise
from dynbench.analysis.table_specs import TABLES
from dynbench.report import load_template
from dynbench.runs.run import Run
from dynbench.wire.channel import Arrivals

Make = Callable[..., Run]


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


def test_what_compressing_costs_beside_its_own_time_counts_too() -> None:
    """As measured: little time of coding, but a step that is slower by more, so that it does not pay at 1 Gb/s."""
    onebit = summary(step=2000, transfer=10, sent=3, raw=100, coding=80)
    assert faster_gbps([onebit], [PLAIN]) == [(0.0, pytest.approx(97 * 8 / 1910, rel=1e-6))]
    whole = summary(step=60, transfer=10, sent=50, raw=100)
    assert faster_gbps([whole], [PLAIN]) == [(0.0, None)], "one that takes no time of its own is not blank"
    assert faster_gbps([summary(130, 10, sent=110, raw=100, coding=40)], [PLAIN]) == []


def test_links_that_nobody_has_are_not_looked_at() -> None:
    """Of nearly equal bytes: the two would cross at 1e-8 Gb/s."""
    fewer = summary(step=101, transfer=20, sent=100 - 1e-6, raw=100)
    assert faster_gbps([fewer], [PLAIN]) == []
    assert faster_gbps([PLAIN], [fewer]) == [(0.0, None)]


def test_one_link_is_answered_in_a_sentence() -> None:
    launches = {"none": [PLAIN], "coded": [CODED], "old": [{}]}
    predicted = over_link(launches, 10)
    assert predicted == {"none": pytest.approx(160), "coded": pytest.approx(140)}
    said = link_sentence(predicted, 10)
    assert said.endswith("a step of coded takes 140.0 ms, none 160.0 ms (1.14 times that)")
    assert "10 Gb/s" in said
    assert "cannot be predicted" in link_sentence(over_link({"old": [{}]}, 10), 10)


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


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([], "no speed"),
        ([(0.0, None)], "any speed"),
        ([(0.0, 15.0)], "below 15.000"),
        ([(0.0, 1.0), (30.0, None)], "below 1.000, above 30.000"),
        ([(2.0, 3.0)], "2.000–3.000"),
        (None, ""),
    ],
)
def test_spans_in_words(spans: list[Span] | None, text: str) -> None:
    assert spans_text(spans) == text


@pytest.mark.parametrize(("hidden", "gbps", "expected"), [(0, 10, 160), (0.75, 10, 160), (0, 400, 82), (0.75, 400, 95)])
def test_what_was_hidden_stays_hidden(hidden: float, gbps: float, expected: float) -> None:
    """100 MB take 80 ms over 10 Gb/s and 2 ms over 400; of the 20 ms of transfer, the hidden ones cost nothing."""
    assert predicted_ms([summary(100, 20, 100, 100, hidden=hidden)], gbps) == pytest.approx(expected)


def test_of_a_run_that_times_no_transfer_nothing_is_predicted(make_run: Make) -> None:
    found = summarise(make_run("static"))["links"]
    assert found == {"predicted_ms": {f"{speed}": None for speed in SPEEDS_GBPS}}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_says_who_is_fastest_over_which_link(language: str) -> None:
    label = load_template(language).label
    table = TABLES["links"].table({"none": [PLAIN, PLAIN], "int8": [CODED]}, label)
    assert table is not None
    *arms, fastest = table.rows
    assert [row[0] for row in arms] == ["none", "int8"] and "15.000" in arms[1][1] and arms[0][1] == ""
    assert list(fastest[2:]) == ["int8", "int8", "none", "none", "none"]
    assert TABLES["links"].table({"none": [PLAIN]}, label) is None


COMPUTE_S, BUCKETS = 0.08, 4


def step_ms(sent: float, coding_s: float, gbps: float | None, moves_s: float) -> tuple[float, float]:
    """A made-up step of two ranks, and its transfer, ms: one computes longer, in turn, and all is sent behind it.

    Bytes are handed in as a few calls at once, which the machine moves one after the other.
    """
    links = [Arrivals(1e18 if gbps is None else gbps * 1e9 / 8) for _ in range(2)]
    begun, transfer, steps = [0.0, 0.0], 0.0, 40
    for step in range(steps):
        lag = [0.02 * (rank == step % 2) for rank in range(2)]
        called = [begun[rank] + COMPUTE_S + lag[rank] + coding_s for rank in range(2)]
        last = max(called)
        moved = [last + moves_s * (place + 1) / BUCKETS for place in range(BUCKETS)]
        begun = [
            [links[rank].arrives("all_reduce", round(sent / BUCKETS), called[rank], done) for done in moved][-1]
            for rank in range(2)
        ]
        transfer += max(begun) - last
    return 1e3 * max(begun) / steps, 1e3 * transfer / steps


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_steps_over_an_emulated_link_last_as_long_as_predicted(times: float) -> None:
    """At half and twice the break-even speed the order is as predicted too; at that speed both take as long."""
    whole, less, coding_s = 100e6, 25e6, 0.25
    even = (whole - less) * 8 / coding_s / 1e9
    found = []
    for sent, coding, moves_s in ((whole, 0.0, 0.04), (less, coding_s, 0.01)):
        alone, transfer = step_ms(sent, coding, None, moves_s)
        run = summary(step=alone, transfer=transfer, sent=sent / 1e6, raw=100, coding=1e3 * coding)
        emulated, _ = step_ms(sent, coding, even * times, moves_s)
        expected = predicted_ms([run], even * times)
        assert expected == pytest.approx(emulated, rel=0.10)
        found.append((expected, emulated))
    (plain, plain_found), (coded, coded_found) = found
    if times != 1.0:
        assert (coded < plain) == (coded_found < plain_found) == (times < 1)
    else:
        assert coded_found == pytest.approx(plain_found, rel=0.10)
