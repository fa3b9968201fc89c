"""A run on texts and a run on their exported lengths plan the same steps: that is what sharing lengths is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Texts:
    """A text data set: its settings, and those that its lengths are run with."""

    settings: tuple[str, ...]
    replay: tuple[str, ...] = ()
    samples: int = 180


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
def texts(folder: Path) -> dict[str, Texts]:
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nfilm\n", encoding="utf-8")
    data, dev = write_reviews(folder / "train.tsv", 200), write_reviews(folder / "dev.tsv", 30)
    own = ("workload.dataset=tsv", f"workload.data_path={data}", f"workload.tokenizer={vocabulary}")
    return {
        "held out": Texts(own),
        "evaluation file": Texts((*own, f"workload.eval_path={dev}"), samples=200),
        "subset exported": Texts((*own, "workload.subset=100"), samples=100),
        "subset drawn again": Texts(own, ("workload.subset=100",)),
        "generated": Texts(("workload.dataset=embedded", "workload.subset=120"), samples=120),
    }


CASES = ("held out", "evaluation file", "subset exported", "subset drawn again", "generated")


def exported(case: Texts, path: Path) -> Config:
    """The configuration of a run on the lengths of a text data set, exported by the command."""
    if not path.exists():
        assert main(["data", "lengths", *sets(*BASE, *case.settings), "-o", str(path)]) == 0
    return load_config(None, [*BASE, *case.replay, "workload.dataset=lengths", f"workload.data_path={path}"])


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
@pytest.mark.parametrize("name", CASES)
def test_lengths_plan_as_their_texts(texts: dict[str, Texts], folder: Path, name: str, policy: str) -> None:
    case = texts[name]
    lengths = exported(case, folder / f"{name}.parquet")
    assert steps(load_config(None, [*BASE, *case.settings, *case.replay]), policy) == steps(lengths, policy)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt", ".npy", ".parquet"])
@pytest.mark.parametrize("name", CASES)
def test_every_format_holds_what_is_trained_on(texts: dict[str, Texts], folder: Path, name: str, suffix: str) -> None:
    case = texts[name]
    lengths = build_workload(exported(case, folder / f"{name}{suffix}"))
    trained = build_workload(load_config(None, [*BASE, *case.settings, *case.replay]))
    assert lengths.train.lengths.tolist() == trained.train.lengths.tolist()
    assert len((folder / f"{name}{suffix}").read_bytes()) > 2 * case.samples


def test_another_seed_of_the_same_file_plans_as_its_texts_too(texts: dict[str, Texts], folder: Path) -> None:
    """Where no subset was exported, the file holds for every seed."""
    case, other = texts["held out"], ("train.seed=8",)
    lengths = exported(case, folder / "held out.parquet")
    again = lengths.model_copy(update={"train": lengths.train.model_copy(update={"seed": 8})})
    of_texts = steps(load_config(None, [*BASE, *case.settings, *other]), "partition")
    assert of_texts == steps(again, "partition") != steps(lengths, "partition")
