"""How a measure of a run is declared: as a field of a class, beside others of its subject.

    class Waiting:
        wait_fraction: float | None = measure(lambda at: at.share("wait_ms_mean"), shown("waiting", …, "%"))
        \"\"\"Waiting for the slowest rank over the run's time.\"\"\"

From this follow its place in summary.json, its row and column in tables and comparisons, its column in results.csv and
results_by_arm.csv, and its line on the page of fields. A measure that is an object has a typed dictionary as its type,
whose fields are documented there; a number in it that people read is `Annotated` with a `Metric`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import harmonic_mean
from typing import Any, Literal, TypedDict, TypeVar, cast, get_args, get_type_hints, is_typeddict

import numpy as np
import polars as pl

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.run_facts import RunFacts, fact
from dynbench.config.part_rules import has_lengths
from dynbench.config.schema import Config

Summaries = Sequence[Mapping[str, object]]
"""Those of an arm's launches."""
Launches = Mapping[str, Summaries]
"""Name of the arm to the summaries of its launches."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric:
    """How people meet a number: a row of a table, and a column where metrics are columns.

    Attributes:
        key: dotted path in the summary.
        title: what a person reads.
        unit: unit, empty for pure numbers; `%` shows a fraction as percent.
        better: the direction that counts as an improvement, None where there is none.
        of: `step` for an amount of one step, of which no improvement is told where the global batches differ; `model`
            for how good the model is, of which none is told where samples of a row see each other.
        family: title of the table in which it is a column.
        heading: of that column, short and without the unit.
        place: of the column in its family: -1 before, 1 behind those that are declared in the order of rows.
    """

    key: str
    title: str
    family: str
    heading: str
    unit: str = ""
    better: Literal["less", "more"] | None = "less"
    of: Literal["step", "model"] | None = None
    place: int = 0


def shown(family: str, heading: str, title: str, unit: str = "", key: str = "", **facts: Any) -> Metric:
    """A metric of the measure, or of the field, that it is declared with; `.mean` is the key of a number in it."""
    return Metric(key, title, family, heading, unit, **facts)


def of_step(family: str, heading: str, title: str, unit: str = "ms", **facts: Any) -> Metric:
    """The same of an amount of one step."""
    return shown(family, heading, title, unit, of="step", **facts)


@dataclass
class Measured:
    """A run while its summary is made; means and sums are over its measured steps, None where nothing is known."""

    run: MergedRun
    summary: dict[str, object] = field(default_factory=dict)
    """What was computed before."""

    @property
    def facts(self) -> RunFacts:
        """What its folder says about it."""
        return self.run.facts

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.run.facts.config

    @property
    def steps(self) -> pl.DataFrame:
        """One row per measured step."""
        return self.run.measured

    @property
    def has_lengths(self) -> bool:
        """False of samples without lengths, each of which counts as one token."""
        return has_lengths(self.config)

    @property
    def time_ms(self) -> float | None:
        """The run's time."""
        return self.run.time_ms if self.steps.height else None

    def of(self, key: str) -> float | None:
        """The number at a dotted path of what was computed before."""
        return lookup(self.summary, key)

    def mean(self, column: str) -> float | None:
        """Mean over steps."""
        return number(self.steps[column].mean()) if column in self.steps.columns else None

    def total(self, column: str) -> float | None:
        """Sum over steps."""
        return total(self.steps, column)

    def count(self, column: str) -> int:
        """Sum over steps of whole numbers."""
        return int(self.steps[column].sum())

    def percentile(self, column: str, percent: int) -> float | None:
        """Over steps, by linear interpolation."""
        values = self.steps[column].drop_nulls().to_numpy()
        return float(np.percentile(values, percent)) if values.size else None

    def share(self, column: str) -> float | None:
        """Sum over steps, over the run's time."""
        return ratio(self.total(column), self.time_ms)

    def rate(self, column: str) -> float | None:
        """Sum over steps, per second of the run's time."""
        return ratio(self.total(column), (self.time_ms or 0.0) / 1000)


@dataclass(frozen=True, slots=True)
class Measure:
    """One value of a summary, or one column of results.csv.

    Attributes:
        compute: the value; may read the measures before it.
        metrics: how people meet it, or numbers in it, in tables.
        unit: where neither its name ends in it nor a metric has it.
        needs: column of the table of steps, or key of an earlier measure, without which the summary lacks it.
        optional: the summary lacks it where it is None.
        column: of results.csv, behind those that `results_csv` declares.
        same: of a column, the key in the summary of which it holds the number.
        over_launches: of a column, whether results_by_arm.csv has its mean and standard deviation.
        key: dotted path in summary.json.
        type: as annotated.
    """

    compute: Callable[[Measured], Any]
    metrics: tuple[Metric, ...] = ()
    unit: str = ""
    needs: str = ""
    optional: bool = False
    column: str = ""
    same: str = ""
    over_launches: bool = False
    key: str = ""
    type: Any = None


