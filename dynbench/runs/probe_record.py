"""What a probe leaves behind, and what `train`, `solve`, `compare` and `analyze` read from it: `probe.json`."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dynbench.errors import RecordError
from dynbench.plugins.policies import Layout
from dynbench.runs.atomic import read_json

PROBE_FILE = "probe.json"
PROBE_SCHEMA_VERSION = 2


class Record(BaseModel):
    """Base of the parts: immutable; keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class CapacityRow(Record):
    """One rank's answer at one length."""

    rank: int
    """The rank, from 0."""
    length: int
    """Padded tokens per sample."""
    max_batch: int
    """What may be used: the largest tested micro-batch less the margin, made monotone over lengths; samples. Where
    nothing failed it is what was tested, and no limit."""
    tested_ok: int
    """Largest micro-batch that passed."""
    tested_fail: int | None
    """Smallest that failed here, else at a shorter length, or in the soak, where one may fail that passed alone; null
    where no limit was found: the search reached the largest share that a step of the probe's global batch can ask
    for."""
    peak_mem_mb: float | None
    """Peak memory of the largest that passed."""


class TrialRow(Record):
    """One capacity trial, for the figures."""

    rank: int
    """The rank, from 0."""
    length: int
    """Padded tokens per sample."""
    n: int
    """Samples of the micro-batch."""
    fits: bool
    """Whether it passed."""
    peak_mem_mb: float | None
    """Peak memory; null where it did not pass."""


class TimingRow(Record):
    """One timed grid point."""

    rank: int
    """The rank, from 0."""
    n: int
    """Samples of the micro-batch."""
    length: int
    """Padded tokens per sample."""
    ms: float
    """Median over repeats of one training step without synchronisation."""
    held_out: bool
    """Whether the fit that is judged did not see it."""


class AccuracyRow(Record):
    """Error of a cost model on held-out points."""

    mape: float
    """Mean of |predicted - time| / time."""
    rank_correlation: float
    """Spearman's, of predicted and measured times."""


class CostFit(Record):
    """`alpha + beta*n*L + gamma*n*L**2`, fitted on the slowest-rank medians."""

    alpha_ms: float
    """What a nearly empty step costs."""
    beta_ms_per_token: float
    """Per padded token."""
    gamma_ms_per_token2: float
    """Per padded token and token of length."""
    further_ms: float | None = None
    """What a micro-batch after a step's first pays in place of alpha; null in records that did not measure it."""
    heldout: dict[str, AccuracyRow | None]
    """Cost type to its error on points held out; null for too few points."""


class MemoryFit(Record):
    """Peak memory as `fixed + per_sample*n + per_length*L + per_token*n*L + per_square*n*L**2`, MB."""

    fixed_mb: float
    """Whatever the micro-batch."""
    per_sample_mb: float
    """Per sample."""
    per_length_mb: float
    """Per token of length."""
    per_token_mb: float
    """Per padded token."""
    per_square_mb: float
    """Per sample and squared length."""
    mape: float
    """Mean relative error on the trials."""
    tokens_only_mape: float
    """The same of a model of padded tokens alone."""


class Soak(Record):
    """A replay of the real plan at the capacities found."""

    steps: int
    """Steps replayed."""
    ok: bool
    """Whether it passed."""
    peak_mem_mb: float | None
    """Peak memory over ranks."""
    reserved_mem_mb: float | None
    """What the allocator held."""
    allocator_retries: int | None
    """How often the allocator had to free its cache; null on a CPU."""
    shrunk: int
    """How often the capacities had to be lowered before it passed."""
    global_batch: int | None = None
    """Samples per step of that plan: the probe's, or the largest whose steps all fit into what was left of the
    capacities; null in records that did not say."""


class AllReduce(Record):
    """The measured all-reduce of the gradient."""

    megabytes: float
    """Size of the gradient, MB."""
    ms: float
    """Time of one all-reduce."""
    world_size: int
    """Ranks (G)."""


