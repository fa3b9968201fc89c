"""What is printed about several comparisons of one recipe."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from compared import compared

from dynbench.cli.compare_plan import show_cells
from dynbench.experiment.cells import Cell
from dynbench.runs.atomic import write_json
from dynbench.runs.store import RunStore

OF_SCHEDULES = {"predicted_speedup": 1.2, "overhead_share": 0.5, "recovered_share": 0.6}


def lines_of(
    folder: Path, capsys: pytest.CaptureFixture[str], *facts: dict[str, object], drawn: bool = True
) -> list[str]:
    """What is printed of a comparison on real ranks and one on virtual ones; facts are laid over what each found."""
    store, cells = RunStore(folder), []
    found = [[compared(**{"speedup": 1.25, "ci95": None, **given})] for given in facts]
    for batch, launcher in ((8, "torchrun"), (64, "virtual")):
        cell = store.create("compare", "cell")
        runs = [{"id": "a", "summary": {"launcher": launcher}}]
        content = {"runs": runs, "arms": [{"name": "static", "runs": ["a"]}], "comparisons": []}
        write_json(cell.path / "comparison.json", content)
        cells.append(Cell({"train.global_batch": batch}, cell.id))
    together = store.create("compare", "both")
    figures = [together.figures_dir / "regimes.png"] if drawn else []
    show_cells(SimpleNamespace(run=together, cells=cells, comparisons=found, figures=figures))
    return capsys.readouterr().out.splitlines()


def test_every_line_says_which_ranks_its_numbers_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(tmp_path, capsys, {}, {})
    *command, cell, option, results = shlex.split(lines[-1])
    assert (command, option, results) == (["next", "dynbench", "report"], "--results", str(tmp_path))
    assert f"comparison  {tmp_path / cell}  (train.global_batch=8)" in lines
    header, real, virtual, *_ = (line.split() for line in lines)
    assert header[:3] == ["settings", "ranks", "arm"]
    assert real[:4] == ["train.global_batch=8", "real", "partition", "FASTER"]
    assert virtual[:4] == ["train.global_batch=64", "virtual", "partition", "FASTER"]


@pytest.mark.parametrize(
    ("first", "second", "titles"),
    [
        ({}, {}, "speed-up"),
        ({"ci95": [1.2, 1.3]}, {}, "speed-up interval"),
        ({}, {"efficiency": 0.75}, "speed-up efficiency"),
        (OF_SCHEDULES, {}, "speed-up predicted launch overhead recovered"),
    ],
)
def test_only_columns_that_a_comparison_fills_are_shown(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, object],
    second: dict[str, object],
    titles: str,
) -> None:
    header, *lines = lines_of(tmp_path, capsys, first, second)
    assert " ".join(header.split()) == f"settings ranks arm verdict {titles}"
    assert ("75.0" in lines[1]) == ("efficiency" in titles)
