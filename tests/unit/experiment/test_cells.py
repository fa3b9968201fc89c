"""Several comparisons of one recipe: registered together, run one by one, gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from compared import ARMS, compared
from recipe_files import load_cells

from dynbench.analysis.record import Finding, read_cells
from dynbench.errors import UsageError, WorkerFailed
from dynbench.experiment.cells import holds_cells, run_cells, start_cells
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

TWO = """\
description: two cells
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic}
cells:
  - {train.global_batch: 8}
  - {train.global_batch: 64}
"""
FOUND = compared(speedup=1.2, ci95=None, overhead_share=0.5).model_dump()
DRIFT = Finding("warn", "a: step time changes by +20 % over the launch", "10 %", "Look.", "drift", {"run": "a"})


class Runner:
    """Stands in for the launches of a cell; fails where told."""

    def __init__(self, fails: int | None = None) -> None:
        self.seen: list[str] = []
        self.fails = fails

    def __call__(self, comparison: Run, which: str) -> SimpleNamespace:
        self.seen.append(which)
        if len(self.seen) == self.fails:
            raise WorkerFailed("rank 1 was killed", "See its log. Go on with: dynbench compare --resume the-cell")
        kept = {"arms": ARMS, "comparisons": [FOUND], "checks": [DRIFT.as_dict()]}
        runs = [{"id": "a", "summary": {"launcher": "virtual"}}]
        write_json(comparison.path / "comparison.json", {"runs": runs, **kept})
        comparison.update(status=Status.RUNNING)
        comparison.update(status=Status.COMPLETED)
        return SimpleNamespace(findings=[])


@pytest.fixture
def together(store: RunStore, tmp_path: Path) -> Run:
    path = tmp_path / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return start_cells(load_cells(path), store, name="both")


def test_every_comparison_is_registered_before_one_runs(together: Run, store: RunStore) -> None:
    assert holds_cells(together)
    cells = read_cells(together.path).cells
    assert [cell.label for cell in cells] == ["train.global_batch=8", "train.global_batch=64"]
    assert {store.resolve(cell.comparison).record().group for cell in cells} == {together.id}
    assert [store.resolve(cell.comparison).config().train.global_batch for cell in cells] == [8, 64]
    assert store.resolve("both").id == together.id


@pytest.mark.slow
def test_all_run_and_are_drawn_together(together: Run, store: RunStore) -> None:
    """One that was analyzed with another baseline is brought back: all marks of the figure are over one baseline."""
    runner = Runner()
    outcome = run_cells(together, store, runner)
    assert runner.seen == ["1 of 2: train.global_batch=8", "2 of 2: train.global_batch=64"]
    assert together.status is Status.COMPLETED
    assert [path.name for path in outcome.figures] == ["regimes.png"]
    printed = outcome.as_dict()
    assert printed["cells"][1]["comparisons"] == [FOUND]
    assert (printed["recipe"], printed["comparisons"]) == ("two", [FOUND, FOUND])
    assert printed["checks"] == [DRIFT.as_dict()] * 2

    file = store.resolve(read_cells(together.path).cells[0].comparison).path / "comparison.json"
    known = json.loads(file.read_text())
    write_json(file, {**known, "arms": [{"name": "partition", "runs": ["a"]}]})
    run_cells(together, store, runner)
    assert runner.seen[2:] == ["1 of 2: train.global_batch=8"]
    assert json.loads(file.read_text())["arms"] == known["arms"]


@pytest.mark.slow
def test_after_a_failure_only_the_missing_ones_run(together: Run, store: RunStore) -> None:
    with pytest.raises(WorkerFailed) as caught:
        run_cells(together, store, Runner(fails=2))
    assert caught.value.hint == f"See its log. Go on with: dynbench compare --resume both --results {store.root}"
    assert together.status is Status.FAILED
    again = Runner()
    outcome = run_cells(together, store, again)
    assert outcome.findings == [DRIFT, DRIFT]  # also of the comparison that ran earlier
    assert again.seen == ["2 of 2: train.global_batch=64"]


def test_cells_that_another_process_runs_are_left_alone(together: Run, store: RunStore) -> None:
    together.update(status=Status.RUNNING)
    runner = Runner()
    with pytest.raises(UsageError, match="is running in process"):
        run_cells(together, store, runner)
    assert (runner.seen, together.status) == ([], Status.RUNNING)
