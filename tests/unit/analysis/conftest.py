"""Synthetic run folders: real files with the real columns, computed from a small model of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from compared import compare_arms
from made_rows import made_row

from dynbench.analysis import analyze
from dynbench.analysis.arms import named_arms
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence, Finding
from dynbench.analysis.comparison import Comparison
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import Analysis, dump_config
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.records import PROFILE_SCHEMA_VERSION, ProfileRow, RankProfile, RowWriter, StepRow, work_hash
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]
Merged = Callable[..., MergedRun]
Launch = Callable[..., dict[str, list[MergedRun]]]
DEFAULTS = Analysis()
SAMPLES = 2_000
SESSION = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Fake:
    """What a synthetic run does.

    Args:
        policy: static, partition, window (as partition over batches swapped within W steps), prefix, or
            sorted_equal, which gives the first rank the longest samples of every step.
        slowdown: factor on every time of the run, like a launch that the machine slowed down.
        compute_ms_per_token, transfer_ms: the model of a step, which has an overhead of 2 ms.
        attention_ms: of a padded token, per token of its length.
        noise: relative noise of a rank's compute in a step.
        slow: factor on the compute of a worker, by its number.

        loss_shift: added to every loss.
        servers: ranks before those of `world_size`, which serve them and train nothing.
        ranks_written: ranks that write a file; None is all.
        steps_written: rows per rank, warm-up included; None is all.
        row: what to change of a row.
        extra: further columns with their values, which may be those of a row.
    """

    policy: str = "static"
    world_size: int = 2
    steps: int = 40
    warmup_steps: int = 10
    global_batch: int = 16
    seed: int = 0
    window: int = 1
    slowdown: float = 1.0
    compute_ms_per_token: float = 0.05

    attention_ms: float = 0.0
    transfer_ms: float = 1.5
    noise: float = 0.02
    slow: dict[int, float] = field(default_factory=dict)

    loss_shift: float = 0.0
    servers: int = 0
    ranks_written: int | None = None
    steps_written: int | None = None
    status: str = "completed"
    fingerprint: str = "data-1"
    overrides: tuple[str, ...] = ()
    env: dict[str, object] = field(default_factory=dict)
    row: Callable[[StepRow], Mapping[str, Any]] = field(default=lambda row: {})
    extra: Mapping[str, object] | Callable[[StepRow], Mapping[str, object]] = field(default_factory=dict)


@cache
def sample_lengths() -> np.ndarray:
    """Tokens of every sample, heavy-tailed, shape [SAMPLES]."""
    return np.clip(np.random.default_rng(7).lognormal(2.8, 0.6, SAMPLES), 3, 128).astype(np.int64)


@cache
def sample_order(seed: int) -> np.ndarray:
    """Ids of all samples, shuffled."""
    return np.random.default_rng([seed, 0]).permutation(SAMPLES)


def shares(fake: Fake, step: int, lengths: np.ndarray) -> list[np.ndarray]:
    """Sample ids of every rank in a step."""
    batches = SAMPLES // fake.global_batch
    place = step % batches
    first = place - place % fake.window
    if fake.policy == "window" and first + fake.window <= batches:
        place = 2 * first + fake.window - 1 - place
    order = sample_order(fake.seed)
    ids = (np.sort(order) if fake.policy == "prefix" else order)[place * fake.global_batch :][: fake.global_batch]
    if fake.policy in ("static", "prefix"):
        return [ids[rank :: fake.world_size] for rank in range(fake.world_size)]
    ids = ids[np.argsort(-lengths[ids], kind="stable")]
    if fake.policy == "sorted_equal":
        return np.array_split(ids, fake.world_size)
    goals = lengths[ids].sum() * np.arange(1, fake.world_size) / fake.world_size
    cuts = np.searchsorted(np.cumsum(lengths[ids]), goals)
    return np.split(ids, np.maximum(cuts, np.arange(1, fake.world_size)))


def rows_of(fake: Fake, place: int) -> list[list[StepRow]]:
    """Rows of every rank, [servers + world_size][steps], of the run at a place among others."""
    lengths = sample_lengths()
    rng = np.random.default_rng([fake.seed, 2 * place])
    rows: list[list[StepRow]] = [[] for _ in range(fake.world_size)]
    slow = [fake.slow.get(rank, 1.0) for rank in range(fake.world_size)]
    plan, data, optimizer = 0.02, 0.2 * fake.slowdown, 0.8 * fake.slowdown
    for step in range(fake.warmup_steps + fake.steps):
        dealt = shares(fake, step, lengths)
        longests = np.array([lengths[ids].max() for ids in dealt])
        padded = longests * [len(ids) for ids in dealt]
        compute = 2.0 + fake.compute_ms_per_token * padded + fake.attention_ms * padded * longests
        compute *= 1 + fake.noise * rng.standard_normal(fake.world_size)
        compute = compute * slow * fake.slowdown * (1.5 if step < 2 else 1.0)
        sync = compute.max() - compute + fake.transfer_ms * fake.slowdown
        costs = zip(dealt, *(each.tolist() for each in (longests, padded, compute, sync)), strict=True)
        for rank, (ids, longest, tokens, compute_ms, sync_ms) in enumerate(costs):
            own = lengths[ids]
            row = made_row(
                step,
                fake.servers + rank,
                compute_ms + sync_ms + plan + data + optimizer + 0.1,
                warmup=int(step < fake.warmup_steps),
                policy="partition" if fake.policy == "window" else fake.policy,
                local_batch=len(ids),
                max_seq_len_in_batch=longest,
                real_tokens=int(own.sum()),
                padded_tokens=tokens,
                real_tokens2=int((own**2).sum()),
                padded_tokens2=tokens * longest,
                plan_ms=plan,
                data_ms=data,
                sync_ms=sync_ms,
                optimizer_ms=optimizer,
                compute_ms=compute_ms,
                peak_mem_mb=400 + 0.05 * tokens,
                loss=float(0.7 * np.exp(-step / 200) + 0.01 * own.mean() / 20 + fake.loss_shift),
                work_hash=work_hash(ids, own),
                weight=float(len(ids)),
            )
            rows[rank].append(row)
    idle = dict.fromkeys(set(StepRow.__annotations__) - {"step", "rank", "warmup", "policy"}, 0)
    idle |= {"sync_ms": 9e3, "step_time_ms": 9e3}
    served = [[replace(row, rank=rank, **idle) for row in rows[0]] for rank in range(fake.servers)]
    changed = (((row, fake.row(row)) for row in of_rank) for of_rank in (*served, *rows))
    return [[replace(row, **change) if change else row for row, change in of_rank] for of_rank in changed]


@cache
def config_text(settings: tuple[str, ...]) -> str:
    """What these settings are stored as, which takes longer to write than all rows."""
    return dump_config(load_config(None, settings))


def build_run(store: RunStore, fake: Fake, name: str | None = None, place: int | None = None) -> Run:
    """A finished run folder, which has a place among others in time; its noise is that of the place."""
    place = len([*store.root.glob("*")]) if place is None else place
    policy = "partition" if fake.policy == "window" else fake.policy
    run = store.create("train", policy, name)
    settings = (
        *(["schedule.mode=static"] if policy == "static" else ["schedule.mode=dynamic", f"schedule.policy={policy}"]),
        f"schedule.window={fake.window}",
        "launch.launcher=torchrun",
        f"launch.nproc={fake.servers + fake.world_size}",
        "launch.threads=1",
        f"train.steps={fake.steps}",
        f"train.warmup_steps={fake.warmup_steps}",
        f"train.global_batch={fake.global_batch}",
        f"train.seed={fake.seed}",
        "train.precision=fp32",
        "workload.dropout=0.0",
        *fake.overrides,
    )
    write_text(run.config_file, config_text(settings))
    env: dict[str, object] = {
        "host": "testhost",
        "cpu_model": "Test CPU",
        "cpu_cores": {"present": 8, "usable": 8, "quota": None},
        "packages": {"torch": "2.13.0", "transformers": "5.23.0"},
        "devices": None,
        **({"ranks": {"world_size": fake.servers + fake.world_size, "servers": fake.servers}} if fake.servers else {}),
        "data": {"fingerprint": fake.fingerprint},
    }
    write_json(run.env_file, env | fake.env)
    for rank, rows in enumerate(rows_of(fake, place)[: fake.ranks_written]):
        extras = [fake.extra(row) if callable(fake.extra) else fake.extra for row in rows[: fake.steps_written]]
        with RowWriter(run.rank_file(rank), tuple(extras[0]) if extras else ()) as writer:
            for row, extra in zip(rows, extras, strict=False):
                writer.write(row, extra)
    write_text(run.path / "eval.csv", "step,loss,accuracy,samples\n50,0.61,0.75,512\n")
    started = (SESSION + timedelta(seconds=place)).isoformat(timespec="microseconds")
    run.update(status="running", started=started)
    if fake.status != "running":
        run.update(status=fake.status)
    return run


def _maker(store: RunStore) -> Make:
    places = count()

    def make(policy: str = "static", name: str | None = None, **fields: object) -> Run:
        fake = Fake(policy=policy, **fields)  # type: ignore[arg-type]  # typed by Fake
        return build_run(store, fake, name, next(places))

    return make


@pytest.fixture
def make_run(store: RunStore) -> Make:
    """`make_run(policy="static", name=None, **fields of Fake)`: a run folder in `store`."""
    return _maker(store)


@pytest.fixture
def merged(make_run: Make) -> Merged:
    """The same, merged."""
    return lambda *args, **fields: merge_run(make_run(*args, **fields))


def launches(make: Make, number: int, **arms: dict[str, Any]) -> dict[str, list[MergedRun]]:
    """Launches in ABBA order, a seed per block: `launches(make_run, 4, static={}, other={"slowdown": 1.2})`.

    An arm has the policy of its name, where it is one of a made-up run's, else `static`. A list has a value per launch.
    """
    runs: dict[str, list[MergedRun]] = {name: [] for name in arms}
    for block in range(number):
        for name in list(arms)[:: 1 if block % 2 == 0 else -1]:
            policy = name if name in ("partition", "prefix", "window") else "static"
            given = {key: value[block] if isinstance(value, list) else value for key, value in arms[name].items()}
            runs[name].append(merge_run(make(**{"policy": policy, "seed": block, "noise": 0.01, **given})))
    return runs


@pytest.fixture
def launch(make_run: Make) -> Launch:
    """`launches` of runs in `store`."""
    return partial(launches, make_run)


def with_steps(run: MergedRun, **columns: pl.Expr | pl.Series) -> MergedRun:
    """The run with other columns of its steps."""
    return replace(run, steps=run.steps.with_columns(**columns))


def compare(arms: Mapping[str, Sequence[MergedRun]], settings: Analysis = DEFAULTS, **asked: Any) -> list[Comparison]:
    """Every further arm against the first."""
    return compare_arms(named_arms(arms), settings, **asked)


def findings(
    arms: Mapping[str, Sequence[MergedRun]], settings: Analysis = DEFAULTS, recipe: str | None = None, **asked: Any
) -> list[Finding]:
    """What checks find in the arms and in their comparisons."""
    grouped = named_arms(arms)
    comparisons = compare_arms(grouped, settings, **asked) if len(grouped) > 1 else []
    return run_checks(Evidence(grouped, comparisons, settings, recipe))


@pytest.fixture(scope="module")
def make_shared_run(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The same in a registry of the module's, for what several of its tests look at."""
    return _maker(RunStore(tmp_path_factory.mktemp("results")))


