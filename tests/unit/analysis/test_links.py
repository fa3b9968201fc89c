"""The speed of a link below which compression pays, and steps over links of other speeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dynbench.analysis.links import SPEEDS_GBPS, break_even_gbps, links_table, predicted_ms
from dynbench.analysis.summary import summarise
from dynbench.report import load_template
from dynbench.runs.run import Run
from dynbench.wire.link import Arrivals

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


def test_compression_pays_below_the_speed_at_which_both_take_as_long() -> None:
    even = break_even_gbps(CODED)
    assert even == pytest.approx(75e6 * 8 / 0.040 / 1e9), "15 Gb/s"
    assert break_even_gbps(PLAIN) is None
    assert predicted_ms(PLAIN, even) == pytest.approx(predicted_ms(CODED, even)), "80 ms of other work in both"
    for speed in (even / 2, even * 2):
        assert (predicted_ms(CODED, speed) < predicted_ms(PLAIN, speed)) == (speed < even)


def test_what_saves_nothing_pays_nowhere() -> None:
    assert break_even_gbps(summary(130, 10, sent=110, raw=100, coding=40)) == 0


@pytest.mark.parametrize(("hidden", "gbps", "expected"), [(0, 10, 160), (0.75, 10, 160), (0, 400, 82), (0.75, 400, 95)])
def test_what_was_hidden_stays_hidden(hidden: float, gbps: float, expected: float) -> None:
    """100 MB take 80 ms over 10 Gb/s and 2 ms over 400; of the 20 ms of transfer, the hidden ones cost nothing."""
    assert predicted_ms(summary(100, 20, 100, 100, hidden=hidden), gbps) == pytest.approx(expected)


def test_of_a_run_that_times_no_transfer_nothing_is_predicted(make_run: Make) -> None:
    found = summarise(make_run("static"))["links"]
    assert found == {"break_even_gbps": None, "predicted_ms": {f"{speed}": None for speed in SPEEDS_GBPS}}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_says_who_is_fastest_over_which_link(language: str) -> None:
    label = load_template(language).label
    table = links_table({"none": [PLAIN, PLAIN], "int8": [CODED]}, label)
    assert table is not None
    *arms, fastest = table.rows
    assert [row[0] for row in arms] == ["none", "int8"] and arms[1][1] == "15.000"
    assert list(fastest[2:]) == ["int8", "int8", "none", "none", "none"]
    assert links_table({"none": [PLAIN]}, label) is None


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
        expected = predicted_ms(run, even * times)
        assert expected == pytest.approx(emulated, rel=0.10)
        found.append((expected, emulated))
    (plain, plain_found), (coded, coded_found) = found
    if times != 1.0:
        assert (coded < plain) == (coded_found < plain_found) == (times < 1)
    else:
        assert coded_found == pytest.approx(plain_found, rel=0.10)
