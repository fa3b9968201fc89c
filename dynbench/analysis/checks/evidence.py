"""What a check looks at, what it saw, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import yaml

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.finding import Finding, Severity
from dynbench.analysis.merge import MergedRun
from dynbench.config.schema import Analysis
from dynbench.runs.phrase import Texts


@dataclass(frozen=True)
class Evidence:
    """Everything a check may look at.

    Attributes:
        arms: all arms; one for a single run.
        comparisons: of the further arms with the first; empty for a single arm.
        settings: thresholds that the user may set.
        recipe: the recipe that `dynbench compare` made the launches of, with the options that find the registry, as on
            a command line; None where the user made them.
    """

    arms: Sequence[Arm]
    comparisons: Sequence[Comparison]
    settings: Analysis
    recipe: str | None = None

    @property
    def runs(self) -> Iterator[MergedRun]:
        """All launches of all arms."""
        return (run for arm in self.arms for run in arm.runs)

    @property
    def measured_runs(self) -> Iterator[MergedRun]:
        """All launches that have a measured step."""
        return (run for run in self.runs if run.measured.height)


def share_of_time(run: MergedRun, column: str) -> float:
    """A column of times summed over the measured steps, as a part of the run's time; 0 without a measured step."""
    return float(run.measured[column].sum()) / run.time_ms if run.measured.height else 0.0


def mean_share(arm: Arm, column: str) -> float:
    """`share_of_time` of an arm, mean over its whole launches."""
    return fmean(share_of_time(run, column) for run in arm.whole)


@dataclass(frozen=True)
class Seen:
    """What a check saw, to be said with the texts of `wordings.yaml`.

    Attributes:
        severity: of the finding.
        values: what the texts mention, by name.
        case: which wording every text has that has several; where they differ in it, by text.
    """

    severity: Severity
    values: Mapping[str, object]
    case: str | Mapping[str, str] = ""


@cache
def wordings() -> Mapping[str, Mapping[str, str | Mapping[str, str]]]:
    """Check to `seen`, `limit` and `hint`: a text, or one by case."""
    path = Path(__file__).with_name("wordings.yaml")
    found: dict[str, dict[str, str | Mapping[str, str]]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def worded(check: str, seen: Seen) -> Finding:
    """What a check saw as a finding in English."""
    texts, cases = {}, {}
    for name, wording in wordings()[check].items():
        if not isinstance(wording, str):
            cases[name] = seen.case if isinstance(seen.case, str) else seen.case[name]
            wording = wording[cases[name]]
        texts[name] = Texts().vformat(wording, (), seen.values)
    return Finding(seen.severity, **texts, id=check, values=seen.values, cases=cases)
