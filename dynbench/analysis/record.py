"""What an analysis leaves behind, written and read as typed records: findings of checks, and `comparison.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dynbench.analysis.questions import DEFAULT, TOKENS
from dynbench.analysis.verdict import Level, Verdict
from dynbench.runs.atomic import read_json
from dynbench.runs.phrase import PhraseRecord, recorded, translated
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import RunId

Severity = Literal["info", "warn", "fail"]
WORDS = ("seen", "limit", "hint")
"""The texts of a finding."""


@dataclass(frozen=True)
class Finding:
    """One thing a check found.

    Attributes:
        severity: `info` explains, `warn` makes the numbers less certain, `fail` makes them wrong.
        seen: which run or arm, and the value.
        limit: what it was held against.
        hint: what to do next.
        id: the check.
        values: what the three texts mention, by name.
        cases: for each text of which the check has several wordings, which one it is.
    """

    severity: Severity
    seen: str
    limit: str
    hint: str
    id: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    cases: Mapping[str, str] = field(default_factory=dict)

    def words(self, language: str) -> list[str]:
        """`seen`, `limit` and `hint` in a language."""
        ids = {name: ".".join(filter(None, (self.id, name, self.cases.get(name)))) for name in WORDS}
        values = recorded(self.values)
        return [
            translated(language, {"say": say, "text": getattr(self, name), "values": values})
            for name, say in ids.items()
        ]

    def as_dict(self) -> dict[str, object]:
        """An entry of `checks` on the page of fields."""
        return {**vars(self), "values": recorded(self.values), "cases": dict(self.cases)}


COMPARISON_FILE = "comparison.json"
"""In the folder of a comparison."""

_AGAIN = "Make it again with dynbench analyze."


class Record(BaseModel):
    """Base of the parts: immutable; keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TailRecord(Record):
    """P95 of the step time of two arms, launch by launch."""

    speedup: float = Field(gt=0)
    """The baseline's over the candidate's, geometric mean over pairs."""
    interval: tuple[float, float] | None
    """Low and high end of its interval, which holds jointly as `ci_joint` does; null for one pair."""
    verdict: Verdict
    """FASTER where the candidate's is smaller, SLOWER, SAME, AMBIGUOUS or ESTIMATE."""
    launches_needed: int | None = None
    """Where it is AMBIGUOUS, launches per arm that would show such a difference, or the noise threshold if larger, by
    the spread of these; null elsewhere, for fewer than 4 pairs, and above 1000."""

    @property
    def turned(self) -> TailRecord:
        """The same with the candidate as the baseline."""
        verdicts = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        ends = None if self.interval is None else (1 / self.interval[1], 1 / self.interval[0])
        verdict = verdicts.get(self.verdict, self.verdict)
        return self.model_copy(update={"speedup": 1 / self.speedup, "interval": ends, "verdict": verdict})

    @property
    def change(self) -> tuple[float, float, float] | None:
        """By which part the candidate's is larger, and the ends of its interval; None without one."""
        if self.interval is None:
            return None
        low, high = self.interval
        return 1 / self.speedup - 1, 1 / high - 1, 1 / low - 1


