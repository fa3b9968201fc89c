"""The table of faults: declared in `faults.yaml`, filled in from the tests that ran, written to `tests/README.md`.

python tests/fault_table.py left FILE      the declared tests that are not green in what was kept so far, a line each
python tests/fault_table.py write FILE     the page, from what `pytest --faults-to FILE` kept
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from page import section, write_section

SEEN = "seen"
COMMANDS = ("train", "probe", "compare", "bench")
"""A fault has tests of each, or a reason why not."""
HERE = Path(__file__).parent
SECTION = "faults"
OPENING = """\
# Faults that the tests plant

What was seen when each fault of `tests/faults.yaml` was planted in the real program, written by `make faults` from the
tests that ran. RUN is the run's folder, RESULTS the results folder. After every one of them no process was left, of the
command or of its ranks, the rows that were written before it could be read, and the next command worked; a message is
one line, with a hint at what to do. `make test` runs a test of every fault, `make test-matrix` the others; those of
`alone` run with the machine to themselves.

| fault | command | what was seen | test | run by |
|---|---|---|---|---|
"""
CLOSING = """
Where a fault has no row of a command:

"""


@dataclass(frozen=True)
class Declared:
    """A fault and its tests.

    Attributes:
        fault: its name.
        tests: command to the test of it, below `tests/`.
        elsewhere: command to why it has none.
    """

    fault: str
    tests: Mapping[str, tuple[str, ...]]
    elsewhere: Mapping[str, str]


def declared() -> list[Declared]:
    """All faults, in the order of the file."""
    found = yaml.safe_load((HERE / "faults.yaml").read_text(encoding="utf-8"))
    return [Declared(name, _tests(each), each.get("elsewhere", {})) for name, each in found.items()]


def _tests(each: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        command: (given,) if isinstance(given, str) else tuple(given)
        for command, given in each.items()
        if command != "elsewhere"
    }


def rows() -> Iterator[tuple[str, str, str]]:
    """Fault, command and test of every line of the table."""
    for each in declared():
        for command, tests in each.tests.items():
            for test in tests:
                yield each.fault, command, test


class Keeper:
    """A plug-in of pytest that keeps how tests of faults ended and what they saw.

    Args:
        file: a line of JSON is appended for each.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests = {test for _, _, test in rows()}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called for every phase of every test, here also for those of pytest-xdist's workers."""
        test = re.sub(r"@[\w.]+$", "", report.nodeid).removeprefix("tests/")
        if test not in self._tests or (report.when != "call" and not report.failed and not report.skipped):
            return
        by = next((mark for mark in ("matrix", "alone") if mark in report.keywords), "")
        said = dict(report.user_properties).get(SEEN, "")
        line = {"test": test, "outcome": report.outcome, "by": by, SEEN: said}
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def table(text: str) -> list[list[str]]:
    """The cells of the rows in a page's section."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "::" in line]
    return [[cell.replace(r"\|", "|") for cell in re.split(r"(?<!\\) \| ", line[2:-2])] for line in lines]


def page(kept: Mapping[str, Mapping[str, str]], before: str = "") -> str:
    """The section, from what was kept of the tests that ran; the others stay as they were before."""
    known = {test.strip("`"): (seen, by) for _, _, seen, test, by in table(before)}
    known |= {test: (line[SEEN] or "passed", RUN_BY[line["by"]]) for test, line in kept.items()}
    lines = []
    for fault, command, test in rows():
        seen, by = known.get(test, (NOT_YET, ""))
        cells = (fault, command, seen, f"`{test}`", by)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n")
    reasons = [f"- {each.fault}, {command}: {why}\n" for each in declared() for command, why in each.elsewhere.items()]
    return OPENING + "".join(lines) + CLOSING + "".join(reasons)


NOT_YET = "not seen yet"
RUN_BY = {"": "make test", "alone": "make test (alone)", "matrix": "make test-matrix"}


def _kept(file: Path) -> dict[str, dict[str, str]]:
    """How every test ended the last time."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {line["test"]: line for line in map(json.loads, lines)}


def left(file: Path) -> list[str]:
    """Declared tests that did not run yet, or failed when they last did."""
    green = {test for test, line in _kept(file).items() if line["outcome"] != "failed"}
    return [test for test in dict.fromkeys(test for _, _, test in rows()) if test not in green]


def write(file: Path) -> str | None:
    """Write the section, where what was skipped stays as it was, unless something failed: then that is returned."""
    kept = _kept(file)
    if failed := [test for test, line in kept.items() if line["outcome"] == "failed"]:
        return "not green, so tests/README.md stays as it is: " + ", ".join(failed)
    ran = {test: line for test, line in kept.items() if line["outcome"] != "skipped"}
    write_section(SECTION, page(ran, section(SECTION)))
    return None


if __name__ == "__main__":
    if sys.argv[1] == "left":
        print("".join(f"tests/{test}\n" for test in left(Path(sys.argv[2]))), end="")
    else:
        sys.exit(write(Path(sys.argv[2])))
