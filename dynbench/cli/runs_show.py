"""What `dynbench runs show` says of one entry of the registry."""

from __future__ import annotations

import logging
import shlex
from typing import Any

from dynbench.cli.next_command import next_command
from dynbench.cli.output import brief, print_line, print_pairs
from dynbench.config.digest import differences
from dynbench.config.schema import Config
from dynbench.errors import RecordError
from dynbench.runs.run import Run, current_status, duration_s
from dynbench.runs.store import RunStore
from dynbench.units import format_bytes, format_ms

_log = logging.getLogger(__name__)
OF_ITS_COMPARISONS = "that of its comparisons; dynbench runs show says it of each"
OF_ITS_RUNS = "that of its runs; dynbench runs show says it of each"


def shown_duration(seconds: object) -> str:
    """Seconds in a readable unit; empty where they are unknown."""
    return format_ms(seconds * 1000) if isinstance(seconds, int | float) else ""


def facts_of(run: Run) -> dict[str, Any]:
    """Everything that a run folder says about itself; parts that cannot be read say why instead."""
    record = run.record()
    facts: dict[str, Any] = {
        "run": record.as_dict() | {"status": current_status(record), "path": run.path, "duration_s": duration_s(record)}
    }
    facts |= _comparison_facts(run)
    gathers = record.command in ("analyze", "compare")
    try:
        facts["config_differences"] = {
            key: {"default": default, "value": value}
            for key, (default, value) in differences(Config(), run.config()).items()
        }
    except RecordError as error:
        facts["config_differences"], facts["config_error"] = None, error.message
        if "cells" in facts:
            facts["config_error"] = OF_ITS_COMPARISONS
        elif gathers:
            facts["config_error"] = OF_ITS_RUNS
    try:
        facts["env"] = run.env()
    except RecordError as error:
        facts["env"], facts["env_error"] = None, error.message
        if gathers:
            facts["env_error"] = OF_ITS_RUNS
    facts["files"] = [
        {"path": str(path.relative_to(run.path)), "bytes": path.stat().st_size}
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]
    return facts


def _comparison_facts(run: Run) -> dict[str, object]:
    """The runs by arm and the verdicts of a comparison, and what comes next; empty for any other entry."""
    from dynbench.analysis.record import read_analysis  # with numpy

    root = run.path.parent
    try:
        if (run.path / "cells.json").is_file():
            return _cells_facts(run)
        if (run.path / "comparison.json").is_file():
            found = read_analysis(run.path)
            return {
                "arms": {arm.name: arm.runs for arm in found.arms},
                "verdicts": {item.candidate: f"{item.verdict}: {item.reason}" for item in found.comparisons},
                "next": next_command("report", run.label, root=root),
            }
        if (run.path / "compare.json").is_file():
            from dynbench.experiment.state import read_state

            resume = next_command("compare", "--resume", run.label, root=root)
            return {"arms": read_state(run.path).arms, "verdicts": {}, "next": resume}
    except RecordError as error:
        _log.warning("%s: the comparison cannot be read: %s", run.path, error.message)
    return {}


def _cells_facts(run: Run) -> dict[str, object]:
    """The comparisons that a folder is over, each with what sets it apart and how it stands."""
    from dynbench.experiment.cells import read_cells  # with all of analysis

    store = RunStore(run.path.parent)
    cells = [(cell, store.root / cell.comparison) for cell in read_cells(run)]
    states = [store.resolve(cell.comparison).status if path.is_dir() else "removed" for cell, path in cells]
    open_ones = any(state != "completed" for state in states)
    words = ("compare", "--resume", run.label) if open_ones else ("report", cells[0][0].comparison)
    return {
        "cells": [
            {"settings": cell.settings, "comparison": cell.comparison, "status": state}
            for (cell, _), state in zip(cells, states, strict=True)
        ],
        "next": next_command(*words, root=store.root),
    }


def print_facts(facts: dict[str, Any]) -> None:
    """Print what `facts_of` found."""
    run = facts["run"]
    failure = run.pop("failure")
    warnings = run.pop("warnings")
    run["argv"] = shlex.join(run["argv"])
    run["duration_s"] = shown_duration(run["duration_s"])
    print_pairs("run", {key.removesuffix("_s"): value for key, value in run.items() if value not in (None, "")})
    if failure:
        print_pairs("failure", {key: value for key, value in failure.items() if value is not None})
    for warning in warnings:
        print_line(f"warning: {warning}")
    title = "configuration"
    if "cells" in facts:
        texts = {item["comparison"]: f"{item['status']}  {brief(item['settings'])}" for item in facts["cells"]}
        print_pairs("comparisons", texts)
    if "arms" in facts:
        title = "configuration of the baseline"
        print_pairs("runs by arm", {name: ", ".join(ids) or "none completed" for name, ids in facts["arms"].items()})
        print_pairs("verdicts", facts["verdicts"] or {"": "not analyzed yet"})
    changed = facts["config_differences"]
    if changed is not None:
        texts = {key: f"{brief(item['value'])}  (default {brief(item['default'])})" for key, item in changed.items()}
        print_pairs(f"{title}, where it leaves the defaults", texts or {"": "nowhere"})
    else:
        print_line(f"configuration: {facts['config_error']}")
    if facts["env"] is not None:
        print_pairs(
            "environment", {key: brief(value) for key, value in facts["env"].items() if value not in (None, {}, "")}
        )
    else:
        print_line(f"environment: {facts['env_error']}")
    print_pairs("files", {item["path"]: format_bytes(item["bytes"]) for item in facts["files"]})
    if "next" in facts:
        print_line(f"next  {facts['next']}")
