"""Every command once, in this process and on made-up runs: what it prints under `--json`, and the files it leaves."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import pixel
import pytest
from compressed_runs import SENT, compressed_run
from probes import make_probe
from unit.analysis.conftest import Fake, build_run
from unit.bench.test_bench_run import group_of_one, launched_at_once
from unit.cli.test_train_figures import TINY, launched
from unit.engine.rank.test_toy_check import checked_at_once
from unit.experiment.test_compare import RECIPE, FakeTraining

from dynbench.bench import bench_run
from dynbench.cli import trained
from dynbench.cli.main import main
from dynbench.config.schema import Workload
from dynbench.engine.failure import record_failure
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.engine.turn_order import Turns
from dynbench.errors import WorkerFailed
from dynbench.experiment import launches, training
from dynbench.experiment.assignment import suite
from dynbench.probe import prober
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.columns import COMM_COLUMNS, write_columns
from dynbench.runs.records import PROFILE_SCHEMA_VERSION, ProfileRow, RankProfile
from dynbench.runs.row_writer import Call, CallWriter
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.workloads import hub
from dynbench.workloads.datasets.language import VOCAB_SIZE
from dynbench.workloads.language_model import language_model
from dynbench.workloads.model_config import LANGUAGE_MODEL
from dynbench.workloads.saved_model import save_model
from dynbench.workloads.tokenizer import load_tokenizer

ROW = {"rank": 0, "length": 64, "peak_mem_mb": 90.5}
PROBED: dict[str, object] = {
    "capacity": [{**ROW, "length": length, "max_batch": 8, "tested_ok": 9, "tested_fail": 10} for length in (32, 64)],
    "trials": [{**ROW, "n": n, "fits": n < 10} for n in (9, 10)],
    "timings": [
        {"rank": rank, "n": n, "length": length, "ms": 1.0 + 0.01 * n * length, "held_out": n == 4}
        for rank in range(2) for n in (1, 2, 4) for length in (32, 64)
    ],
    "cost_model": {
        "alpha_ms": 1.0, "beta_ms_per_token": 0.01, "gamma_ms_per_token2": 0.0, "further_ms": 0.5,
        "heldout": {"tokens": {"mape": 0.1, "rank_correlation": 0.99}, "measured": None},
    },
    "memory_model": {
        "fixed_mb": 1.0, "per_sample_mb": 1.0, "per_length_mb": 0.1, "per_token_mb": 0.1, "per_square_mb": 0.1,
        "mape": 0.1, "tokens_only_mape": 0.2,
    },
    "soak": {"steps": 3, "ok": True, "peak_mem_mb": 90.0, "reserved_mem_mb": 99.0, "allocator_retries": 0, "shrunk": 0},
    "predicted_speedup": {"partition": 1.2, "prefix": None},
    "slowdown": {1: 1.1},
    "overhead_ms": 0.5,
    "break_even_batch": 8,
    "break_even_tried": [4, 8],
}  # fmt: skip
CELLS = "cells:\n  - {train.seed: 0}\n  - {train.seed: 9}\n"
STRATEGY = {
    "comm_ms": 1.5, "comm_sum_ms": 2.0, "hidden_comm_ms": 0.5, "collectives": 1, "bytes_raw": 100, "bytes_wire": 50,
    "sync_forward_ms": 0.0, "sync_backward_ms": 0.0, "sync_optimizer_ms": 0.0, "bytes_sent": 51,
    "gradient_bytes_raw": 100, "gradient_bytes_wire": 25,
}  # fmt: skip


@dataclass
class Tour:
    """What the commands left.

    Attributes:
        printed: (name of the document, object) of everything printed.
        root: the registry.
    """

    root: Path
    printed: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def run(self, *arguments: str, document: str, code: int = 0) -> dict[str, object]:
        """Run a command and keep what it prints."""
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(io.StringIO()) as err:
            assert main([*arguments, "--json", "--results", str(self.root)]) == code, err.getvalue()
        found = json.loads(out.getvalue())
        self.printed.append((document, found))
        return found


def take_tour(folder: Path) -> Tour:
    """Run every command."""
    tour = Tour(folder / "results")
    store = RunStore(tour.root)
    with pytest.MonkeyPatch.context() as patch:
        pixel.unrendered(patch)
        patch.delenv("DYNBENCH_RESULTS", raising=False)
        patch.setattr(training, "launch_arms", launched)
        patch.setattr(prober, "run_probe", lambda *_, **__: make_probe(store, **PROBED))
        patch.setattr(launches, "run_arms", FakeTraining(data={}))
        patch.setattr(bench_run, "launch_ranks", launched_at_once({}))
        patch.setattr(toy_ranks, "_on_processes", checked_at_once)
        patch.setattr(suite, "ORDER", ("accounting",))
        patch.setattr(suite, "RECIPES", {})
        _single_runs(tour, store)
        _comparisons(tour, store, folder)
        _bench(tour)
        _saved(tour, folder / "model")
        _others(tour, store, folder)
    return tour


def _saved(tour: Tour, folder: Path) -> None:
    settings = Workload(name="causal_lm", size="tiny")
    source = language_model(settings).source(VOCAB_SIZE)
    save_model(folder, source, LANGUAGE_MODEL, source.build(0).state_dict(), load_tokenizer(settings, ends=True))
    few = ("--max-length", "8", "--set", "train.eval_samples=4")
    tour.run("eval", str(folder), *few, document="eval --json")
    tour.run("generate", str(folder), "--prompt", "a", "--length", "2", document="generate --json")


def _single_runs(tour: Tour, store: RunStore) -> None:
    tour.run("train", *TINY, "--name", "t", document="train --json")
    epoch = ("--warmup-steps", "1", "--epochs", "1", "--subset", "48")
    tour.run("train", *TINY[:6], *epoch, "--name", "e", document="train --json")
    tour.run("train", *TINY, "--dry-run", document="train --dry-run --json")
    (store.resolve("t").path / "tensorboard").mkdir()
    with mock.patch.multiple(trained, serve=lambda *_: "http://localhost:6006/", wait_for_ctrl_c=lambda: None):
        tour.run("tensorboard", "t", document="tensorboard --json")
    made = build_run(store, Fake(extra=STRATEGY, status="failed", steps_written=30), "strategy")
    write_columns(made.ranks_dir, COMM_COLUMNS)
    _measured_beside_null(store, made)
    said = {"say": "comm_model.none", "text": "none", "values": {}}
    chosen = {"decisions": {"launch.comm_model": {"value": "none", "reason": "launch.comm_model", "said": said}}}
    build_run(store, Fake(overrides=("launch.launcher=virtual", "launch.world_size=2"), env=chosen), "virtual")
    for name in ("strategy", "virtual"):
        tour.run("analyze", name, document="analyze --json")
    failed = store.resolve("strategy")
    record_failure(failed, 0, WorkerFailed("rank 0 died", "See its log."))
    failed.update(failure={"kind": "worker", "message": "rank 0 died", "rank": 0, "log": "logs/rank_0.err"})
    Turns(("a", "b")).write(made.path)
    tour.run("probe", "--name", "p", "--slowdown", "1:1.1", document="probe --json")
    too_many = "8192"  # ranks for the trace: skipped
    tour.run("solve", "lognormal", "--steps", "4", "--world-size", f"2,{too_many}", document="solve --json")
    tour.run("solve", "--list", document="solve --list --json")
    tour.run("plugins", document="plugins --json")
    tour.run("sync", "ls", document="plugins --json")
    tour.run("compress", "ls", document="compress ls --json")
    tour.run("sync", "check", "ddp", document="sync check --json")
    tour.run("data", "lengths", "--subset", "90", "-o", str(tour.root / "l.npy"), document="data lengths --json")
    (tour.root.parent / f"{0:032}.npz").write_bytes(b"kept")
    tour.run("data", "cache", "--folder", str(tour.root.parent), document="data cache --json")
    articles = [{"id": "1", "title": "One", "text": "word", "url": "u"}]
    with (
        mock.patch("datasets.load_dataset", return_value=articles),
        mock.patch.multiple(hub, why_unreachable=lambda *_: "", constants=mock.Mock(HF_HUB_OFFLINE=False)),
    ):
        tour.run("data", "wikipedia", "-o", str(tour.root.parent / "w.json"), document="data wikipedia --json")


def _measured_beside_null(store: RunStore, run: Run) -> None:
    """The run kept its calls and a profile, and shared its launch with one without communication."""
    null = build_run(store, Fake(overrides=("sync.communicate=false",)))
    clocks = {"offsets_ns": [0, 0], "uncertainty_ns": 0, "source": "same"}
    turns = {"id": run.id, "runs": [run.id, null.id], "arms": ["with", "null"], "block": 1, "seed": 0, "launch": 0}
    write_json(run.env_file, {**run.env(), "clocks": clocks, "together": turns})
    rows = [ProfileRow("backward", "all_reduce", 1.0, 2.0, 0.2), ProfileRow("backward", "communication", 1.0, 2.0, 0.2)]
    run.profiler_dir.mkdir()
    for rank in range(2):
        with CallWriter(run.calls_file(rank)) as writer:
            for step in range(30):
                writer.write(step, [Call("all_reduce", -1, step, 50, 10**7 * step + rank, 10**7 * step + 9)])
        found = asdict(RankProfile(rank, 8, 2, 10.0, rows))
        write_json(run.profile_file(rank), {"schema_version": PROFILE_SCHEMA_VERSION, **found})


def _comparisons(tour: Tour, store: RunStore, folder: Path) -> None:
    runs = [build_run(store, Fake(policy, seed=seed)).id for policy in ("static", "partition") for seed in range(2)]
    tour.run("analyze", *runs, document="analyze --json")
    ranks = [build_run(store, Fake("static", world_size=number)).id for number in (2, 4)]
    tour.run("analyze", *ranks, document="analyze --json")
    tour.run("analyze", *_strategies(store), document="analyze --json")
    compressed = [compressed_run(lambda **fields: build_run(store, Fake(**fields)), name).id for name in SENT]
    tour.run("analyze", *compressed, document="analyze --json")
    (folder / "two.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "cells.yaml").write_text(RECIPE.replace("launches: 4", "launches: 2") + CELLS, encoding="utf-8")
    tour.run("compare", str(folder / "two.yaml"), "--name", "two", document="compare --json")
    tour.run("compare", str(folder / "two.yaml"), "--dry-run", document="compare --dry-run --json")
    tour.run("compare", str(folder / "cells.yaml"), "--dry-run", document="compare --dry-run --json")
    tour.run("compare", str(folder / "cells.yaml"), "--name", "cells", document="compare --json")
    tour.run("report", "two", document="report --json")


def _strategies(store: RunStore) -> list[str]:
    """Arms whose ranks kept their calls and counted what they held."""
    held = dict.fromkeys(("parameters_mb", "gradients_mb", "optimizer_mb", "strategy_mb"), 2.0) | {"peak_mb": None}
    moments = dict.fromkeys(("initialised", "before_step", "after_step"), held)
    parts = [{"rank": rank, "whole_mb": 2.0, "activations_mb": 1.0, **moments} for rank in range(2)]
    found = []
    for name, size, calls in (("naive", 25, 3), ("overlap", 25, 5), ("bucketed", 25, 9), ("bucketed", 1, 15)):
        overrides = (f"sync.name={name}", f"sync.bucket_mb={size}")
        run = build_run(store, Fake(overrides=overrides, extra={**STRATEGY, "collectives": calls}))
        write_columns(run.ranks_dir, COMM_COLUMNS)
        write_json(run.env_file, {**run.env(), "memory_parts": parts})
        for rank in range(2):
            with CallWriter(run.calls_file(rank)) as writer:
                for step in range(50):
                    at = 10**7 * step + rank
                    writer.write(step, [Call("all_reduce", -1, calls * step + n, 50, at, at + 9) for n in range(calls)])
        found.append(run.id)
    return found


def _bench(tour: Tour) -> None:
    tour.run("bench", "ls", document="plugins --json")
    tour.run("bench", "collectives", "--set", "sizes_mib=1,2", document="bench --json")
    few: dict[str, tuple[str, ...]] = {
        "packed_attention": (
            "tokens=16,32", "channels=4", "heads=2", "mean=4", "longest=8", "iterations=2", "warmup=0"
        ),
        "attention": ("lengths=16", "widths=8", "ways=plain,sdpa,flash_torch,flex", "iterations=2", "warmup=0"),
        "precision": ("features=16", "samples=4", "iterations=2", "warmup=0"),
        "transformer": ("contexts=4", "precisions=fp32", "iterations=2", "warmup=0", "local_batch=1"),
        "memory": ("contexts=4", "precisions=fp32", "local_batch=1"),
        "optimizer": ("context=4", "precisions=fp32", "iterations=2", "warmup=0", "local_batch=1", "ranks=1"),
        "accounting": (),
        "nsys": ("contexts=8", "local_batch=1", "precisions=fp32", "iterations=1", "warmup=0", "nsys=never"),
    }  # fmt: skip
    with group_of_one():
        for name, options in few.items():
            tour.run("bench", name, *(word for each in options for word in ("--set", each)), document="bench --json")
    tour.run("bench", "assignment", document="bench assignment --json")


def _others(tour: Tour, store: RunStore, folder: Path) -> None:
    for name in ("t", "two", "strategy", "cells"):
        tour.run("runs", "show", name, document="runs show --json")
    tour.run("runs", "ls", document="runs ls --json")
    tour.run("runs", "export", "two", "-o", str(folder / "two.zip"), document="runs export --json")
    made = next(run for run, record in store.entries() if record.group == store.resolve("two").id)
    reader = store.create("analyze", "comparison")
    write_text(reader.path / "recipe.yaml", f"# {made.id}\n")
    tour.run("runs", "rm", "two", "--with-launches", "--dry-run", document="runs rm --json")
    tour.run("recipes", "ls", document="recipes ls --json")
    tour.run("recipes", "show", document="recipes show --json")
    tour.run("guide", document="guide --json")
    tour.run("guide", "probe", document="guide NAME --json")
    tour.run("recipes", "cp", "quickstart", str(folder / "mine.yaml"), document="recipes cp --json")
    tour.run("doctor", "quickstart", document="doctor --json")
    tour.run("runs", "show", "nothing", document="error --json", code=2)


def written(root: Path) -> Iterator[tuple[str, Path]]:
    """Every JSON, CSV and Parquet file below a folder, with the name of its document; not the numbers of figures."""
    for path in sorted(root.rglob("*")):
        kept = path.suffix in (".json", ".csv", ".parquet") and not path.name.startswith(".")
        if kept and path.parent.name != "figures":
            name = path.name
            if path.parent.name == "ranks" and path.stem.rpartition("_")[2].isdigit():
                name = f"ranks/{path.stem.rpartition('_')[0]}_N{path.suffix}"
            elif path.parent.name == "profiler":
                name = "profile_N.json"
            elif name == "summary.json" and (path.parent / "bench.json").is_file():
                name = f"bench/{name}"
            elif name == "results.csv" and (path.parent / "results.json").is_file():
                name = f"solve/{name}"
            yield name.replace(".parquet", ".csv"), path
