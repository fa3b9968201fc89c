"""One thing that a check found, as it is kept and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dynbench.runs.phrase import Phrase, recorded, translated

Severity = Literal["info", "warn", "fail"]
WORDS = ("seen", "limit", "hint")
"""The texts of a finding."""


@dataclass(frozen=True)
class Finding:
    """One thing a check found.

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

    def words(self, language: str) -> list[str]:
        """`seen`, `limit` and `hint` in a language."""
        ids = {name: ".".join(filter(None, (self.id, name, self.cases.get(name)))) for name in WORDS}
        phrases = [Phrase(getattr(self, name), say, **self.values) for name, say in ids.items()]
        return [translated(language, phrase.record()) for phrase in phrases]

    def as_dict(self) -> dict[str, object]:
        """An entry of `checks` on the page of fields."""
        return {**vars(self), "values": recorded(self.values), "cases": dict(self.cases)}
