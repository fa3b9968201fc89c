"""Every command once, in this process: what it prints under `--json`, and the files it leaves.

Analyses are of the recorded runs of the goldens; only what would launch ranks is stood in for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from bad_input import run
from golden.corpus import Desk, desk
from unit.bench.test_bench_run import group_of_one, launched_at_once
from unit.cli.test_train import TINY, launched
from unit.engine.rank.test_toy_check import checked_at_once

from dynbench.analysis import figures
from dynbench.bench import bench_run
from dynbench.cli import trained
from dynbench.cli.main import GROUPS
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
        at: where they ran.
        printed: (name of the document, object) of everything printed.
    """

    at: Desk
    printed: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The registry."""
        return self.at.results

    def run(self, *lines: str, document: str = "", code: int = 0) -> None:
        """Run commands and keep what they print, which is the document of their name where none is given."""
        for line in lines:
            words = line.split()
            said = run(*words, "--json")
            assert said.code == code, said
            name = " ".join(words[: 2 if words[0] in GROUPS else 1])
            self.printed.append((document or f"{name} --json", json.loads(said.out)))


def take_tour(folder: Path) -> Tour:
    """Run every command."""
    with desk(folder) as at, pytest.MonkeyPatch.context() as patch:
        tour, store = Tour(at), RunStore(at.results)
        for name in RECORDED:
            at.unpack(name)
        for left in tour.root.glob("*/ranks/facts.json"):  # which later versions remove
            left.unlink()
        patch.setattr(figures, "draw_figure", _draws_the_first(figures.draw_figure))
        patch.setattr(training, "launch_arms", launched)
        patch.setattr(prober, "run_probe", lambda *_, **__: store.resolve("probed"))
        patch.setattr(bench_run, "launch_ranks", launched_at_once({}))
        patch.setattr(toy_ranks, "_on_processes", checked_at_once)
        patch.setattr(suite, "ORDER", ("accounting",))
        patch.setattr(suite, "RECIPES", {})
        _single_runs(tour, store)
        _comparisons(tour, store)
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
    tour.run(f"eval {folder} --max-length 8 --set train.eval_samples=4", f"generate {folder} --prompt a --length 2")


def _single_runs(tour: Tour, store: RunStore) -> None:
    tiny = " ".join(TINY)
    epoch = " ".join(TINY[:6]) + " --warmup-steps 1 --epochs 1 --subset 48"
    tour.run(f"train {tiny} --name t", f"train {epoch} --name e")
    tour.run(f"train {tiny} --dry-run", document="train --dry-run --json")
    (store.resolve("t").path / "tensorboard").mkdir()
    with mock.patch.multiple(trained, serve=lambda *_: "http://localhost:6006/", wait_for_ctrl_c=lambda: None):
        tour.run("tensorboard t")
    for name in ("exposed", "profiled", "packed", "virtual", "served", "language", "slowed", "within"):
        tour.run(f"analyze {name}")
    failed = store.resolve("served")
    record_failure(failed, 0, WorkerFailed("rank 0 died", "See its log."))
    failed.update(failure={"kind": "worker", "message": "rank 0 died", "rank": 0, "log": "logs/rank_0.err"})
    Turns(("a", "b")).write(failed.path)
    too_many = "8192"  # ranks for the trace: skipped
    tour.run("probe", f"solve lognormal --steps 4 --world-size 2,{too_many}")
    tour.run("solve --list", document="solve --list --json")
    tour.run("plugins", "sync ls", "bench ls", document="plugins --json")
    tour.run("compress ls", "sync check ddp", "sync demo --ranks 2", f"data lengths --subset 90 -o {tour.root}/l.npy")
    (tour.root.parent / f"{0:032}.npz").write_bytes(b"kept")
    articles = [{"id": "1", "title": "One", "text": "word", "url": "u"}]
    with (
        mock.patch("datasets.load_dataset", return_value=articles),
        mock.patch.multiple(hub, why_unreachable=lambda *_: "", constants=mock.Mock(HF_HUB_OFFLINE=False)),
    ):
        tour.run(f"data cache --folder {tour.root.parent}", f"data wikipedia -o {tour.root.parent}/w.json")


def _comparisons(tour: Tour, store: RunStore) -> None:
    whole = {
        run.id.split("-")[2]: run
        for run, record in store.entries()
        if (record.command, record.group) == ("compare", None)
    }
    tour.run(*(f"analyze {whole[name].id}" for name in ("buckets", "scaling")))
    for name in ("buckets", "regimes"):
        whole[name].update(name=name)
        tour.run(f"compare --resume {name}")
    tour.run("compare quickstart --dry-run", "compare regimes --dry-run", document="compare --dry-run --json")
    tour.run("report buckets")


def _bench(tour: Tour) -> None:
    fp32, once, twice = "precisions=fp32 local_batch=1", "iterations=1 warmup=0", "iterations=2 warmup=0"
    few = {
        "collectives": "sizes_mib=1,2",
        "packed_attention": f"tokens=16,32 channels=4 heads=2 mean=4 longest=8 {twice}",
        "attention": f"lengths=16 widths=8 ways=plain,sdpa,flash_torch,flex {twice}",
        "precision": f"features=16 samples=4 {twice}",
        "transformer": f"contexts=4 {fp32} {twice}",
        "memory": f"contexts=4 {fp32}",
        "optimizer": f"context=4 {fp32} ranks=1 {twice}",
        "accounting": "",
        "nsys": f"contexts=8 {fp32} nsys=never {once}",
    }
    with group_of_one():
        tour.run(*(" --set ".join([f"bench {name}", *options.split()]) for name, options in few.items()))
    tour.run("bench assignment", document="bench assignment --json")


def _others(tour: Tour, folder: Path) -> None:
    store = RunStore(tour.root)
    tour.run(*(f"runs show {name}" for name in ("t", "buckets", "served", "regimes")))
    tour.run("runs ls", f"runs export buckets -o {folder}/two.zip")
    made = next(run for run, record in store.entries() if record.group == store.resolve("buckets").id)
    reader = store.create("analyze", "comparison")
    write_text(reader.path / "recipe.yaml", f"# {made.id}\n")
    tour.run("runs rm buckets --with-launches --dry-run", "recipes ls", "recipes show", "completion bash", "guide")
    tour.run("guide probe", document="guide NAME --json")
    tour.run(f"recipes cp quickstart {folder}/mine.yaml", "doctor quickstart")
    tour.run("runs show nothing", document="error --json", code=2)


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
