"""What is not golden, replaced by names in one place: ids, dates, paths, versions, and times of just now."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dynbench import __version__

ROOT = Path(__file__).parents[2]
_ID = re.compile(r"\d{8}-\d{6}-([a-z0-9]+(?:-[a-z0-9]+)*)-[a-z2-9]{4}(?![a-z0-9-])")
_TIME = re.compile(r"(?<![\d-])\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:\+00:00|Z| UTC)?)?(?![\d-])")
_CLOCK = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min|h|d) ago\b")
_RECORD = re.compile(r"(?m)^(  (?:host|pid|pid_start|run\.json|env\.json) +)\S.*$")
"""Of a run that was made just now, and how large that makes its record."""
_EXACT = re.compile(r"\d+\.\d{9,}(?:e[+-]?\d+)?")
"""A number in full precision, whose last digits depend on the order of its sums."""
_DATA_IMAGE = re.compile(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+")


class Names:
    """Names for what differs between machines and days.

    An id of a run is named by its slug and its number among those of that slug, as they are met.

    Args:
        here: the working folder.
    """

    def __init__(self, here: Path) -> None:
        self.here = here
        self._named: dict[str, str] = {}

    def meet(self, results: Path) -> None:
        """The ids of a results folder, in the order of their times."""
        for path in sorted(results.iterdir()):
            self.neutral(path.name)

    def neutral(self, text: str) -> str:
        """A text as it would be printed on any machine."""
        for path, name in ((self.here, "HERE"), (ROOT, "CHECKOUT")):
            text = text.replace(str(path), name)
        text = _RECORD.sub(r"\1...", text.replace(f"version {__version__}", "version V"))
        text = _EXACT.sub(lambda found: f"{float(found.group()):.8g}", text)
        text = _ID.sub(self._name, text)
        for pattern, name in ((_TIME, "TIME"), (_CLOCK, "AGO"), (_DATA_IMAGE, "IMAGE")):
            text = pattern.sub(name, text)
        return text

    def within(self, value: Any) -> Any:
        """Nested values with their texts neutral."""
        if isinstance(value, dict):
            return {self.neutral(key): self.within(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.within(item) for item in value]
        return self.neutral(value) if isinstance(value, str) else value

    def _name(self, found: re.Match[str]) -> str:
        if found.group() not in self._named:
            slug = f"<{found.group(1)} "
            number = 1 + sum(name.startswith(slug) for name in self._named.values())
            self._named[found.group()] = f"{slug}{number}>"
        return self._named[found.group()]
