"""What is printed about several comparisons of one recipe."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from compared import compared

from dynbench.cli.compare_cells import show_cells
from dynbench.experiment.cells import Cell
from dynbench.runs.atomic import write_json
from dynbench.runs.store import RunStore


def test_every_line_says_which_ranks_its_numbers_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(tmp_path)
    found = compared(speedup=1.25, ci95=None)
    cells = []
    for batch, launcher in ((8, "torchrun"), (64, "virtual")):
        folder = store.create("compare", "cell")
        runs = [{"id": "a", "summary": {"launcher": launcher}}]
        content = {"runs": runs, "arms": [{"name": "static", "runs": ["a"]}], "comparisons": [found.model_dump()]}
        write_json(folder.path / "comparison.json", content)
        cells.append(Cell({"train.global_batch": batch}, folder.id))

    show_cells(SimpleNamespace(run=store.create("compare", "both"), cells=cells, comparisons=[[found], [found]]))

    lines = capsys.readouterr().out.splitlines()
    assert shlex.split(lines[-1]) == [*f"next dynbench report {cells[0].comparison} --results".split(), str(tmp_path)]
    header, real, virtual, *_ = (line.split() for line in lines)
    assert header[:3] == ["settings", "ranks", "arm"]
    assert real[:4] == ["train.global_batch=8", "real", "partition", "FASTER"]
    assert virtual[:4] == ["train.global_batch=64", "virtual", "partition", "FASTER"]