class ComparisonRecord(Record):
    """A candidate against the baseline."""

    id: str = ""
    """Id of the entry that holds it."""
    path: str = ""
    """Its folder."""
    question: str = DEFAULT.name
    """What is asked: schedule, sync, compress, precision, scaling, levers, steps, topology or bottleneck."""
    unit: str = TOKENS.name
    """What `speedup` is seconds per one of."""
    baseline: str
    """Name of the baseline's arm."""
    candidate: str
    """Name of the other arm."""
    verdict: Verdict
    """FASTER, SLOWER, SAME, AMBIGUOUS, ESTIMATE or INCOMPARABLE."""
    reason: str
    """The sentence with the numbers."""
    reason_said: PhraseRecord | None = None
    """The same as a phrase."""
    aa: bool = False
    """Whether both are configured alike, so that what differs is noise."""
    level: Level
    """How alike the work was: step, window, stream or tokens."""
    speedup: float = Field(gt=0)
    """The baseline's seconds per `unit` over the candidate's."""
    ci95: tuple[float, float] | None
    """Low and high end of this pair's own interval at `confidence`; null for one pair."""
    ci_joint: tuple[float, float] | None = None
    """Low and high end of the interval that the verdict rests on: one of those that hold jointly at `confidence`, where
    several pairs are judged together; null for one pair, and in records of earlier versions."""
    judged_together: int | None = None
    """Pairs that are judged together, this among them; null where it is judged by itself."""
    confidence: float = 0.95
    """Level of the interval."""
    predicted_speedup: float | None = None
    """As the probe predicted it; null without a probe, and where the arms do not differ in plans."""
    bound_speedup: float | None = None
    """What perfect balance would have given; null where the arms do not differ in plans."""
    bound_within_steps: bool | None = None
    """Whether that is within each step's samples."""
    leak: str | None = None
    """Of which arm, and how, samples of a row see each other, so that losses are not compared; null where none do."""
    recovered_share: float | None = None
    """The part of the bound's gain that was given back."""
    overhead_share: float | None = None
    """The part of the slowest rank's compute that does not grow with its tokens."""
    efficiency: float | None = None
    """Where numbers of ranks are compared: the candidate's in `scaling` of the analysis."""
    noise_threshold: float = 0.02
    """Differences below it are none."""
    aa_noise: float | None = None
    """What arms configured alike differed by, or the half-width of their interval where that is larger: by less no
    candidate is FASTER or SLOWER; null without such arms."""
    launches: int
    """Paired launches."""
    first_stage: int | None = None
    """Launches of the first stage, whose spread the interval keeps; null where their number was set beforehand."""
    same_work: bool
    """Whether both ran the same samples, at level step or window."""
    loss_max_rel_diff: float | None = None
    """Largest relative difference of a step's loss; null beyond level step, and where nothing was sent."""
    loss_drift: float | None = None
    """By which part the mean training loss of the measured steps is above the baseline's; null where a loss is not
    finite, or ranks sent nothing to each other."""
    weights_max_diff: float | None = None
    """Largest absolute difference of a weight after the last step; null beyond level step, and where a launch kept no
    model, or one of more than 256 MB."""
    tail: TailRecord | None = None
    """P95 of the step time; null where other things than plans are asked, steps are of other sizes, arms are configured
    alike, and in records of earlier versions."""
    improvement_percent: dict[str, float] = Field(default_factory=dict)
    """How much better the candidate is, by metric key: of times and rates the geometric mean over pairs, else the ratio
    of means; of an amount of one step only between equal global batches, of how good the model is not where a leak
    makes the trainings unlike."""
    left_out: list[str] = Field(default_factory=list)
    """Launches that were not paired, and why."""
    compared: dict[str, list[object]] = Field(default_factory=dict)
    """Settings that differ and may, by key the baseline's and the candidate's value."""
    forced_over: dict[str, list[object]] = Field(default_factory=dict)
    """What differs and may not, likewise; empty unless forced."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval that the verdict rests on."""
        return self.ci_joint or self.ci95

    @property
    def recovered(self) -> float | None:
        """`recovered_share` as people are told it: a slower arm gives back nothing."""
        return None if self.recovered_share is None else max(self.recovered_share, 0.0)


Spread = Literal["arms", "own", "pooled"]


class PairRecord(ComparisonRecord):
    """Two arms of an analysis, the earlier of them as `baseline`."""

    spread: Spread | None = None
    """What `p_holm` and `ci_joint` rest on: a spread of each of the `arms`, or the pair's `own`; null where there is no
    `p_holm`. `pooled`, over all arms, in records of earlier versions."""
    pooled_ci95: tuple[float, float] | None = None
    """Low and high end of the pair's interval by the pooled spread, in records of earlier versions; else null."""
    p_holm: float | None = None
    """P value of a difference, held jointly by Holm's method over the pairs that are judged together: those with the
    baseline, and all others; null for one paired launch, for arms configured alike or that cannot be compared."""
    faster: str | None = None
    """Name of the arm that the verdict calls the faster one; null where it calls none so."""


Kind = Literal["reference", "strong", "weak"]


