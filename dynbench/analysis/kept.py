"""What a comparison keeps of its runs, `runs.json`: its folder, copied alone, still says what was run and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dynbench.analysis.merge import MergedRun
from dynbench.config.digest import flatten
from dynbench.errors import RecordError
from dynbench.runs.atomic import load_json, write_json
from dynbench.runs.probe_record import PROBE_FILE
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import Run

RUNS_FILE = "runs.json"

_PROBE_KEYS = ("probe.run", "schedule.capacity")


def keep_runs(folder: Path, runs: Iterable[MergedRun]) -> None:
    """Writes configuration, environment and status of the runs, and the probes that they used, into a folder."""
    members = list(runs)
    probes = {
        probe.id: kept
        for merged in members
        for probe in named_probes(flatten(merged.facts.config), merged.run.path.parent)
        if (kept := keep_probe(probe))
    }
    records = {
        merged.run.id: {
            "status": merged.facts.status,
            "started": merged.facts.started,
            "config": flatten(merged.facts.config),
            "env": merged.facts.env,
        }
        for merged in members
    }
    write_json(folder / RUNS_FILE, {"schema_version": SCHEMA_VERSION, "runs": records, "probes": probes})


def named_probes(config: Mapping[str, object], root: Path) -> list[Run]:
    """Folders of the probes that a resolved configuration names, of those that are in the registry `root`."""
    names = dict.fromkeys(name for key in _PROBE_KEYS if isinstance(name := config.get(key), str))
    return [Run(root / name) for name in names if (root / name / PROBE_FILE).is_file()]


def keep_probe(probe: Run) -> dict[str, object] | None:
    """A probe's record and configuration; None where they cannot be read."""
    try:
        record = load_json(probe.path / PROBE_FILE)
        return {"record": record, "config": flatten(probe.config())}
    except (OSError, ValueError, RecordError):
        return None
