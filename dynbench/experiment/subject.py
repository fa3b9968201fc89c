"""What a report is about: a comparison with its runs, or one run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynbench.analysis.analyze import COMPARISON_FILE
from dynbench.analysis.metrics import lookup
from dynbench.analysis.summary import CHECKS_FILE, summarise
from dynbench.errors import RecordError, RunLookupError
from dynbench.experiment.state import STATE_FILE, CompareState, read_state
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, results_option

Json = Mapping[str, object]


@dataclass(frozen=True)
class Member:
    """One run of the subject; `run` is None when its folder is gone."""

    id: str
    label: str
    summary: Json
    run: Run | None


@dataclass(frozen=True)
class Subject:
    """A comparison or a single run, as read from its folder.

    Attributes:
        run: the folder.
        arms: members by arm, the baseline's first.
        state: the launches of `compare`; None for other subjects.
        comparisons: one object per candidate arm, as `analyze --json` prints them.
        checks: what the checks found; None when none were recorded.
        figures: PNG files that exist.
    """

    run: Run
    arms: Mapping[str, Sequence[Member]]
    state: CompareState | None = None
    comparisons: Sequence[Json] = ()
    checks: Sequence[Json] | None = None
    figures: Sequence[Path] = field(default_factory=tuple)

    @property
    def baseline(self) -> str:
        """Name of the first arm."""
        return next(iter(self.arms))

    @property
    def virtual(self) -> bool:
        """Whether the ranks of a run were virtual."""
        return any(member.summary.get("launcher") == "virtual" for arm in self.arms.values() for member in arm)

    @property
    def best(self) -> Json | None:
        """The fastest of those found FASTER; without one the largest speed-up, of what could be compared if any was.

        Arms configured as the baseline is are left out: what they differ by is noise.
        """
        return max((item for item in self.comparisons if not item.get("aa")), key=_merit, default=None)

    @property
    def best_alike(self) -> Json | None:
        """The fastest found FASTER on the baseline's own samples, where the best draws others in a step; else None."""
        best = self.best
        if best is None or best.get("verdict") != "FASTER" or best.get("level") != "stream":
            return None
        alike = [item for item in self.comparisons if item.get("level") in ("step", "window")]
        return max((item for item in alike if item.get("verdict") == "FASTER"), key=_merit, default=None)


def _merit(comparison: Json) -> tuple[bool, bool, float]:
    verdict = comparison.get("verdict")
    return verdict == "FASTER", verdict != "INCOMPARABLE", _number(comparison.get("speedup"))


def mean_of(members: Sequence[Member], key: str) -> float | None:
    """Mean over whole runs of a number in their summaries, by its dotted key; None where no run has it.

    Where every run is partial, over those.
    """
    whole = [member for member in members if not member.summary.get("partial")] or members
    values = [value for member in whole if (value := lookup(member.summary, key)) is not None]
    return sum(values) / len(values) if values else None


def find_subject(store: RunStore, reference: str | None) -> Subject:
    """The subject of a reference, or the latest comparison.

    Raises:
        RunLookupError: the reference means nothing, or there is no comparison yet.
        RecordError: the folder holds neither a comparison nor rows.
    """
    return read_subject(store, latest_comparison(store) if reference is None else store.resolve(reference))


def latest_comparison(store: RunStore) -> Run:
    """The youngest entry of the registry that holds a comparison.

    Raises:
        RunLookupError: there is none.
    """
    for run in reversed(store.list()):
        if (run.path / COMPARISON_FILE).is_file():
            return run
    raise RunLookupError(
        f"no comparison in {store.root}",
        "Make one: dynbench compare recipes/quickstart.yaml, or dynbench analyze RUN_A RUN_B.",
    )


def read_subject(store: RunStore, run: Run) -> Subject:
    """Read a comparison, or a single run, from its folder.

    Raises:
        RecordError: it holds neither.
    """
    if not (run.path / COMPARISON_FILE).is_file():
        return _single(run)
    data = _read_object(run.path / COMPARISON_FILE)
    members = {str(item["id"]): _member(store, item) for item in _objects(data.get("runs"))}
    arms = {str(arm["name"]): _chosen(members, arm) for arm in _objects(data.get("arms"))}
    arms = {name: chosen for name, chosen in arms.items() if chosen}
    if not arms:
        raise RecordError(f"{run.path / COMPARISON_FILE}: names no run", "Make it again with dynbench analyze.")
    return Subject(
        run,
        arms,
        read_state(run.path) if (run.path / STATE_FILE).is_file() else None,
        _objects(data.get("comparisons")),
        _objects(data.get("checks")),
        _existing(run, [Path(str(path)) for path in _list(data.get("figures"))]),
    )


def _single(run: Run) -> Subject:
    if (run.path / STATE_FILE).is_file():
        raise RecordError(
            f"{run.path}: the comparison is {run.status} and was not analyzed",
            f"Go on with: dynbench compare --resume {shlex.quote(run.label)}{results_option(run.path.parent)}",
        )
    if not run.ranks_dir.is_dir() or not any(run.ranks_dir.iterdir()):
        raise RecordError(
            f"{run.path}: holds neither a comparison nor the rows of a run",
            "Report on a comparison or a training run; dynbench runs ls lists them.",
        )
    member = Member(run.id, run.label, summarise(run), run)
    figures = sorted(run.figures_dir.glob("*.png")) if run.figures_dir.is_dir() else []
    checks = (
        _objects(_read_object(run.path / CHECKS_FILE).get("checks")) if (run.path / CHECKS_FILE).is_file() else None
    )
    return Subject(run, {member.label: [member]}, checks=checks, figures=figures)


def _member(store: RunStore, item: Json) -> Member:
    run_id, summary = str(item["id"]), item.get("summary")
    path = store.root / run_id
    return Member(
        run_id,
        str(item.get("name") or run_id),
        summary if isinstance(summary, Mapping) else {},
        Run(path) if (path / "run.json").is_file() else None,
    )


def _chosen(members: Mapping[str, Member], arm: Json) -> list[Member]:
    return [members[str(run_id)] for run_id in _list(arm.get("runs")) if str(run_id) in members]


def _existing(run: Run, paths: Sequence[Path]) -> list[Path]:
    """PNG files by path as recorded, or, when the results were moved, by name in the run's own folder."""
    candidates = [path if path.is_file() else run.figures_dir / path.name for path in paths if path.suffix == ".png"]
    return [path for path in candidates if path.is_file()]


def _read_object(path: Path) -> Json:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}", "Make it again with dynbench analyze.") from error
    if not isinstance(data, Mapping):
        raise RecordError(f"{path}: is not a JSON object", "Make it again with dynbench analyze.")
    return data


def _objects(value: object) -> list[Json]:
    return [item for item in _list(value) if isinstance(item, Mapping)]


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("-inf")
