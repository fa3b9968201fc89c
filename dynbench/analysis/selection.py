"""Which runs an analysis is of: runs of the registry, a comparison again, or those of an exported file.

A comparison keeps what was run and where in `runs.json`, so that its folder, copied alone, still says it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dynbench.analysis.arms import NOT_IDENTITY_OF_ARM
from dynbench.analysis.communication import null_run
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.rank_files import find_rank_files
from dynbench.analysis.record import COMPARISON_FILE, read_analysis
from dynbench.config.schema import config_digest, flatten
from dynbench.errors import RecordError, RunLookupError, UsageError, unknown_name
from dynbench.runs.atomic import load_json, write_json
from dynbench.runs.export import EXPORT_FILE, Export, Manifest, open_export, record_files, write_export
from dynbench.runs.probe_record import PROBE_FILE
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, check_own_files, results_option

Baseline = tuple[str, Sequence[Run]]
"""Label and launches of a stored arm."""
_WITH_ROWS = ("train",)
"""Commands whose entries hold rank files."""

_EXPORT_SUFFIX = ".zip"


@dataclass(frozen=True)
class Selection:
    """What an analysis is of.

    Attributes:
        runs: the runs, where no arms are named.
        arms: label to launches, the baseline first; None groups the runs by configuration.
        baseline: label and launches of a stored arm that all others are compared with.
        into: the comparison that is analyzed again; None for a new analysis.
        export: the file that some of the runs come from.
        question: what that comparison, or the one that was exported, asks.
        first: launches of its first stage, where that said how many follow.
    """

    runs: Sequence[Run] = ()
    arms: Mapping[str, Sequence[Run]] | None = None
    baseline: Baseline | None = None
    into: Run | None = None
    export: Export | None = None
    question: str | None = None
    first: int | None = None

    @property
    def live(self) -> list[Run]:
        """All runs but those of the stored baseline."""
        return [run for launches in self.arms.values() for run in launches] if self.arms else list(self.runs)


@contextmanager
def select_runs(
    refs: Sequence[str], store: RunStore, against: Path | None = None, arm: str | None = None
) -> Iterator[Selection]:
    """What the references mean; runs of exported files are there as long as the context lasts.

    Args:
        refs: runs, one comparison, or one exported file.
        store: where they are.
        against: exported file whose runs are the baseline.
        arm: its arm, where it holds several.

    Raises:
        RunLookupError: a reference means nothing, or a run of a comparison is gone.
        RecordError: a file that cannot be used.
        UsageError: what cannot be asked together.
    """
    if arm is not None and against is None:
        raise UsageError(
            f"--arm {arm}: names an arm of --against FILE, which is not given", "Add it, or leave --arm out."
        )
    with ExitStack() as opened:
        files = [ref for ref in refs if _is_file(ref)]
        if files and (len(refs) > 1 or against is not None):
            raise UsageError(f"{files[0]}: is a file, and stands for all runs that are analyzed", _COMPARE_FILES)
        if files:
            export = opened.enter_context(open_export(Path(files[0])))
            arms, about = dict(export.arms or {}), export.manifest
            several = len(arms) > 1 and about.stored in arms
            baseline = (about.stored, arms.pop(about.stored)) if several and about.stored else None
            yield Selection(export.runs, arms or None, baseline, None, export, about.question, about.first_stage)
            return
        entries = [store.resolve(ref) for ref in refs]
        again = entries[0] if len(entries) == 1 and (entries[0].path / COMPARISON_FILE).is_file() else None
        chosen = Selection(entries) if again is None else opened.enter_context(_of_comparison(again, store))
        if against is not None:
            if chosen.export is not None:
                raise UsageError(
                    f"{refs[0]}: was made of an exported file itself", "Name the runs to compare with FILE."
                )
            export = opened.enter_context(open_export(against))
            baseline = _baseline(export, chosen.live, arm)
            chosen = replace(chosen, baseline=baseline, into=None, export=export, first=None)
        yield chosen


def export_runs(refs: Sequence[str], store: RunStore, path: Path, arm: str | None = None) -> tuple[list[Run], bool]:
    """Writes everything that comparing the runs needs into one file.

    Args:
        refs: runs, or one comparison.
        store: where they are.
        path: the file; replaced where it exists.
        arm: the arm of the comparison to export alone.

    Returns:
        The runs exported, and whether they are of one arm, which runs can be compared with by `--against`.

    Raises:
        RunLookupError, RecordError: as `select_runs`; or there is no such arm, or a run is not over.
        UsageError: what is no training run, or a file that cannot be written.
    """
    with select_runs(refs, store) as chosen:
        arms: Mapping[str, Sequence[Run]] | None = chosen.arms
        if chosen.baseline is not None:
            arms = dict([chosen.baseline, *(arms or {}).items()])
        if arm is not None:
            arms = {arm: _arm(arm, arms, ", ".join(refs))}
        folders = run_folders([run for launches in arms.values() for run in launches] if arms else chosen.runs)
        for run, *_ in folders:
            if not run.status.is_over:
                raise RunLookupError(f"run {run.label}: is {run.status}", "Export it when it has ended.")
        files = {run.id: _files([run, *elsewhere]) for run, *elsewhere in folders}
        beside = {
            probe.id: record_files(probe)
            for run, *_ in folders
            for probe in named_probes(flatten(run.config()), run.path.parent)
        }
        null_runs = (null_run(run) for run, *_ in folders)
        beside |= {run.id: _files([run]) for run in null_runs if run is not None and run.id not in files}
        labels = None if arms is None else {name: [run.id for run in launches] for name, launches in arms.items()}
        stored = chosen.baseline[0] if chosen.baseline else None
        question, first = (chosen.question, chosen.first) if arm is None else (None, None)
        manifest = Manifest(runs=[*files], arms=labels, stored=stored, question=question, first_stage=first)
        write_export(path, manifest, {**beside, **files})
        runs = [run for run, *_ in folders]
        return runs, len(arms or ()) <= 1 and _of_one_arm(runs)


_COMPARE_FILES = "To compare runs with it: dynbench analyze RUN... --against FILE."


def _is_file(ref: str) -> bool:
    return (os.sep in ref or ref.endswith(_EXPORT_SUFFIX)) and Path(ref).is_file()


@contextmanager
def _of_comparison(entry: Run, store: RunStore) -> Iterator[Selection]:
    """The arms of an earlier comparison, so that it can be analyzed again in its own folder.

    Raises:
        RecordError: its comparison.json cannot be read.
        RunLookupError: one of its runs is gone.
    """
    record = read_analysis(entry.path)
    with ExitStack() as opened:
        stored_file = entry.path / EXPORT_FILE
        export = opened.enter_context(open_export(stored_file)) if stored_file.is_file() else None
        stored = {run.id: run for run in export.runs} if export else {}
        arms: dict[str, list[Run]] = {}
        baseline: Baseline | None = None
        for arm in record.arms:
            runs = [stored.get(run_id) or _still_there(store, entry, run_id) for run_id in arm.runs]
            if arm.stored:
                baseline = arm.name, runs
            else:
                arms[arm.name] = runs
        first = next((item.first_stage for item in record.comparisons), None)
        yield Selection((), arms, baseline, entry, export, record.question, first)


def _still_there(store: RunStore, entry: Run, run_id: str) -> Run:
    beside = Run(entry.path.parent / run_id)
    if beside.record_file.is_file():
        check_own_files(beside.path)
        return beside
    try:
        return store.resolve(run_id)
    except RunLookupError as error:
        raise RunLookupError(
            f"{entry.label}: its run {run_id} is not here, so it cannot be analyzed again",
            f"dynbench report {shlex.quote(str(entry.path))} needs the folder alone; where the runs are, dynbench runs "
            "export takes them along.",
        ) from error


def _baseline(export: Export, candidates: Sequence[Run], arm: str | None) -> Baseline:
    """Label and launches of the one arm of a file that runs are compared with.

    Raises:
        UsageError: it holds several, or a run that is also a candidate.
    """
    name = str(export.path)
    if arm is not None:
        runs = _arm(arm, export.arms, name)
    elif export.arms is not None and len(export.arms) > 1:
        raise UsageError(
            f"--against {name}: holds the arms {', '.join(export.arms)}", f"Say which: --arm {next(iter(export.arms))}."
        )
    else:
        runs = export.runs
    if not _of_one_arm(runs):
        raise UsageError(
            f"--against {name}: its runs are no launches of one arm, their configurations differ",
            "Export the launches of one arm: dynbench runs export REF... -o FILE.",
        )
    if both := {run.id for run in runs} & {run.id for run in candidates}:
        raise UsageError(
            f"--against {name}: holds run {sorted(both)[0]}, which is to be compared with it", "Name other runs."
        )
    return label_of(export.path), runs


def _of_one_arm(runs: Sequence[Run]) -> bool:
    return len({config_digest(run.config(), NOT_IDENTITY_OF_ARM) for run in runs}) <= 1


def label_of(file: Path) -> str:
    """What the arm of a file is called: the file's name, as far as a run may have it. An analysis has one file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._")[:64] or "stored"


