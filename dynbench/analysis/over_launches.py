"""An arm over its launches, each with a seed of its own: mean and standard deviation of what its result lines hold."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import polars as pl

from dynbench.analysis.metrics import Summaries, lookup
from dynbench.analysis.record import MeanRecord
from dynbench.analysis.results_csv import COLUMNS as RESULT_COLUMNS
from dynbench.analysis.tables import Launches

BY_ARM_FILE = "results_by_arm.csv"
"""In the folder of a comparison."""
COLUMNS = tuple(column.key for column in RESULT_COLUMNS if column.over_launches)
"""Of result lines, those that say how an arm does."""
LEAST = 3
"""Launches from which on a spread says something."""


def over_launches(summaries: Summaries) -> dict[str, MeanRecord]:
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
