"""Sections 4.8b and 4.9 of the questions: what formulas say, which are rows of `bench accounting`."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import Grid, Said, column, where
from dynbench.experiment.assignment.sharing_answers import Answer

LEVER = "compute-bound batch with "
BATCH = "compute-bound batch, axes not overlapped"


def stated(key: str, *beginnings: str) -> Answer:
    """The quantities whose names begin so, with their formulas and what was put in; all of them are needed."""

    def answer(rows: Sequence[Row]) -> list[Said]:
        formulas = _formulas(rows)
        found = [[row for row in formulas if row.case.startswith(each)] for each in beginnings]
        if not all(found):
            return []
        used = [row for group in found for row in group]
        return [Said(key, used, _first(found), _formula_grid(used))]

    return answer


def levers(rows: Sequence[Row]) -> list[Said]:
    """4.9d: the levers that lower the batch, and those that do not here."""
    formulas = _formulas(rows)
    now = next((row for row in formulas if row.case == BATCH), None)
    found = [row for row in formulas if row.case.startswith(LEVER)]
    if now is None or not found:
        return []
    ordered = sorted(found, key=lambda row: row.p50 or 0)
    lower, rest = ([row for row in ordered if ((row.p50 or 0) < (now.p50 or 0)) is side] for side in (True, False))
    said = []
    for key, chosen in (("levers.lower", lower), ("levers.not", rest)):
        if chosen:
            values = {"now": column(now, "shown"), "best": chosen[0].case.removeprefix(LEVER)}
            values["batch"] = column(chosen[0], "shown")
            said.append(Said(key, [now, *chosen], values, _formula_grid(chosen)))
    return said


def _formulas(rows: Sequence[Row]) -> list[Row]:
    return [row for row in where(rows) if column(row, "formula") and column(row, "shown")]


def _first(found: Sequence[Sequence[Row]]) -> dict[str, object]:
    """The first quantity of each beginning, as `a`, `b`, …."""
    return {name: column(group[0], "shown") for name, group in zip("abcdefgh", found, strict=False)}


def _formula_grid(rows: Sequence[Row]) -> Grid:
    cells = [
        [row.case, f"{column(row, 'shown')} {row.unit}", *(str(column(row, n)) for n in ("formula", "with"))]
        for row in rows
    ]
    return Grid(("quantity", "value", "formula", "with"), cells, 4)
