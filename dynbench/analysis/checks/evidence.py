"""What a check looks at, what it saw, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.record import WORDS, Finding, Severity
from dynbench.config.schema import Analysis
from dynbench.runs.phrase import render, texts


class Evidence(NamedTuple):
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


def share_of_time(run: MergedRun, column: str) -> float:
    """A column of times summed over the measured steps, as a part of the run's time; 0 without a measured step."""
    return float(run.measured[column].sum()) / run.time_ms if run.measured.height else 0.0


def mean_share(arm: Arm, column: str) -> float:
    """`share_of_time` of an arm, mean over its whole launches."""
    return fmean(share_of_time(run, column) for run in arm.whole)


def names_of(subject: object) -> dict[str, object]:
    """Names of the run, or of the arms of the comparison, by what texts call them; none of anything else."""
    if isinstance(subject, Comparison):
        return {"baseline": subject.baseline.label, "candidate": subject.candidate.label}
    return {"run": subject.label} if isinstance(subject, MergedRun) else {}


class Seen(NamedTuple):
    """What a check saw, to be said with its texts in `report/records.en.yaml`.

    Attributes:
        severity: of the finding.
        values: what the texts mention, by name.
        case: which wording every text has that has several; where they differ in it, by text.
    """

    severity: Severity
    values: Mapping[str, object]
    case: str | Mapping[str, str] = ""


def worded(check: str, seen: Seen) -> Finding:
    """What a check saw as a finding in English."""
    words, cases = {}, {}
    for name in WORDS:
        say = f"{check}.{name}"
        if say not in texts():
            cases[name] = seen.case if isinstance(seen.case, str) else seen.case[name]
            say += f".{cases[name]}"
        words[name] = render(say, seen.values)
    return Finding(seen.severity, **words, id=check, values=seen.values, cases=cases)
