"""Perplexity over target tokens in place of an accuracy, on samples that no seed and no number of ranks changes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import batch_of

from dynbench.analysis.evaluations import evaluation_of
from dynbench.analysis.merge import _read_evaluations
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.rank.evaluation import EVAL_BATCH, EVAL_FILE, Evaluator, evaluated_together
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.runs.run import Run
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.policy import Problem
from dynbench.sync.base import Local
from dynbench.workloads.causal_lm import CausalLanguageModel

CPU = torch.device("cpu")
SAMPLES = 90


def configured(seed: int = 0) -> Config:
    settings = ("name=causal_lm", "size=tiny", "dropout=0", "max_length=24", "subset=16", "pad_to_multiple_of=1")
    return load_config(
        None,
        [
            *(f"workload.{setting}" for setting in settings),
            *(f"train.seed={seed}", f"train.eval_samples={SAMPLES}", "train.precision=fp32", "train.global_batch=8"),
        ],
    )


@pytest.fixture(scope="module")
def workload() -> CausalLanguageModel:
    return CausalLanguageModel(configured())


def evaluated(folder: Path, workload: CausalLanguageModel, ranks: int, seed: int = 0) -> dict[str, object]:
    """The last row of eval.csv, of a model of one seed evaluated by several ranks one after another."""
    model, strategy, sums = workload.build_model(0), Local(), []
    strategy.wrap(model, CPU)

    def added(mine):
        sums.append(mine)
        return np.sum(sums, axis=0).tolist()

    for rank in range(ranks):
        file = folder / EVAL_FILE if rank == ranks - 1 else None
        evaluator = Evaluator(configured(seed), workload, CPU, shard=(rank, ranks), sum_over_ranks=added, file=file)
        evaluator.evaluate(3, strategy, Precision("fp32", CPU))
    return _read_evaluations([Run(folder)]).to_dicts()[-1]


@pytest.mark.slow
def test_perplexity_is_of_the_mean_over_target_tokens(tmp_path: Path, workload: CausalLanguageModel) -> None:
    found = evaluated(tmp_path, workload, 1)
    assert workload.eval is not None and list(found) == ["step", "loss", "perplexity", "tokens", "samples"]
    chosen = np.random.default_rng(0).permutation(len(workload.eval))[:SAMPLES]
    model, total = workload.build_model(0).eval(), 0.0
    with torch.no_grad():
        for i in chosen:
            total += workload.loss(model, workload.collate(workload.eval, np.array([i]), 24)).item()
    tokens = int(workload.eval.lengths[chosen].sum()) - SAMPLES
    assert (found["tokens"], found["samples"]) == (tokens, SAMPLES)
    assert found["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)


@pytest.mark.parametrize(("ranks", "seed"), [(3, 0), (1, 5), (4, 7)])
def test_neither_ranks_nor_seeds_change_it(
    tmp_path: Path, workload: CausalLanguageModel, ranks: int, seed: int
) -> None:
    (tmp_path / "one").mkdir()
    alone, shared = evaluated(tmp_path / "one", workload, 1), evaluated(tmp_path, workload, ranks, seed)
    assert shared == {**alone, **{key: pytest.approx(alone[key], rel=1e-5) for key in ("loss", "perplexity")}}


@pytest.mark.parametrize(
    ("capacity", "most"),
    [(Capacity(), EVAL_BATCH), (Capacity.uniform(500), EVAL_BATCH), (Capacity.per_rank((30, 7)), 7),
     (Capacity.table([[(8, 40), (24, 5)]]), 5), (Capacity.table([[(8, 40)]]), 1),
     (PackedCapacity.uniform(24 * 9 + 5), 9), (PackedCapacity.uniform(23), 1)],
)  # fmt: skip
def test_no_more_is_evaluated_together_than_training_has_room_for(
    workload: CausalLanguageModel, capacity: Capacity, most: int
) -> None:
    """In samples as long as the longest of them, which is padded or packed to 24 tokens."""
    assert workload.eval is not None and workload.eval.lengths.max() == 24
    layout = "packed" if isinstance(capacity, PackedCapacity) else "padded"
    problem = Problem(workload.train.lengths, workers=2, global_batch=8, capacity=capacity, layout=layout)
    assert evaluated_together(configured(), problem, workload) == most


def test_a_loss_beyond_all_numbers_has_no_perplexity(tmp_path: Path, workload: CausalLanguageModel) -> None:
    class Lost(CausalLanguageModel):
        def __init__(self) -> None:
            vars(self).update(vars(workload))

        def eval_sums(self, model, batch):
            return {"loss_sum": 1e6 * batch_of(workload, np.arange(1))["labels"].shape[0], "tokens": 1.0}

    assert evaluated(tmp_path, Lost(), 1)["perplexity"] == math.inf


def test_the_summary_puts_single_tokens_beside_it(tmp_path: Path, workload: CausalLanguageModel) -> None:
    evaluated(tmp_path, workload, 1)
    rows = _read_evaluations([Run(tmp_path)])
    found = evaluation_of(rows, workload.facts["unigram_perplexity"])
    assert found is not None and "accuracy" not in found
    assert found["unigram_perplexity"] == workload.facts["unigram_perplexity"] > 10
    assert evaluation_of(rows.drop("perplexity", "tokens"), None) == {
        "step": 3,
        "loss": found["loss"],
        "samples": SAMPLES,
    }
