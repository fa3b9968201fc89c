"""Values: what files hold, as nested lists and mappings, and where two of them differ."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

Value = Any
RELATIVE, ABSOLUTE = 1e-9, 1e-12


def json_values(path: Path) -> Value:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def csv_values(path: Path, without: str = "") -> Value:
    """A CSV file: its header, and its rows sorted; less a column, where one is named."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    kept = [index for index, name in enumerate(header) if name != without]
    cells = [[_number(row[index]) for index in kept] for row in rows]
    return {"columns": [header[index] for index in kept], "rows": sorted(cells, key=_order)}


def column_sums(path: Path) -> Value:
    """Of a Parquet file the sum of every column of numbers, and how often each value stands in the others."""
    frame = pl.read_parquet(path)
    sums = {name: frame[name].sum() for name, kind in frame.schema.items() if kind.is_numeric()}
    others = (frame[name].cast(pl.String) for name in frame.columns if name not in sums)
    texts = {column.name: dict(sorted(column.value_counts().iter_rows())) for column in others}
    return {"rows": frame.height, "sums": sums, "texts": texts}


def _number(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell


def _order(row: Sequence[str | float]) -> tuple[tuple[bool, str], ...]:
    """Texts and whole numbers first, so that rounding moves no row."""
    exact = [(False, str(cell)) for cell in row if isinstance(cell, str) or cell.is_integer()]
    return (*exact, *((True, f"{cell:.6g}") for cell in row if isinstance(cell, float) and not cell.is_integer()))


def differences(old: Value, new: Value, where: str = "") -> Iterator[tuple[str, Value, Value]]:
    """Every place where two nested values differ: its path, the old value and the new, None for what is missing.

    Numbers are equal within a relative 1e-9.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            if key in old and key in new:
                yield from differences(old[key], new[key], f"{where}/{key}")
            else:
                yield f"{where}/{key}", old.get(key), new.get(key)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            sides = (each[index] if index < len(each) else None for each in (old, new))
            yield from differences(*sides, f"{where}/{index}")
    elif not _equal(old, new):
        yield where, old, new


def _equal(old: Value, new: Value) -> bool:
    if isinstance(old, bool) or isinstance(new, bool) or not all(isinstance(each, int | float) for each in (old, new)):
        return bool(old == new)
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (math.isnan(old) and math.isnan(new))
