"""What a check sees and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.merge import MergedRun
from dynbench.config.schema import Analysis
from dynbench.runs.phrase import recorded

Severity = Literal["info", "warn", "fail"]


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


@dataclass(frozen=True)
class Finding:
    """One thing a check found.

    Reports in other languages have their own `seen`, `limit` and `hint` of every check (`findings` in
    report/labels.<language>.yaml) and fill in the same values.

    Attributes:
        severity: `info` explains, `warn` makes the numbers less certain, `fail` makes them wrong.
        seen: which run or arm, and the value.
        limit: what it was held against.
        hint: what to do next.
        id: the check, set by the registry.
        values: what the three texts mention, by name.
        cases: for each text of which the check has several wordings, which one it is.
    """

    severity: Severity
    seen: str
    limit: str
    hint: str
    id: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    cases: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The `checks` entry of JSON.md."""
        texts = {"severity": self.severity, "seen": self.seen, "limit": self.limit, "hint": self.hint, "id": self.id}
        return {**texts, "values": recorded(self.values), "cases": dict(self.cases)}