class ScalingRecord(Record):
    """What an arm gives of what its ranks would at the efficiency of the fewest."""

    arm: str
    """Name of the arm."""
    strategy: str
    """What brings its gradients together."""
    kind: Kind
    """`strong`: the global batch of `against`; `weak`: each worker has the share of a worker of it; `reference`: arms
    of its strategy are held against it."""
    against: str
    """Name of the arm of the same strategy with the fewest workers; its own where it has these."""
    workers: int
    """Ranks that train."""
    world_size: int
    """All ranks, those that serve them among these."""
    oversubscribed: bool | None = None
    """Whether the computing threads of a node's ranks are more than its cores; null of devices, or where not known."""
    global_batch: int
    """Samples per step."""
    units_per_s: float
    """Work in a second, in the `unit` of the comparisons: mean over launches."""
    speedup: float
    """Seconds per unit of `against` over the arm's; 1 of a reference."""
    ci95: tuple[float, float] | None = None
    """Low and high end of its interval at the confidence of the comparisons; null for one pair."""
    efficiency: float
    """The speed-up by how many times as many workers it has."""
    efficiency_of_ranks: float
    """The same by all ranks, those that serve included."""
    step_ms: float | None = None
    """Step time, mean over launches."""
    comm_ms: float | None = None
    """Of a worker's step, in which a collective or a message of it was under way; null where that is not timed."""
    comm_share: float | None = None
    """The same as a part of the step."""
    exposed_comm_ms: float | None = None
    """What even the last worker to arrive spends in synchronising."""
    gb_per_s: float | None = None
    """Effective bandwidth: what a worker sent by the formula, over `comm_ms`, waiting included, GB/s."""


class RunRecord(Record):
    """A run of an analysis."""

    id: RunId
    """The run's id."""
    name: str | None = None
    """Its name."""
    summary: dict[str, object] = Field(default_factory=dict)
    """Its summary."""


class MeanRecord(Record):
    """A number over launches."""

    mean: float
    """Mean."""
    sd: float | None
    """Standard deviation; null of one launch."""
    launches: int
    """Launches that have it."""


class ArmRecord(Record):
    """An arm of an analysis."""

    name: str
    """Name of the arm."""
    runs: list[RunId]
    """Ids of its launches."""
    stored: bool = False
    """Whether they come from an exported file, made in an earlier session."""
    over_launches: dict[str, MeanRecord] = Field(default_factory=dict)
    """By column of `results.csv`, of those that say how an arm does."""


class AnalysisRecord(Record):
    """Everything that one analysis found."""

    schema_version: int = SCHEMA_VERSION
    """Version of the object's form."""
    command: str = "analyze"
    """analyze or compare."""
    question: str | None = None
    """What is asked of the arms; null for one arm, and in records of versions that knew but one question."""
    runs: list[RunRecord]
    """The runs, in the order in which they were named."""
    arms: list[ArmRecord] = Field(min_length=1)
    """Runs of equal configuration but for the seed; the first is the baseline."""
    comparisons: list[ComparisonRecord]
    """One per further arm."""
    pairs: list[PairRecord] = Field(default_factory=list)
    """Every arm against every later one."""
    scaling: list[ScalingRecord] = Field(default_factory=list)
    """How the arms scale, strategy by strategy; empty where all have as many workers."""
    checks: list[Finding] = Field(default_factory=list)
    """What the checks found."""
    figures: list[str] = Field(default_factory=list)
    """Pictures drawn."""
    files: list[str] = Field(default_factory=list)
    """Other files written."""

    def as_dict(self) -> dict[str, object]:
        """The object that `analyze --json` prints, and that comparison.json holds."""
        found = self.model_dump(exclude={"checks"})
        comparison = next(iter(found["comparisons"]), None)
        return {**found, "comparison": comparison, "checks": [finding.as_dict() for finding in self.checks]}


CELLS_FILE = "cells.json"
"""In the folder of several comparisons."""


@dataclass(frozen=True)
class Cell:
    """One of several comparisons.

    Attributes:
        settings: dotted key to value, what sets it apart.
        comparison: id of its run folder.
    """

    settings: Mapping[str, object]
    comparison: RunId

    @property
    def label(self) -> str:
        """The settings in one line."""
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())


@dataclass(frozen=True)
class CellsRecord:
    """What the file of a folder over several comparisons holds: the recipe's name, and its cells in order."""

    recipe: str
    cells: list[Cell]


def read_cells(folder: Path) -> CellsRecord:
    """The comparisons of a folder over several.

    Raises:
        RecordError: its file cannot be read.
    """
    return read_json(folder / CELLS_FILE, CellsRecord, "Start the comparison anew.", SCHEMA_VERSION)


def read_analysis(folder: Path) -> AnalysisRecord:
    """The record in a comparison's folder.

    Raises:
        RecordError: there is none, it is damaged, or something else or a later version wrote it.
    """
    return read_json(folder / COMPARISON_FILE, AnalysisRecord, _AGAIN, SCHEMA_VERSION)