@pytest.fixture
def rendered() -> None:
    """Figures are made into pixels, for tests that look at these."""


@pytest.fixture(autouse=True)
def _figures(request: pytest.FixtureRequest) -> None:
    if "rendered" not in request.fixturenames:
        request.getfixturevalue("unrendered")


@pytest.fixture
def cli(store: RunStore, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`cli("analyze", …)`: exit code, stdout, stderr."""

    def call(*arguments: object, results: Path | None = None) -> tuple[int, str, str]:
        code = main([*map(str, arguments), "--results", str(results or store.root)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than all else, for tests that are not about them."""
    monkeypatch.setattr(analyze, "draw_figures", lambda *_: [])


PROFILED_MS = 100.0
"""A step of `profiled`."""


def profiled(run: Run, comm_ms: float) -> Run:
    """A run of two ranks whose profile says that so much of a step is communication."""
    rows = [ProfileRow("backward", "communication", 1.0, comm_ms, comm_ms / PROFILED_MS)]
    run.profiler_dir.mkdir()
    for rank in range(2):
        found = RankProfile(rank, 8, 2, PROFILED_MS, rows)
        write_json(run.profile_file(rank), {"schema_version": PROFILE_SCHEMA_VERSION, **asdict(found)})
    return run


def timed(run: MergedRun, comm_ms: float) -> MergedRun:
    """The run with rows that say that so much of its steps, as long as profiled ones, is communication."""
    return with_steps(run, comm_ms=pl.lit(comm_ms), step_time_ms_mean=pl.lit(PROFILED_MS))
