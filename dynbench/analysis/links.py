"""How long steps would last over links of other speeds, predicted from what was measured.

A step of T, in which t_tr went to transfer, a part h of it beside other work, would last over a link of speed b, with V
bytes of all traffic,

    T(b) = T - (t_tr - h) + max(0, V / b - h)

so that what was hidden stays hidden and what a slower link takes longer is exposed, with nothing for its delay or for
collectives that disturb each other. A strategy that has more to hide it behind is faster than that. Compressing is
in T, so that the speeds over which a compressor pays follow from the same: there its T(b) is the smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from dynbench.analysis.measure import Launches, Summaries, lookup, measure
from dynbench.table_text import Label, format_value, in_english

SLOWEST_GBPS = 0.001
"""No slower link is looked at: arms whose bytes are all but equal cross at speeds that no link has."""
Span = tuple[float, float | None]
"""From one speed to another, Gb/s; None as the end is none."""
LEAST = 1e-9
"""Part of a step by which a shorter one is no rounding."""


def faster_gbps(arm: Summaries, baseline: Summaries) -> list[Span] | None:
    """Spans of speeds over which an arm's step is the shorter one, from slow links to fast; None where not known.

    A span that reaches `SLOWEST_GBPS` begins at 0. Both times are straight lines of 1/b that bend where more than was
    hidden is exposed: they are compared between all points at which one of them bends or the two cross.
    """
    steps, others = steps_of(arm), steps_of(baseline)
    if steps is None or others is None:
        return None

    def ahead(ms_per_byte: float) -> float:
        least = mean_ms(others, ms_per_byte)
        return least - mean_ms(steps, ms_per_byte) - LEAST * least

    end = _inverse(SLOWEST_GBPS)
    bends = (each.hidden_ms / each.sent for each in (*steps, *others) if each.sent)
    edges = sorted({0.0, end, *(bend for bend in bends if bend < end)})
    edges = sorted({*edges, *_crossings(ahead, edges)})
    spans: list[Span] = []
    for low, high in pairwise(edges):
        if ahead((low + high) / 2) <= 0:
            continue
        slowest, fastest = 0.0 if high == end else _inverse(high), _inverse(low) if low else None
        if spans and spans[-1][0] == fastest:
            spans[-1] = (slowest, spans[-1][1])
        else:
            spans.append((slowest, fastest))
    return spans[::-1]


def over_link(launches: Launches, gbps: float) -> dict[str, float]:
    """Each arm's predicted step over one link, ms, of those that can be predicted."""
    found = {name: predicted_ms(summaries, gbps) for name, summaries in launches.items()}
    return {name: ms for name, ms in found.items() if ms is not None}


def link_sentence(predicted: Mapping[str, float], gbps: float) -> str:
    """What `over_link` comes to, the quickest arm first."""
    link = f"a link of {gbps:g} Gb/s"
    if not predicted:
        return f"steps over {link} cannot be predicted: no arm's transfer is known"
    (quickest, least), *others = sorted(predicted.items(), key=lambda item: item[1])
    steps = [f"{name} {_cell(ms)} ms ({ms / least:.2f} times that)" for name, ms in others]
    return f"over {link}, predicted: " + ", ".join([f"a step of {quickest} takes {_cell(least)} ms", *steps])


def spans_text(spans: Sequence[Span] | None, label: Label = in_english) -> str:
    """Over which speeds, in words and Gb/s; empty where it is not known."""
    if spans is None:
        return ""
    texts = []
    for low, high in spans:
        slow, fast = _cell(low), _cell(high)
        if high is None:
            texts.append(label("links.above", "above …").replace("…", slow) if low else label("links.any", "any speed"))
        else:
            texts.append(f"{slow}–{fast}" if low else label("links.below", "below …").replace("…", fast))
    return ", ".join(texts) or label("links.no", "no speed")


def _crossings(ahead: Callable[[float], float], edges: Sequence[float]) -> list[float]:
    """Where a function that bends at no other points than `edges` is 0 between these."""
    found = []
    for low, high in pairwise(edges):
        start, rise = ahead(low), ahead(high) - ahead(low)
        point = low - start * (high - low) / rise if rise else low
        if low < point < high:
            found.append(point)
    return found


def _cell(value: float | None) -> str:
    return format_value(value, "")


SPEEDS_GBPS = (1, 10, 25, 100, 400)
"""Links that steps are predicted for, Gb/s."""
BYTES_PER_MS = 1e9 / 8 / 1e3
"""Of a link of 1 Gb/s."""


class Step(NamedTuple):
    """A run's mean step as the model has it.

    Attributes:
        apart_ms: without what of the transfer was exposed.
        hidden_ms: of the transfer.
        sent: bytes of all traffic.
    """

    apart_ms: float
    hidden_ms: float
    sent: float

    def over(self, ms_per_byte: float) -> float:
        """Its time over a link so slow."""
        return self.apart_ms + max(0.0, self.sent * ms_per_byte - self.hidden_ms)


def _step_of(summary: Mapping[str, object]) -> Step | None:
    """The step of a run; None where its transfer is not known."""
    step, transfer, hidden, sent = (
        lookup(summary, key)
        for key in ("step_time_ms.mean", "comm_transfer_ms.mean", "overlap_fraction", "bytes_wire.mean")
    )
    if step is None or transfer is None or sent is None:
        return None
    beside = transfer * (hidden or 0.0)
    return Step(step - (transfer - beside), beside, sent)


def predicted_ms(summaries: Summaries, gbps: float) -> float | None:
    """T(b) of an arm, mean over launches; None where the transfer of one is not known."""
    steps = steps_of(summaries)
    return None if steps is None else mean_ms(steps, _inverse(gbps))


def steps_of(summaries: Summaries) -> list[Step] | None:
    """The steps of an arm; None where that of one launch is not known."""
    known = [step for each in summaries if (step := _step_of(each)) is not None]
    return known if known and len(known) == len(summaries) else None


def mean_ms(steps: Sequence[Step], ms_per_byte: float) -> float:
    """Over a link so slow, mean over launches."""
    return fmean(step.over(ms_per_byte) for step in steps)


def _inverse(speed: float) -> float:
    """Ms per byte of a link of so many Gb/s, and the other way round."""
    return 1 / (speed * BYTES_PER_MS)


def over_speeds(summaries: Summaries) -> dict[str, float | None]:
    """T(b) of an arm by the speeds `SPEEDS_GBPS`."""
    return {f"{speed}": predicted_ms(summaries, speed) for speed in SPEEDS_GBPS}


class Links:
    """Predicted from what was measured."""

    predicted_ms: dict[str, float | None] = measure(lambda at: over_speeds([at.summary]))
    """By speed of the link in Gb/s the step time; null where the transfer is not known."""
