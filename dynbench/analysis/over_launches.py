"""An arm over its launches, each with a seed of its own: mean and standard deviation of what its result lines hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import polars as pl

from dynbench.analysis.metrics import lookup
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.record import MeanRecord
from dynbench.analysis.results_csv import COLUMNS as RESULT_COLUMNS
from dynbench.analysis.tables import format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

BY_ARM_FILE = "results_by_arm.csv"
"""In the folder of a comparison."""
COLUMNS = tuple(column.key for column in RESULT_COLUMNS if column.over_launches)
"""Of result lines, those that say how an arm does."""
SHOWN: Mapping[str, tuple[str, str]] = {
    "tokens_per_s": ("throughput", "real tokens/s"),
    "train_loss": ("training loss", ""),
    "val_loss": ("eval. loss", ""),
    "val_ppl": ("eval. perplexity", ""),
    "time_to_target_ppl_s": ("time to target", "s"),
    "ppl_at_fixed_time": ("at time budget", ""),
}
"""Of these, those of the table, with heading and unit."""
LEAST = 3
"""Launches from which on a spread says something."""
TITLE = "mean and standard deviation over launches"

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def over_launches(summaries: Sequence[Mapping[str, object]]) -> dict[str, MeanRecord]:
    """By column of `COLUMNS`, over the launches that have a number there; what none has is left out."""
    found = {}
    for column in COLUMNS:
        known = [value for each in summaries if (value := lookup(each, f"record.{column}")) is not None]
        numbers = [value for value in known if math.isfinite(value)]
        if numbers:
            sd = stdev(numbers) if len(numbers) > 1 else None
            found[column] = MeanRecord(mean=fmean(numbers), sd=sd, launches=len(numbers))
    return found


def by_arm_csv(launches: Launches) -> str:
    """A row per arm and column: mean, sd, launches."""
    rows = [
        {"arm": name, "column": column, **found.model_dump()}
        for name, summaries in launches.items()
        for column, found in over_launches(summaries).items()
    ]
    schema = {"arm": pl.String, "column": pl.String, "mean": pl.Float64, "sd": pl.Float64, "launches": pl.Int64}
    return pl.DataFrame(rows, schema=schema).write_csv()


def spread_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm; None where no arm compresses or has a target, or an arm has fewer launches than `LEAST`.

    Args:
        launches: the arms.
        label: texts of a language.
    """
    every = [summary for summaries in launches.values() for summary in summaries]
    asked = any(summary.get("compression") or summary.get("targets") for summary in every)
    if not asked or min(map(len, launches.values())) < LEAST:
        return None
    found = {name: over_launches(summaries) for name, summaries in launches.items()}
    columns = [column for column in SHOWN if any(column in arm for arm in found.values())]
    rows = [
        [name, *(_cell(arm.get(column), len(launches[name]), SHOWN[column][1]) for column in columns)]
        for name, arm in found.items()
    ]
    headings = [label("headings.arm", "arm"), *(_heading(column, label) for column in columns)]
    return Table(headings, rows, label("spread.title", TITLE), width=MARKDOWN_WIDTH)


def _heading(column: str, label: Label) -> str:
    text, unit = SHOWN[column]
    said = label(f"spread.{column}", text)
    return f"{said}\n({label(f'units.{unit}', unit)})" if unit else said


def _cell(found: MeanRecord | None, launches: int, unit: str) -> str:
    """`12.34 ± 0.05`, with how many launches have a number where not all do."""
    if found is None:
        return ""
    spread = f" ± {format_value(found.sd, unit)}" if found.sd is not None else ""
    some = f" ({found.launches}/{launches})" if found.launches < launches else ""
    return f"{format_value(found.mean, unit)}{spread}{some}"
