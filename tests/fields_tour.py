"""Every command once, in this process: what it prints under `--json`, and the files it leaves.

Analyses are of the recorded runs of the goldens; only what would launch ranks is stood in for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pixel
import pytest
from golden.corpus import unpack
from unit.bench.test_bench_run import group_of_one, launched_at_once
from unit.cli.test_train import TINY, launched
from unit.engine.rank.test_toy_check import checked_at_once

from dynbench.analysis import figures
from dynbench.bench import bench_run
from dynbench.cli import trained
from dynbench.cli.main import main
from dynbench.config.schema import Workload
from dynbench.engine.failure import record_failure
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.engine.turn_order import Turns
from dynbench.errors import WorkerFailed
from dynbench.experiment import training
from dynbench.experiment.assignment import suite
from dynbench.probe import prober
from dynbench.runs.atomic import write_text
from dynbench.runs.store import RunStore
from dynbench.workloads import hub
from dynbench.workloads.causal_lm import language_model
from dynbench.workloads.datasets.generated import WALK_VOCAB_SIZE
from dynbench.workloads.models import LANGUAGE_MODEL, save_model
from dynbench.workloads.tokenizer import load_tokenizer

RECORDED = ("single", "regimes", "buckets", "scaling")


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
    for name in RECORDED:
        unpack(name, tour.root)
    for left in tour.root.glob("*/ranks/facts.json"):  # which later versions remove
        left.unlink()
    with pytest.MonkeyPatch.context() as patch:
        pixel.unrendered(patch)
        patch.setattr(figures, "draw_figure", _draws_the_first(figures.draw_figure))
        patch.delenv("DYNBENCH_RESULTS", raising=False)
        patch.setattr(training, "launch_arms", launched)
        patch.setattr(prober, "run_probe", lambda *_, **__: store.resolve("probed"))
        patch.setattr(bench_run, "launch_ranks", launched_at_once({}))
        patch.setattr(toy_ranks, "_on_processes", checked_at_once)
        patch.setattr(suite, "ORDER", ("accounting",))
        patch.setattr(suite, "RECIPES", {})
        _single_runs(tour, store)
        _comparisons(tour, store, folder)
        _bench(tour)
        _saved(tour, folder / "model")
        _others(tour, folder)
    return tour


def _draws_the_first(draw: Callable[..., Any]) -> Callable[..., Any]:
    """One figure of each kind is enough: drawing takes longer than all else of an analysis."""
    return lambda kind, name, source: draw(kind, name, source) if name == next(iter(figures.FIGURES[kind])) else None


def _saved(tour: Tour, folder: Path) -> None:
    settings = Workload(name="causal_lm", size="tiny")
    source = language_model(settings).source(WALK_VOCAB_SIZE)
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
    for name in ("exposed", "profiled", "packed", "virtual", "served", "language", "slowed", "within"):
        tour.run("analyze", name, document="analyze --json")
    failed = store.resolve("served")
    record_failure(failed, 0, WorkerFailed("rank 0 died", "See its log."))
    failed.update(failure={"kind": "worker", "message": "rank 0 died", "rank": 0, "log": "logs/rank_0.err"})
    Turns(("a", "b")).write(failed.path)
    tour.run("probe", document="probe --json")
    too_many = "8192"  # ranks for the trace: skipped
    tour.run("solve", "lognormal", "--steps", "4", "--world-size", f"2,{too_many}", document="solve --json")
    tour.run("solve", "--list", document="solve --list --json")
    tour.run("plugins", document="plugins --json")
    tour.run("sync", "ls", document="plugins --json")
    tour.run("compress", "ls", document="compress ls --json")
    tour.run("sync", "check", "ddp", document="sync check --json")
    tour.run("sync", "demo", "--ranks", "2", document="sync demo --json")
    tour.run("data", "lengths", "--subset", "90", "-o", str(tour.root / "l.npy"), document="data lengths --json")
    (tour.root.parent / f"{0:032}.npz").write_bytes(b"kept")
    tour.run("data", "cache", "--folder", str(tour.root.parent), document="data cache --json")
    articles = [{"id": "1", "title": "One", "text": "word", "url": "u"}]
    with (
        mock.patch("datasets.load_dataset", return_value=articles),
        mock.patch.multiple(hub, why_unreachable=lambda *_: "", constants=mock.Mock(HF_HUB_OFFLINE=False)),
    ):
        tour.run("data", "wikipedia", "-o", str(tour.root.parent / "w.json"), document="data wikipedia --json")


def _comparisons(tour: Tour, store: RunStore, folder: Path) -> None:
    whole = {
        run.id.split("-")[2]: run
        for run, record in store.entries()
        if (record.command, record.group) == ("compare", None)
    }
    for name in ("buckets", "scaling"):
        tour.run("analyze", whole[name].id, document="analyze --json")
    for name in ("buckets", "regimes"):
        whole[name].update(name=name)
        tour.run("compare", "--resume", name, document="compare --json")
    for recipe in ("quickstart", "regimes"):
        tour.run("compare", recipe, "--dry-run", document="compare --dry-run --json")
    tour.run("report", "buckets", document="report --json")


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


def _others(tour: Tour, folder: Path) -> None:
    store = RunStore(tour.root)
    for name in ("t", "buckets", "served", "regimes"):
        tour.run("runs", "show", name, document="runs show --json")
    tour.run("runs", "ls", document="runs ls --json")
    tour.run("runs", "export", "buckets", "-o", str(folder / "two.zip"), document="runs export --json")
    made = next(run for run, record in store.entries() if record.group == store.resolve("buckets").id)
    reader = store.create("analyze", "comparison")
    write_text(reader.path / "recipe.yaml", f"# {made.id}\n")
    tour.run("runs", "rm", "buckets", "--with-launches", "--dry-run", document="runs rm --json")
    tour.run("recipes", "ls", document="recipes ls --json")
    tour.run("recipes", "show", document="recipes show --json")
    tour.run("completion", "bash", document="completion --json")
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
