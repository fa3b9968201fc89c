"""A run on texts and a run on their exported lengths plan the same steps: that is what sharing lengths is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from multiproc.launches import sets

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.planning import build_problem
from dynbench.runs.records import work_hash
from dynbench.schedule.policy import Planner
from dynbench.workloads.registry import build_workload

STEPS, RANKS = 14, 2
BASE = ("train.global_batch=16", "workload.max_length=24", "train.seed=3", "schedule.mode=dynamic", "schedule.window=2")
"""More steps than an epoch has, texts that are cut, a seed of its own."""


def write_reviews(path: Path, n: int) -> str:
    """Texts of 1 to 40 words."""
    counts = np.random.default_rng(n).integers(1, 41, n)
    rows = [f"{' '.join(['good', 'film'][i % 2] for i in range(count))}\t{row % 2}" for row, count in enumerate(counts)]
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module", autouse=True)
def own_cache(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNBENCH_CACHE", str(folder / "cache"))
        yield


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, tuple[str, ...]]:
    """Settings of text data sets."""
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nfilm\n", encoding="utf-8")
    data, dev = write_reviews(folder / "train.tsv", 200), write_reviews(folder / "dev.tsv", 30)
    own = ("workload.dataset=tsv", f"workload.data_path={data}", f"workload.tokenizer={vocabulary}")
    return {
        "held out": own,
        "evaluation file": (*own, f"workload.eval_path={dev}"),
        "subset exported": (*own, "workload.subset=100"),
        "generated": ("workload.dataset=embedded", "workload.subset=120"),
    }


def exported(settings: tuple[str, ...], path: Path, *more: str) -> Config:
    """The configuration of a run on the lengths of a text data set, exported by the command."""
    if not path.exists():
        assert main(["data", "lengths", *sets(*BASE, *settings), "-o", str(path)]) == 0
    return load_config(None, [*BASE, *more, "workload.dataset=lengths", f"workload.data_path={path}"])


def steps(config: Config, policy: str) -> tuple[list[object], list[int]]:
    """Sample ids per step, rank and micro-batch, and each step's work hash, as the ranks make them."""
    workload = build_workload(config)
    lengths = workload.train.lengths
    planner = Planner(policy, build_problem(config, lengths, RANKS, 1, None, workload.positions))
    plans, hashes = [], []
    for step in range(STEPS):
        shares = planner.plan(step).shares
        plans.append([[ids.tolist() for ids in share] for share in shares])
        ids = np.concatenate([np.concatenate(share) for share in shares])
        hashes.append(work_hash(ids, lengths[ids]))
    return plans, hashes


@pytest.mark.parametrize("policy", ["partition", "prefix"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt", ".npy", ".parquet"])
@pytest.mark.parametrize("name", ["held out", "evaluation file", "subset exported", "generated"])
def test_lengths_plan_as_their_texts(texts, folder: Path, name: str, suffix: str, policy: str) -> None:
    lengths = exported(texts[name], folder / f"{name}{suffix}")
    assert steps(load_config(None, [*BASE, *texts[name]]), policy) == steps(lengths, policy)


@pytest.mark.parametrize("more", ["train.seed=8", "workload.subset=100"])
def test_where_no_subset_was_exported_a_file_holds_for_every_seed_and_subset(texts, folder: Path, more: str) -> None:
    path = folder / "held out.parquet"
    lengths = steps(exported(texts["held out"], path, more), "partition")
    assert steps(load_config(None, [*BASE, *texts["held out"], more]), "partition") == lengths
    assert lengths != steps(exported(texts["held out"], path), "partition")
