"""What a benchmark is: its cases, how one is measured on the ranks, what its rows amount to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from dynbench.engine.rank.rank_process import RankContext


Device = Literal["auto", "cpu", "cuda"]
Cell = float | int | str
Columns = dict[str, Cell]
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""What matrix products are computed in, by precision."""
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TITLES = {
    **{column: f"{column} (ms)" for column in ("mean", "sd", "p20", "p50", "p80", "p95", "p99")},
    "dtype": "type",
    "shown": "value",
    "reference_error": "largest difference",
}
"""Heading of a column in the table for people, where it is not the column's name."""


def titled(*columns: str, **titles: str) -> dict[str, str]:
    """Column to heading, in this order: as given, else of `TITLES`, else the column's name."""
    return {column: titles.get(column, TITLES.get(column, column)) for column in columns}


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    name: str
    """Its label."""
    shape: Sequence[int]
    """Of the tensor that it is about."""
    dtype: str
    """Type of its elements."""
    columns: Mapping[str, Cell] = field(default_factory=dict)
    """What sets it apart, by column of the rows."""


def model_cases(options: Any, column: str, values: Mapping[str, Cell]) -> list[Case]:
    """A case for every size, context, type and value of a further column, with short contexts first.

    Args:
        options: `ContextOptions` of a benchmark.
        column: name of the further column.
        values: label of a case to the column's value.
    """
    batch, dtypes = options.local_batch, [DTYPES[precision] for precision in options.precisions]
    shapes = product(options.sizes, sorted(set(options.contexts)), dtypes, values.items())
    return [
        Case(
            f"{size} {context} {dtype} {label}",
            [batch, context],
            dtype,
            {"size": size, "context": context, "batch": batch, column: value},
        )
        for size, context, dtype, (label, value) in shapes
    ]


@dataclass(frozen=True)
class Measured:
    """What a case showed; the same on every rank."""

    values: NDArray[np.float64]
    """One per iteration, shape [n]; of times, each the maximum over ranks."""
    columns: Mapping[str, Cell]
    """What the benchmark says beside their mean and quantiles."""
    reference_error: float | None = None
    """Largest difference from what is known to be right; None where that is not known."""
    unit: str = "ms"
    """Of the values."""


@dataclass(frozen=True)
class Row:
    """One case in the record."""

    case: str
    """Its label; several rows may be of one case, and differ in their columns."""
    shape: Sequence[int]
    """Of the tensor that it is about."""
    dtype: str
    """Type of its elements."""
    device: str
    """Where it ran: cpu, or the accelerator's name."""
    seed: int = 0
    """Of whatever it draws."""
    unit: str | None = None
    """Of the mean, the standard deviation and the quantiles; these and it are null where it was not measured."""
    status: Literal["ok", "oom", "skipped"] = "ok"
    """Whether it was measured."""
    reason: str | None = None
    """Why it was not; null where it was."""
    n: int = 0
    """Iterations."""
    mean: float | None = None
    """Mean over the iterations."""
    sd: float | None = None
    """Standard deviation; null for one iteration."""
    p20: float | None = None
    """Quantile."""
    p50: float | None = None
    """Median."""
    p80: float | None = None
    """Quantile."""
    reference_error: float | None = None
    """Largest difference from what is known to be right; null where that is not known."""
    versions: str | None = None
    """Of the software that decides the time."""
    columns: Mapping[str, Cell] = field(default_factory=dict)
    """What this benchmark says beside that."""

    def as_dict(self) -> dict[str, object]:
        """One flat object, the benchmark's own columns last."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)[:-1]}, **self.columns}


def ratios(
    rows: Sequence[Row], name: Callable[[Row], str], way: Callable[[Row], str], of: str, value: str = "p50"
) -> dict[str, dict[str, float]]:
    """A column over that of the way `of`, by name and way, of what was measured; only where that was."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        number = row.as_dict().get(value)
        if isinstance(number, int | float):
            found.setdefault(name(row), {})[way(row)] = number
    return {key: {each: one / by[of] for each, one in by.items()} for key, by in found.items() if by.get(of)}


class NotMeasured(Exception):
    """What `measure` raises where a case cannot be measured here while others can; the sweep goes on.

    Args:
        reason: why, for the row.
        status: of the row.
    """

    def __init__(self, reason: str, status: Literal["oom", "skipped"] = "skipped") -> None:
        super().__init__(reason)
        self.status = status


class Benchmark(ABC):
    """A benchmark with its options, of one process unless it says otherwise.

    Args:
        options: of the class that it is registered with.
    """

    headers: ClassVar[Mapping[str, str]]
    """Column of the rows to its heading in the table for people."""

    folder: Path | None = None
    """Of the run, for files beside the rows; None where there is no run yet."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    def processes(self) -> int:
        """Ranks that it runs on, at most."""
        return 1

    def ranks_of(self, case: Case) -> int:
        """Ranks that a case runs on; those that follow each other with as many share a launch."""
        return self.processes

    def device_of(self, case: Case, context: RankContext) -> torch.device:
        """What a rank measures a case on."""
        return context.device

    @property
    def device(self) -> Device:
        """What they compute on, by the option of that name; `auto` is the GPU where there is one for each."""
        return getattr(self.options, "device", "auto")

    @property
    def timeout_s(self) -> int:
        """Longest wait of one rank for another, seconds, by the option of that name."""
        return getattr(self.options, "timeout_s", 600)

    @abstractmethod
    def cases(self) -> Sequence[Case]:
        """What is measured, in order: what may run out of memory last."""

    @abstractmethod
    def measure(self, case: Case, context: RankContext) -> Measured | Sequence[Measured]:
        """Measure a case, for one row or several, at least one; every rank calls this at the same time."""

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """What follows from all rows, as summary.json has it."""
        return {}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same in lines, below the table."""
        return []

    def further_files(self, rows: Sequence[Row]) -> dict[str, object]:
        """Name to content of JSON files beside the rows, for other commands to read."""
        return {}
