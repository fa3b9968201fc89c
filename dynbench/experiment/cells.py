"""A recipe with cells: the same arms compared under several settings, one comparison after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from dynbench.analysis.figures import draw_figures
from dynbench.analysis.record import (
    CELLS_FILE,
    AnalysisRecord,
    Cell,
    CellsRecord,
    ComparisonRecord,
    Finding,
    read_analysis,
    read_cells,
)
from dynbench.config.recipes import RECIPE_FILE, Recipe
from dynbench.experiment.compare import (
    Outcome,
    on_first_node,
    resumable,
    start_comparison,
)
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.preflight import check_startable
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.recorder import made
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import Run, Status, refuse_running
from dynbench.runs.store import Naming, RunStore

RunCell = Callable[[Run, str], Outcome]
"""Runs the comparison of a cell, given how far the cells are, like `2 of 6`."""


@dataclass(frozen=True)
class CellsOutcome:
    """Several finished comparisons.

    Attributes:
        run: the folder over all of them.
        recipe: the recipe's name.
        cells: in order.
        records: per cell what its analysis left behind, also of comparisons that ran earlier.
        figures: PNG files.
    """

    run: Run
    recipe: str
    cells: Sequence[Cell]
    records: Sequence[AnalysisRecord]
    figures: Sequence[Path]

    @property
    def findings(self) -> Sequence[Finding]:
        """Of the checks of all comparisons."""
        return [finding for record in self.records for finding in record.checks]

    @property
    def comparisons(self) -> Sequence[Sequence[ComparisonRecord]]:
        """Per cell what its candidates showed."""
        return [record.comparisons for record in self.records]

    def as_dict(self) -> dict[str, object]:
        """What `compare --json` prints for a recipe with cells."""
        return {
            "schema_version": SCHEMA_VERSION,
            "command": "compare",
            "run": self.run.reference,
            "recipe": self.recipe,
            "comparisons": [comparison.model_dump() for found in self.comparisons for comparison in found],
            "checks": [finding.as_dict() for finding in self.findings],
            "cells": [
                {
                    "settings": cell.settings,
                    "comparison": cell.comparison,
                    "comparisons": [comparison.model_dump() for comparison in record.comparisons],
                    "pairs": [pair.model_dump() for pair in record.pairs],
                }
                for cell, record in zip(self.cells, self.records, strict=True)
            ],
            "figures": self.figures,
        }


def start_cells(
    recipes: Sequence[Recipe], store: RunStore, *, text: str | None = None, **naming: Unpack[Naming]
) -> Run:
    """Register every comparison and the folder over them; none has begun.

    Args:
        recipes: one per cell.
        store: registry that they are put into.
        text: the recipe that they are of, kept in the folder over them.
        naming: what the folder over them is called; of several nodes, the first has the name.

    Raises:
        DynbenchError: as `compare.start_comparison`; nothing was made.
    """
    if not on_first_node(recipes[0]):
        naming["name"] = None
    store.check_name(naming.get("name"), naming.get("replace", False))
    for recipe in recipes:
        check_startable(recipe, store)
    cells = [Cell(recipe.cell, start_comparison(recipe, store, argv=naming.get("argv")).id) for recipe in recipes]
    with made(store, "compare", recipes[0].name, **naming) as folder:
        write_json(folder.path / CELLS_FILE, CellsRecord(recipes[0].name, cells))
        if text is not None:
            write_text(folder.path / RECIPE_FILE, text)
        for cell in cells:
            Run(store.root / cell.comparison).update(group=folder.id)
    return folder


def holds_cells(run: Run) -> bool:
    """Whether a run folder is one over several comparisons."""
    return (run.path / CELLS_FILE).is_file()


def run_cells(folder: Run, store: RunStore, run_cell: RunCell) -> CellsOutcome:
    """Run the comparisons that have not ended, then draw what they show together, all with the recipe's baseline.

    Raises:
        RecordError: a file of the folder cannot be read.
        UsageError: another process is at it.
        DynbenchError: a comparison ended so; what is done is kept, and the hint says how to go on.
    """
    refuse_running(folder)
    with resumable(folder):
        record = read_cells(folder.path)
        for number, cell in enumerate(record.cells, 1):
            comparison = store.resolve(cell.comparison)
            baseline = read_state(comparison.path).baseline
            # It may have been analyzed again with another baseline than the cells have.
            if comparison.status is not Status.COMPLETED or read_analysis(comparison.path).arms[0].name != baseline:
                run_cell(comparison, f"{number} of {len(record.cells)}: {cell.label}")
        figures = draw_figures("cells", folder, folder.figures_dir)
    records = [read_analysis(store.root / cell.comparison) for cell in record.cells]
    pictures = [path for path in figures if path.suffix == ".png"]
    return CellsOutcome(folder, record.recipe, record.cells, records, pictures)
