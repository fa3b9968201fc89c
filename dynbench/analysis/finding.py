"""One thing that a check found, as it is kept and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dynbench.runs.phrase import recorded

Severity = Literal["info", "warn", "fail"]


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
        id: the check.
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
        """An entry of `checks` on the page of fields."""
        texts = {"severity": self.severity, "seen": self.seen, "limit": self.limit, "hint": self.hint, "id": self.id}
        return {**texts, "values": recorded(self.values), "cases": dict(self.cases)}