def measure(compute: Callable[[Measured], T], *metrics: Metric, **facts: Any) -> T:
    """Declares a field of a class: its name is the measure's key, its annotation the type, its docstring the meaning.

    Args:
        compute: the value, of the annotated type.
        metrics: how people meet it.
        facts: further attributes of `Measure`.
    """
    return cast(T, Measure(compute, metrics, **facts))


def measures_of(declaring: type, prefix: str = "") -> Iterator[Measure]:
    """The measures that a class declares, those of the classes that its other fields are of included."""
    for name, hint in get_type_hints(declaring, include_extras=True).items():
        declared = getattr(declaring, name, None)
        if isinstance(declared, Measure):
            yield replace(declared, key=f"{prefix}{name}", type=hint)
        else:
            yield from measures_of(hint, f"{prefix}{name}.")


def computed(measures: Iterable[Measure], at: Measured) -> dict[str, object]:
    """The measures of a run as nested objects, by the parts of their keys."""
    for each in measures:
        if each.needs and each.needs not in at.steps.columns and each.needs not in at.summary:
            continue
        value = each.compute(at)
        if value is None and each.optional:
            continue
        *path, name = each.key.split(".")
        place: Any = at.summary
        for part in path:
            place = place.setdefault(part, {})
        place[name] = value
    return at.summary


def metrics_of(measures: Iterable[Measure]) -> Iterator[Metric]:
    """Every metric that is declared with a measure or with a field of its typed dictionary, in the order of tables."""
    for each in measures:
        yield from (replace(metric, key=f"{each.key}{metric.key}") for metric in each.metrics)
        for record in filter(is_typeddict, (each.type, *get_args(each.type))):
            for name, hint in get_type_hints(record, include_extras=True).items():
                for metric in (one for one in get_args(hint) if isinstance(one, Metric)):
                    yield replace(metric, key=f"{each.key}.{name}")


class Mean(TypedDict):
    """Of what differs from step to step."""

    mean: float | None
    """Mean over steps, and over the ranks that train of what each has."""


def mean_of(column: str, *metrics: Metric, **facts: Any) -> Mean:
    """That of a column of the table of steps."""
    found = (replace(metric, key=".mean") for metric in metrics)
    return measure(lambda at: Mean(mean=at.mean(column)), *found, **facts)


class Spread(TypedDict):
    """Of the standard deviation over ranks within a step."""

    mean: float | None
    """Mean over steps."""
    p95: float | None
    """95th percentile over steps."""


def spread(column: str, what: str, unit: str, *metrics: Metric) -> Spread:
    """That of a column, with the family, the heading and the place of its mean and of its percentile."""
    name = f"{column}_std"
    found = [
        replace(metric, key=f".{key}", title=f"spread over ranks of {what}, {said}", unit=unit)
        for metric, key, said in zip(metrics, ("mean", "p95"), ("mean", "P95"), strict=False)
    ]
    return measure(lambda at: Spread(mean=at.mean(name), p95=at.percentile(name, 95)), *found, unit=unit)


def lookup(summary: Mapping[str, object], key: str) -> float | None:
    """The number at a dotted path of a summary, or under the path as a key; None where the summary has none."""
    return number(summary[key] if key in summary else fact(summary, key))


def number(value: object) -> float | None:
    """The value as a float; None where it is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def mean(key: str, values: Sequence[float]) -> float:
    """Mean of a number over runs: of `waste.s` the harmonic one, as the shares of the time have means of their own."""
    return harmonic_mean(values) if key == "waste.s" else sum(values) / len(values)


def known_values(summaries: Summaries, key: str) -> list[float]:
    """A number of those summaries that have it."""
    return [value for summary in summaries if (value := lookup(summary, key)) is not None]


def mean_over(summaries: Summaries, key: str, *, of_known: bool = False) -> float | None:
    """Mean of a number over launches; None where one of them lacks it, or with `of_known` where all do."""
    values = known_values(summaries, key)
    return mean(key, values) if values and (of_known or len(values) == len(summaries)) else None


def total(steps: pl.DataFrame, column: str) -> float | None:
    """Sum over steps; None without the column or a step."""
    return float(steps[column].sum()) if column in steps.columns and steps.height else None


def ratio(top: float | None, bottom: float | None) -> float | None:
    """None where one of them is not known or nothing can be divided by."""
    return top / bottom if top is not None and bottom else None
