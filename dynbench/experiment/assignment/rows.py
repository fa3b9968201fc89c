"""What questions are answered from: rows of benchmarks, of comparisons' arms, and of strategies checked on a toy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, product
from typing import TYPE_CHECKING

from dynbench.analysis.measure import number as known_number
from dynbench.bench.base import Row
from dynbench.experiment.report_facts import NUMBERS
from dynbench.experiment.report_input import ReportInput, mean_of, whole
from dynbench.runs.run import Run

if TYPE_CHECKING:
    from dynbench.engine.rank.toy_check import Checked

CHECK = "check"
"""Name of the source of strategies checked against one process."""
CLOSE = 0.1
"""Part by which two times may differ and count as alike."""
MODEL = ("workload.name", "workload.size")
"""Settings that name what an arm trains."""


@dataclass(frozen=True)
class Table:
    """Rows that were measured together.

    Attributes:
        source: the benchmark's name, `sync` or `buckets` of a comparison, or `CHECK`.
        run: id of the run that holds them.
        rows: those that could not be measured among them.
    """

    source: str
    run: str
    rows: Sequence[Row]


class Statement:
    """One statement with the rows that it is made of.

    Args:
        block: of `report/sentences/assignment.LANGUAGE.md.j2` that words it.
        rows: at least one, that was measured or says why it was not.
        case: chooses among the block's sentences; empty where it has but one.
        values: what else the block takes. Lists come to it as texts: a row as mean and standard deviation, a tuple as
            its items side by side; `lines` are those of its table.
    """

    def __init__(self, block: str, rows: Sequence[Row], case: str = "", **values: object) -> None:
        if not rows:
            raise ValueError(f"{block}: nothing is said without a row")
        self.block, self.rows, self.case, self.values = block, rows, case, values


Result = Iterator[Statement]
"""What a question is answered with."""


def column(row: Row, name: str) -> object:
    """A column of the benchmark's own, else one of all rows; None where there is none."""
    return row.columns.get(name, getattr(row, name, None))


def number(row: Row, name: str) -> float | None:
    """A column that is a number; None for anything else."""
    return known_number(column(row, name))


def amount(row: Row, name: str) -> float:
    """A column that is a number; 0 for anything else."""
    return number(row, name) or 0.0


def key(name: str) -> Callable[[Row], float]:
    """`amount` of a column, to sort by."""
    return lambda row: amount(row, name)


def ratio(row: Row, other: Row, name: str = "mean") -> float:
    """A column of a row over that of another; over 1 where that is 0."""
    return amount(row, name) / (amount(other, name) or 1)


def matches(row: Row, wanted: Mapping[str, object]) -> bool:
    """Whether a row has these values of columns; of a tuple, any of them."""
    return all(
        column(row, name) in value if isinstance(value, tuple) else column(row, name) == value
        for name, value in wanted.items()
    )


class Rows(list[Row]):
    """Rows to choose from."""

    def where(self, **wanted: object) -> Rows:
        """Those that were measured with these values of columns; of a tuple, any of them."""
        return Rows(row for row in self if _measured(row) and matches(row, wanted))

    def like(self, row: Row, *names: str) -> Rows:
        """Those that were measured with a row's values of columns."""
        return self.where(**{name: column(row, name) for name in names})

    def distinct(self, name: str) -> list[object]:
        """The values of a column, each once; those that are empty left out."""
        return list(dict.fromkeys(value for row in self if (value := column(row, name))))

    def by(self, *names: str) -> dict[tuple[object, ...], Row]:
        """The last row of each value of columns: what was measured anew stands for what was before."""
        return {tuple(column(row, name) for name in names): row for row in self}

    def pivot(self, keys: Sequence[str], **variants: Sequence[object]) -> Shapes:
        """The rows of every value of columns that was measured in all variants.

        Args:
            keys: columns that tell shapes apart.
            variants: columns to their values, which are combined; those of the last column vary fastest.

        Returns:
            By values of the keys a row for each combination, in order.
        """
        found = self.by(*keys, *variants)
        wanted = list(product(*variants.values()))
        shapes = dict.fromkeys(key[: len(keys)] for key in found)
        known = (shape for shape in shapes if all((*shape, *each) in found for each in wanted))
        return Shapes({shape: Rows(found[(*shape, *each)] for each in wanted) for shape in known})


class Shapes(dict[tuple[object, ...], Rows]):
    """Rows by the values of columns that tell shapes apart."""

    @property
    def last(self) -> Rows:
        """Those of the last shape; none where there is no shape."""
        return list(self.values())[-1] if self else Rows()

    @property
    def rows(self) -> Rows:
        """All of them, shape by shape."""
        return Rows(chain.from_iterable(self.values()))

    @property
    def lines(self) -> list[list[object]]:
        """A line for each shape, with its values and rows."""
        return [[*shape, *rows] for shape, rows in self.items()]


def _measured(row: Row) -> bool:
    """Whether a row holds a number, which is above 0 where it is a time."""
    return row.status == "ok" and row.mean is not None and (row.unit != "ms" or min(row.mean, row.p50 or 0) > 0)


def side(pairs: Iterable[tuple[Sequence[Row], Sequence[Row]]]) -> str:
    """`faster` where the first of every pair takes less time together, `slower` where it takes more, else `both`.

    Less and more are said where mean ± standard deviation of the two do not meet.
    """
    times = [(*_sum_of(new), *_sum_of(old)) for new, old in pairs]
    if all(new + new_sd < old - old_sd for new, new_sd, old, old_sd in times):
        return "faster"
    return "slower" if all(old + old_sd < new - new_sd for new, new_sd, old, old_sd in times) else "both"


def _sum_of(rows: Sequence[Row]) -> tuple[float, float]:
    """Mean and standard deviation of a sum of independent times."""
    return sum(row.mean or 0 for row in rows), math.hypot(*(row.sd or 0 for row in rows))


def check_table(run: Run, checked: Sequence[Checked]) -> Table:
    """Strategies checked against one process: the largest difference of a weight is the mean of a row."""
    rows = []
    for each in checked:
        columns = {
            name: value if isinstance(value, int | float) else str(value) for name, value in asdict(each).items()
        }
        off, name = each.difference, f"{each.strategy} {each.optimizer}"
        rows.append(Row(name, [], "float64", "cpu", unit="1", n=1, mean=off, p50=off, columns=columns))
    return Table(CHECK, run.id, rows)


def comparison_table(source: ReportInput) -> Table:
    """The arms of a comparison, a row each."""
    rows = [_arm_row(source, name) for name in source.arms]
    strategies = {column(row, "strategy") for row in rows}
    return Table("sync" if {"naive", "flat"} & strategies else "buckets", source.run.id, rows)


def _arm_row(source: ReportInput, name: str) -> Row:
    """Means over the arm's launches, of its step time the row's own."""
    launches = source.arms[name]
    config = launches[0].config or {}
    model, strategy = " ".join(str(config[key]) for key in MODEL if config.get(key)), str(config.get("sync.name"))
    known = {what: value for what, key in NUMBERS.items() if (value := mean_of(launches, key)) is not None}
    ranks, device = mean_of(launches, "world_size") or 1, str(config.get("launch.device") or "cpu")
    columns: dict[str, float | int | str] = {**known, "model": model, "strategy": strategy, "ranks": ranks}
    step = known.get("step")
    if step is None:
        return Row(name, [], "", device, status="skipped", reason="no measured step", columns=columns)
    return Row(name, [], "", device, unit="ms", n=len(whole(launches)), mean=step, p50=step, columns=columns)
