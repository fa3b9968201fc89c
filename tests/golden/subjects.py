"""What is held golden, by name: every recording, and what commands plan and print without one."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from bad_input import run, settled
from bad_input_cases import CASES, Bad, given

from dynbench.analysis.figures import draw_figures
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

from .commands import COMMANDS, HELP, SOLVED
from .corpus import Desk, desk
from .drawn import AT_ONCE, DRAWN, drawn_plans
from .layout import WATCHED, looked_at
from .neutral import Names
from .record import RECORDINGS
from .values import Value, column_sums, csv_values, json_values

LANGUAGES = ("en", "zh")
SIZE = re.compile(r"[\d.]+ k?B$", re.MULTILINE)
REPORTED = ("packed", "served", "virtual")
"""Single runs that are reported; the others are analysed only."""


@dataclass
class Golden:
    """What was computed.

    Attributes:
        values: nested lists and mappings.
        words: name of a file to its text.
        figures: what is wrong with each of them, by name, where they are looked at.
    """

    values: dict[str, Value] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[str]] = field(default_factory=dict)


def of_recording(name: str, folder: Path) -> Golden:
    """What `analyze` and `report` make of the recorded runs, and the figures' numbers."""
    golden = Golden()
    with desk(folder) as at, looked_at() if name in WATCHED else nullcontext({}) as golden.figures:
        at.unpack(name)
        benches = [path.parent for path in sorted(at.results.glob("*/bench.json"))]
        if benches:
            golden.words["bench"] = at.transcript(*(f"bench --resume {bench.name} --no-figures" for bench in benches))
        everything = sorted(RunStore(at.results).entries(), key=lambda pair: pair[0].id)
        for number, (entry, record) in enumerate((pair for pair in everything if pair[1].group is None), start=1):
            label, path, run_id = record.name or f"{record.command}-{number}", entry.path, entry.id
            if (path / "cells.json").is_file():
                cells = [each.id for each, one in everything if (one.group, one.command) == (run_id, "compare")]
                resumed = f"compare --resume {run_id}"
                golden.words[f"{label}.cells"] = at.transcript(*(f"analyze {cell} -q" for cell in cells))
                golden.words |= _reported(at, cells[0], f"{label}.cell")
                golden.words[f"{label}.show"] = at.transcript(f"runs show {run_id}", resumed, f"{resumed} --format csv")
            elif record.command in ("compare", "train"):
                golden.words[f"{label}.analyze"] = at.transcript(f"analyze {run_id}")
                if name == "quickstart":
                    # Rounding of the last digit makes a file a byte longer.
                    golden.words[f"{label}.show"] = SIZE.sub("SIZE", at.transcript(f"runs show {run_id}"))
                page = (path / "summary.md").read_text(encoding="utf-8")
                golden.words[f"{label}.summary"] = at.names.neutral(page)
                if record.command == "compare" or label in REPORTED:
                    golden.words |= _reported(at, run_id, label)
            elif record.command == "bench" and path not in benches:
                golden.words[f"{label}.bench"] = at.transcript(f"bench --resume {run_id} --no-figures")
                for report in path.glob("report.*.md"):
                    golden.words[f"{label}.{report.stem}"] = at.names.neutral(report.read_text(encoding="utf-8"))
            for file in sorted(path.rglob("*")):
                if (found := _values_of(file)) is not None:
                    golden.values[f"{label}/{file.relative_to(path)}"] = found
        for bench in benches:
            draw_figures("bench", Run(bench), bench / "figures")
            found = {file.name: _values_of(file) for file in sorted(bench.rglob("*"))}
            golden.values[bench.name] = {file: value for file, value in found.items() if value is not None}
        for merged in sorted(at.results.glob("*/merged_metrics.parquet")):
            golden.values[f"{merged.parent.name}/merged"] = column_sums(merged)
            golden.values[f"{merged.parent.name}/summary.json"] = json_values(merged.with_name("summary.json"))
        golden.values = at.names.within(golden.values)
    return golden


