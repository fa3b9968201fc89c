"""Over links of which speeds an arm's step is shorter than another's, by the model of `link_model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from dynbench.analysis.link_model import SPEEDS_GBPS, gbps_of, mean_ms, ms_per_byte_of, predicted_ms, steps_of
from dynbench.analysis.measure import Summaries
from dynbench.analysis.record import LinksRecord, Span
from dynbench.analysis.tables import Label, Launches, format_value, in_english

SLOWEST_GBPS = 0.001
"""No slower link is looked at: arms whose bytes are all but equal cross at speeds that no link has."""
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

    end = ms_per_byte_of(SLOWEST_GBPS)
    bends = (each.hidden_ms / each.sent for each in (*steps, *others) if each.sent)
    edges = sorted({0.0, end, *(bend for bend in bends if bend < end)})
    edges = sorted({*edges, *_crossings(ahead, edges)})
    spans: list[Span] = []
    for low, high in pairwise(edges):
        if ahead((low + high) / 2) <= 0:
            continue
        slowest, fastest = 0.0 if high == end else gbps_of(high), gbps_of(low) if low else None
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


def arm_links(summaries: Summaries, baseline: Summaries) -> LinksRecord:
    """What is known of an arm, means over launches; None for what some launch does not know."""
    predicted = {f"{speed}": predicted_ms(summaries, speed) for speed in SPEEDS_GBPS}
    return LinksRecord(faster_gbps=faster_gbps(summaries, baseline), predicted_ms=predicted)


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