class ProbeRecord(Record):
    """A whole probe."""

    schema_version: int = PROBE_SCHEMA_VERSION
    """Version of the record's form."""
    device: str
    """cpu or cuda."""
    device_name: str | None = None
    """The accelerators, or the processor of a CPU probe; null where they are unknown."""
    precision: str
    """Of the training step: fp32, bf16 or fp16."""
    memory_limit_mb: float | None
    """What a process may use; null where no limit is known."""
    world_size: int
    """Ranks that train (G)."""
    global_batch: int
    """Samples per step that the predictions are for (B)."""
    pad_to_multiple_of: int
    """Lengths are padded up to a multiple of it."""
    positions: int | None = None
    """Longest padded sample that the model takes, tokens; null for any, and in records that did not say."""
    workload: dict[str, object]
    """The settings that decide memory and time; a run that differs in them must not use this probe (its `max_length`
    may be less)."""
    slowdown: dict[int, float] | None = None
    """`launch.slowdown` that the speeds were measured under; null in records of version 1."""
    layout: Layout = "padded"
    """Of the micro-batches that it measured: padded, or packed, rows of samples of equal length; records that did not
    say are of padded ones."""
    sync: str = "ddp"
    """Strategy that trials ran under, each rank without the others; records that did not say it are of ddp."""
    copies_held: float | None = None
    """Copies of the parameters that a rank that trains holds under it in a step, with its gradients and the optimizer's
    state; null in records that did not say."""
    assumes: str | None = None
    """What peaks and capacities are of, in words; null in records that did not say."""
    server_mb: float | None = None
    """Memory that a rank that serves needs for parameters, gradients and optimizer state, by their number; null where
    none does."""
    capacity: list[CapacityRow]
    """What fits, by rank and length."""
    tables: list[list[tuple[int, int | None]]]
    """Per rank, (length, max_batch) by ascending length, the lengths between the probed ones included; null where no
    limit was found."""
    trials: list[TrialRow]
    """Every capacity trial."""
    timings: list[TimingRow]
    """Every timed grid point."""
    cost_model: CostFit | None
    """The fitted cost of a step; null where it could not be fitted."""
    memory_model: MemoryFit | None
    """The fitted peak memory; null where it could not be fitted."""
    speeds: list[float]
    """Relative speed of each rank, 1 for the fastest."""
    allreduce: AllReduce | None
    """Null where nothing was sent: virtual ranks, whose communication is `launch.comm_model`."""
    overhead_ms: float | None = None
    """What the predictions add to the slowest rank's cost in every step: that all-reduce, or the modelled one."""
    soak: Soak | None
    """Null where none was made."""
    predicted_speedup: dict[str, float | None]
    """Static's predicted step over each policy's, one micro-batch per rank; null where one cannot be planned."""
    predicted_window: int = 8
    """Global batches planned together in the prediction of `window`; records without it were made with the default."""
    break_even_batch: int | None
    """Smallest global batch tried at which `partition` is predicted to gain; null if none is."""
    break_even_tried: list[int] = []
    """Global batches compared until then: G, 2G, 4G, …; empty where none could be planned, or by an older version."""

    @property
    def tested_without_limit(self) -> tuple[int, int] | None:
        """Largest micro-batch tried and the longest length at which no limit was found; None where all showed one."""
        free = [row for row in self.capacity if row.tested_fail is None]
        return (max(row.tested_ok for row in free), max(row.length for row in free)) if free else None


def read_probe(folder: Path) -> ProbeRecord:
    """The record of a probe run's folder.

    Raises:
        RecordError: there is none, it is torn, or it was written by a later version.
    """
    path = folder / PROBE_FILE
    if not path.exists():
        raise RecordError(f"{path}: this run holds no probe", "Name a run of `dynbench probe`: dynbench runs ls")
    record = read_json(path, ProbeRecord, "Probe again: dynbench probe", PROBE_SCHEMA_VERSION)
    return record if record.schema_version > 1 else _without_ceilings(record)


def _without_ceilings(record: ProbeRecord) -> ProbeRecord:
    """A record of version 1, whose tables hold the largest size tried as a limit where nothing had failed."""
    tables = []
    for rank, table in enumerate(record.tables):
        rows = sorted((row for row in record.capacity if row.rank == rank), key=lambda row: row.length)
        free = [row.length for row in takewhile(lambda row: row.tested_fail is None, rows)]
        tables.append([(length, None if free and length <= free[-1] else most) for length, most in table])
    return record.model_copy(update={"tables": tables})