def _reported(at: Desk, run_id: str, label: str) -> dict[str, str]:
    """The reports of a comparison or run in every language."""
    return {f"{label}.report.{lang}": at.transcript(f"report {run_id} --lang {lang} -o -") for lang in LANGUAGES}


def _values_of(file: Path) -> Value | None:
    """What a file of a comparison or run holds that was computed from its rows; None of others."""
    if file.name in ("comparison.json", "checks.json", "summary.json"):
        return json_values(file)
    if file.name in ("summary.csv", "results.csv", "results_by_arm.csv", "profile.csv") or (
        file.parent.name == "figures" and file.suffix == ".csv"
    ):
        return csv_values(file)
    return None


PLAN_MS = "plan ms"


def solved(folder: Path) -> Golden:
    """Results and figures of traces planned offline, without what planning took."""
    golden = Golden()
    with desk(folder) as at:
        for number, command in enumerate(SOLVED):
            said = run(*command.split(), "--json", "--name", f"s{number}")
            if said.code:
                raise AssertionError(said.err)
            found = json.loads(said.out)
            for line in found["results"]:
                del line["plan_ms"]
            golden.values[command] = {"results": found["results"], "skipped": found.get("skipped")}
            figures = Path(found["run"]["path"]) / "figures"
            golden.values[command] |= {
                file.name: csv_values(file, without="plan_ms") for file in sorted(figures.glob("*.csv"))
            }
            golden.words[f"{number}.solve"] = _untimed(at.transcript(f"{command} --no-figures"))
    return golden


def _untimed(text: str) -> str:
    """Without the cells of the column of times, which is as wide as its header."""
    lines, at = [], None
    for line in text.splitlines():
        if PLAN_MS in line:
            at = line.index(PLAN_MS)
        elif at is not None and not line[at : at + len(PLAN_MS)].strip():
            at = None
        elif at is not None:
            line = f"{line[:at]}{'TIME':>{len(PLAN_MS)}}{line[at + len(PLAN_MS) :]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def plans(first: int, folder: Path) -> Golden:
    """Of some drawn problems."""
    return Golden({"drawn": drawn_plans(first)})


def help_pages(folder: Path) -> Golden:
    """`--help` of every command."""
    with desk(folder) as at:
        return Golden(words={"help": at.transcript(*(f"{command} --help".strip() for command in HELP))})


def commands(folder: Path) -> Golden:
    """What commands answer over recorded runs."""
    with desk(folder) as at:
        at.unpack("single")
        return Golden(words={"commands": at.transcript(*COMMANDS)})


def bad_input(folder: Path) -> Golden:
    """What commands answer to input that nobody should give."""
    found = []
    with desk(folder):
        for number, bad in enumerate(CASES):
            here = folder / str(number)
            here.mkdir()
            found.append(_answered(bad, here))
    return Golden(words={"bad_input": "".join(found)})


def _answered(bad: Bad, here: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        settled(patch, here)
        said = given(bad, here)
    left = sorted(path.name for path in here.iterdir())
    text = f"# {bad.what}\n$ dynbench {bad.shown or bad.words}\n"
    text += f"exit {said.code}, in the folder: {', '.join(left)}\n"
    text += "".join(f"--- {name}\n{part}" for name, part in (("stdout", said.out), ("stderr", said.err)) if part)
    text = text.encode(errors="backslashreplace").decode()
    return re.sub(r"(\w)\1{49,}", r"\1\1\1…", Names(here).neutral(text)) + "\n"


SUBJECTS: Mapping[str, Callable[[Path], Golden]] = {
    **{name: partial(of_recording, name) for name in RECORDINGS},
    **{f"plans_{first}": partial(plans, first) for first in range(0, DRAWN, AT_ONCE)},
    "solved": solved,
    "help": help_pages,
    "commands": commands,
    "bad_input": bad_input,
}
"""What is held, by name."""


def computed(name: str) -> Golden:
    """What there is of a subject now."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        return SUBJECTS[name](Path(folder).resolve())
