"""Below which speed of a link compression pays, and how long a step would last over links of some speeds.

A compressor that takes t to write and read what it sends, W_c bytes in place of W, pays over links slower than

    BW* = (W - W_c) / t

(of what a rank sends in a step). A step of T, in which t_tr went to transfer, a part h of it beside other work, would
last over a link of speed b, with V bytes of all traffic,

    T(b) = T - (t_tr - h) + max(0, V / b - h)

so that what was hidden stays hidden and what a slower link takes longer is exposed, with nothing for its delay or for
collectives that disturb each other. A strategy that has more to hide it behind is faster than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynbench.analysis.metrics import lookup
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.record import LinksRecord
from dynbench.analysis.tables import format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

SPEEDS_GBPS = (1, 10, 25, 100, 400)
"""Links that steps are predicted for, Gb/s."""
TITLE = "steps over links of other speeds, predicted from what was measured, ms"
_BYTES_PER_MS = 1e9 / 8 / 1e3
"""Of a link of 1 Gb/s."""

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def links_of(summary: Mapping[str, object]) -> dict[str, object]:
    """The `links` object of a summary; None for what is not known of the run."""
    predicted = {f"{speed}": predicted_ms(summary, speed) for speed in SPEEDS_GBPS}
    return {"break_even_gbps": break_even_gbps(summary), "predicted_ms": predicted}


def break_even_gbps(summary: Mapping[str, object]) -> float | None:
    """BW* in Gb/s, of steps that are compressed; 0 where nothing is saved, None of a run that compresses nothing."""
    raw, ratio = lookup(summary, "gradient_bytes_raw.mean"), lookup(summary, "compression_ratio")
    spent = [lookup(summary, f"compression.{name}") for name in ("compress_ms", "decompress_ms")]
    ms = sum(each for each in spent if each is not None)
    if raw is None or not ratio or ms <= 0:
        return None
    return max(0.0, raw - raw / ratio) / ms / _BYTES_PER_MS


def predicted_ms(summary: Mapping[str, object], gbps: float) -> float | None:
    """T(b) of a run, mean over its steps; None where its transfer is not known."""
    step, transfer, hidden, sent = (
        lookup(summary, key)
        for key in ("step_time_ms.mean", "comm_transfer_ms.mean", "overlap_fraction", "bytes_wire.mean")
    )
    if step is None or transfer is None or sent is None:
        return None
    beside = transfer * (hidden or 0.0)
    return step - (transfer - beside) + max(0.0, sent / (gbps * _BYTES_PER_MS) - beside)


def links_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm, means over launches, and which arm is fastest over which link; None where no arm compresses.

    Args:
        launches: the arms.
        label: texts of a language.
    """
    found = {name: arm_links(summaries) for name, summaries in launches.items()}
    if all(arm.break_even_gbps is None for arm in found.values()):
        return None
    rows = [
        [name, _cell(arm.break_even_gbps), *(_cell(ms) for ms in arm.predicted_ms.values())]
        for name, arm in found.items()
    ]
    if len(found) > 1:
        fastest = [
            _fastest({name: arm.predicted_ms[f"{speed}"] for name, arm in found.items()}) for speed in SPEEDS_GBPS
        ]
        rows.append([label("links.fastest", "fastest"), "", *fastest])
    pays = label("links.pays_below", "pays below")
    columns = [label("headings.arm", "arm"), f"{pays}\n(Gb/s)", *(f"{speed} Gb/s" for speed in SPEEDS_GBPS)]
    return Table(columns, rows, label("links.title", TITLE), width=MARKDOWN_WIDTH)


def arm_links(summaries: Sequence[Mapping[str, object]]) -> LinksRecord:
    """What is known of an arm, means over launches; None for what some launch does not know."""
    predicted = {f"{speed}": _mean([predicted_ms(each, speed) for each in summaries]) for speed in SPEEDS_GBPS}
    return LinksRecord(break_even_gbps=_mean([break_even_gbps(each) for each in summaries]), predicted_ms=predicted)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _cell(value: float | None) -> str:
    return format_value(value, "")


def _fastest(times: Mapping[str, float | None]) -> str:
    """The arm of the least time, of those that are known."""
    known = {name: ms for name, ms in times.items() if ms is not None}
    return min(known, key=known.__getitem__) if known else ""
