"""What questions are answered from: rows of benchmarks, of comparisons' arms, and of strategies checked on a toy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from dynbench.bench.base import Row
from dynbench.bench.record import read_name, read_rows
from dynbench.experiment.report_communication import NUMBERS
from dynbench.experiment.report_input import ReportInput, mean_of, whole
from dynbench.runs.run import Run

if TYPE_CHECKING:
    from dynbench.engine.launching.toy_ranks import Checked

CHECK = "check"
"""Name of the source of strategies checked against one process."""
MOMENTS = ("initialised", "before_step", "after_step")
MODEL = ("workload.name", "workload.size")
"""Settings that name what an arm trains."""
HELD = ("parameters", "gradients", "optimizer", "strategy")


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


@dataclass(frozen=True)
class Grid:
    """A table of an answer: keys of its headings, and its cells."""

    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    keys: int = 1
    """How many of the first columns are words."""


@dataclass(frozen=True)
class Said:
    """One statement with the rows that it is made of.

    Attributes:
        key: of its text.
        rows: at least one, that was measured or says why it was not.
        values: by name of the text's placeholder; items of a list are words or several of them, which may be `cells`.
        grid: shown below it.
    """

    key: str
    rows: Sequence[Row]
    values: Mapping[str, object] = field(default_factory=dict)
    grid: Grid | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(f"{self.key}: nothing is said without a row")


def column(row: Row, name: str) -> object:
    """A column of the benchmark's own, else one of all rows; None where there is none."""
    return row.columns.get(name, getattr(row, name, None))


def number_in(row: Row, name: str) -> float | None:
    """A column that is a number; None for anything else."""
    value = column(row, name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows that were measured with these values of columns; of a tuple, any of them."""
    return [row for row in rows if _measured(row) and matches(row, wanted)]


def _measured(row: Row) -> bool:
    """Whether a row holds a number, which is above 0 where it is a time."""
    return row.status == "ok" and row.mean is not None and (row.unit != "ms" or min(row.mean, row.p50 or 0) > 0)


def below(rows: Sequence[Row], others: Sequence[Row]) -> bool:
    """Whether rows take less time together than others do: mean ± standard deviation of both do not meet."""
    (low, low_sd), (high, high_sd) = _together(rows), _together(others)
    return low + low_sd < high - high_sd


def side(pairs: Iterable[tuple[Sequence[Row], Sequence[Row]]]) -> str:
    """`faster` where the first of every pair is below the second, `slower` where it is above, else `both`."""
    pairs = list(pairs)
    if all(below(new, old) for new, old in pairs):
        return "faster"
    return "slower" if all(below(old, new) for new, old in pairs) else "both"


def _together(rows: Sequence[Row]) -> tuple[float, float]:
    """Mean and standard deviation of a sum of independent times."""
    return sum(row.mean or 0 for row in rows), math.hypot(*(row.sd or 0 for row in rows))


def place(row: Row) -> str:
    """The device as a sentence has it."""
    return "CPU" if row.device == "cpu" else row.device


def matches(row: Row, wanted: Mapping[str, object]) -> bool:
    """Whether a row has these values of columns; of a tuple, any of them."""
    return all(
        column(row, name) in value if isinstance(value, tuple) else column(row, name) == value
        for name, value in wanted.items()
    )


def by(rows: Iterable[Row], *names: str) -> dict[tuple[object, ...], Row]:
    """The last row of each value of columns: what was measured anew stands for what was before."""
    return {tuple(column(row, name) for name in names): row for row in rows}


def bench_table(run: Run) -> Table:
    """The rows of a benchmark's run.

    Raises:
        RecordError: it is of none.
    """
    return Table(read_name(run), run.id, read_rows(run))


def check_table(run: Run, checked: Sequence[Checked]) -> Table:
    """Strategies checked against one process: the largest difference of a weight is the mean of a row."""
    rows = [
        Row(
            f"{each.strategy} {each.optimizer}", [], "float64", "cpu", unit="1", n=1, mean=each.difference,
            p50=each.difference, columns={name: _plain(value) for name, value in asdict(each).items()},
        )
        for each in checked
    ]  # fmt: skip
    return Table(CHECK, run.id, rows)


def _plain(value: object) -> float | int | str:
    return value if isinstance(value, int | float | str) else str(value)


def comparison_table(subject: ReportInput) -> Table:
    """The arms of a comparison, a row each: means over its launches, the step time the row's own."""
    rows = [_arm_row(subject, name) for name in subject.arms]
    strategies = {column(row, "strategy") for row in rows}
    return Table("sync" if {"naive", "flat"} & strategies else "buckets", subject.run.id, rows)


def _arm_row(subject: ReportInput, name: str) -> Row:
    members = subject.arms[name]
    config = members[0].config or {}
    known = {what: mean_of(members, key) for what, key in NUMBERS.items() if what not in HELD}
    known |= {f"{m}_{p}": mean_of(members, f"memory_parts.{m}.{p}_mb") for m in MOMENTS for p in HELD}
    about: dict[str, float | int | str] = {what: value for what, value in known.items() if value is not None}
    about |= {"model": " ".join(str(config[key]) for key in MODEL if config.get(key))}
    about |= {"strategy": str(config.get("sync.name")), "ranks": mean_of(members, "world_size") or 1}
    step, device = known["step"], str(config.get("launch.device") or "cpu")
    if step is None:
        return Row(name, [], "", device, status="skipped", reason="no measured step", columns=about)
    return Row(name, [], "", device, unit="ms", n=len(whole(members)), mean=step, p50=step, columns=about)
