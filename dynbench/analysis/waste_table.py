"""Where the step time of each arm goes beyond its ideal, and whom its steps wait for, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynbench.analysis.metrics import lookup, mean
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.tables import format_value
from dynbench.analysis.waste import PARTS
from dynbench.table_text import MARKDOWN_WIDTH, Table

TITLE = "where the step time goes beyond the ideal"
HEADINGS: Mapping[str, str] = {
    "s": "times the ideal",
    "padding": "padding",
    "waiting": "waiting",
    "exposed_comm": "exposed comm.",
    "planning": "planning",
    "data": "data",
    "compute": "slower compute",
    "other": "other",
    "distinct": "slowest ranks",
    "most": "most often slowest",
    "equal": "if equal",
}
"""Key of a column to its heading, in English."""

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def waste_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm, means over its launches; shares of the step time, and of the steps.

    Args:
        launches: the arms.
        label: texts of a language.

    Returns:
        None where nothing is known of any arm.
    """
    rows = [[name, *_cells(summaries)] for name, summaries in launches.items()]
    if not any(any(cells) for _, *cells in rows):
        return None
    headings = [label("headings.arm", "arm"), *(heading(key, label) for key in HEADINGS)]
    shown = [place for place, key in enumerate(("arm", *HEADINGS)) if _tells(key, [row[place] for row in rows])]
    rows = [[row[place] for place in shown] for row in rows]
    return Table([headings[place] for place in shown], rows, label("waste.title", TITLE), width=MARKDOWN_WIDTH)


def _tells(key: str, cells: Sequence[str]) -> bool:
    """Whether a column is shown: times of an ideal that arms share, and what they differ from it by, where they do."""
    return key not in ("s", "compute") or any(cell not in ("", format_value(0.0, "%")) for cell in cells)


def heading(key: str, label: Label = in_english) -> str:
    """A column, or a part of the waste, in a language."""
    return label(f"waste.{key}", HEADINGS[key])


def mean_waste(summaries: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """The parts and `s`, which they add up to: means over the launches; without what one of them does not know."""
    found = {key: [lookup(summary, f"waste.{key}") for summary in summaries] for key in ("s", *PARTS)}
    known = {key: [value for value in values if value is not None] for key, values in found.items()}
    return {
        key: mean(f"waste.{key}", values) for key, values in known.items() if values and len(values) == len(summaries)
    }


def _cells(summaries: Sequence[Mapping[str, object]]) -> list[str]:
    waste, (distinct, most, equal) = mean_waste(summaries), _slowest(summaries)
    shares = [format_value(waste.get(part), "%") for part in PARTS]
    return [f"{waste['s']:.2f}" if "s" in waste else "", *shares, distinct, most, equal]


def _slowest(summaries: Sequence[Mapping[str, object]]) -> tuple[str, str, str]:
    """Ranks that were the slowest, the one that most often was, and the share that equal ranks would have."""
    told = [found for summary in summaries if isinstance(found := summary.get("slowest_ranks"), Mapping)]
    shares = [found["shares"] for found in told if None not in found["shares"]]
    if not shares or len({len(each) for each in shares}) > 1:
        return "", "", ""
    means = [fmean(launch) for launch in zip(*shares, strict=True)]
    servers = int((lookup(summaries[0], "world_size") or len(means)) - len(means))
    most = max(range(len(means)), key=means.__getitem__)
    slowest = sum(share > 0 for share in means)
    return (
        f"{slowest} / {len(means)}",
        f"rank {most + servers}: {format_value(means[most], '%')}",
        format_value(1 / len(means), "%"),
    )
