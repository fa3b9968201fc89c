"""The summary of a run: one object, and the same as a table.

Every statistic is over complete steps after the warm-up. A step lasts the maximum over ranks; a run's time is that of
its contiguous blocks of steps, each the maximum over ranks (`steps`); throughput and fractions are ratios of totals
over that time; planning and data are inside it. Times in ms, memory in MB (1e6 bytes).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbench.analysis import tables
from dynbench.analysis.measure import Measured, computed
from dynbench.analysis.measures import MEASURES
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.page import write_page
from dynbench.analysis.profile import profile_rows
from dynbench.analysis.record import Finding
from dynbench.analysis.results_csv import RESULTS_FILE, record_of, results_csv
from dynbench.errors import RecordError
from dynbench.runs.atomic import read_json, write_json, write_text
from dynbench.runs.run import Run
from dynbench.table_text import csv_text

log = logging.getLogger(__name__)

Summary = dict[str, object]

PROFILE_CSV = "profile.csv"
"""What profiled steps went to, by arm, phase and operation."""
CHECKS_FILE = "checks.json"
"""What the checks found on a single run; a comparison holds its own."""


def summarise(run: Run, *, csv: bool | None = None) -> Summary:
    """Merges a run and writes summary.json, summary.csv and summary.md into its folder.

    Args:
        run: any run with at least one row; what is missing is named under `missing`.
        csv: as for `merge_run`.

    Raises:
        RecordError: no row of the run can be read.
    """
    return write_summary(merge_run(run, csv=csv))


def write_summary(merged: MergedRun) -> Summary:
    """As `summarise`, for a run already merged."""
    summary = summary_of(merged)
    folder = merged.run.path
    write_json(folder / "summary.json", summary)
    write_text(folder / RESULTS_FILE, results_csv([summary]))
    write_text(folder / "summary.csv", tables.summary_rows({merged.label: summary}).write_csv())
    write_profile(folder, {merged.label: [summary]})
    write_page(merged, summary, _recorded_findings(folder))
    return summary


def write_profile(folder: Path, launches: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Writes profile.csv, where steps of an arm were profiled."""
    rows = profile_rows(launches)
    if rows:
        write_text(folder / PROFILE_CSV, csv_text(rows))


def summary_of(merged: MergedRun) -> Summary:
    """The measures of a run, and its line of results.csv as `record`; absent facts are None."""
    at = Measured(merged)
    return {**computed(MEASURES, at), "record": record_of(at)}


@dataclass
class _Checks:
    checks: list[Finding]


def read_checks(folder: Path) -> list[Finding]:
    """What the checks found on a single run.

    Raises:
        RecordError: its file cannot be read.
    """
    return read_json(folder / CHECKS_FILE, _Checks, "Make it again with dynbench analyze.").checks


def _recorded_findings(folder: Path) -> list[Finding] | None:
    """None where the run was not analyzed by itself, or where what the checks found cannot be read."""
    if not (folder / CHECKS_FILE).is_file():
        return None
    try:
        return read_checks(folder)
    except RecordError as error:
        log.warning("%s; summary.md goes without it", error.message)
        return None