def _arm(arm: str, arms: Mapping[str, Sequence[Run]] | None, where: str) -> Sequence[Run]:
    if arms is None:
        raise UsageError(f"--arm {arm}: {where} names no arms", "Leave --arm out.")
    if arm not in arms:
        raise unknown_name(f"--arm {arm}: no such arm in {where}", arm, arms, "There are")
    return arms[arm]


def _files(folders: Sequence[Run]) -> dict[str, Path]:
    """The files of a run, whose nodes may each have left a folder, and the times of its calls where it kept them.

    Raises:
        RecordError: it has no rows, or no configuration.
    """
    files = {name: path for folder in reversed(folders) for name, path in record_files(folder).items()}
    ranks = find_rank_files(*(folder.ranks_dir for folder in folders))
    places = [(folder, rank) for folder in reversed(folders) for rank in ranks]
    written = (path for folder, rank in places for path in (folder.calls_file(rank), folder.profile_file(rank)))
    beside = (*ranks.values(), *(path for path in written if path.is_file()))
    if not ranks:
        raise RecordError(f"run {folders[0].label}: has no rank files", "Only runs that wrote rows can be compared.")
    folders[0].config()
    return files | {f"{path.parent.name}/{path.name}": path for path in beside}


def run_folders(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs, each with the folders that belong to it: several when its nodes did not share one.

    Raises:
        UsageError: the same folder twice, or one that holds no training run.
    """
    folders: dict[str, list[Run]] = {}
    for run in runs:
        of_run = folders.setdefault(run.id, [])
        if any(run.path.resolve() == other.path.resolve() for other in of_run):
            raise UsageError(
                f"run {run.label} is named twice", "Name every run once; an arm's launches are several runs."
            )
        command = run.record().command
        if command not in _WITH_ROWS:
            raise UsageError(
                f"run {run.label} is an entry of `{command}`, analyze reads training runs",
                f"dynbench runs show {shlex.quote(run.label)}{results_option(run.path.parent)} says what it is of.",
            )
        of_run.append(run)
    return list(folders.values())


RUNS_FILE = "runs.json"

_PROBE_KEYS = ("probe.run", "schedule.capacity")


def keep_runs(folder: Path, runs: Iterable[MergedRun]) -> None:
    """Writes configuration, environment and status of the runs, and the probes that they used, into a folder."""
    members = list(runs)
    probes = {
        probe.id: record
        for merged in members
        for probe in named_probes(flatten(merged.facts.config), merged.run.path.parent)
        if (record := keep_probe(probe))
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
