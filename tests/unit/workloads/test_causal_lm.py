"""The language model: shapes, data, losses over target tokens, and what no model of its kind may do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from architectures import write_config
from batches import batch_of

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.rank.evaluation import Evaluator
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import WORKLOADS
from dynbench.plugins.workloads import OF_MODEL
from dynbench.workloads.causal_lm import CausalLanguageModel, language_model, unigram_perplexity
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.models import LANGUAGE_MODEL, make_model

MILLIONS = {
    "tiny": 1.0, "gpt2-62m": 62.4, "small": 129, "medium": 423,
    "large": 969, "xl-2025": 1998, "xl-2026": 3407, "2.7B": 3407,
}  # fmt: skip
BYTES = 259
CPU = torch.device("cpu")


def configured(*settings: str) -> Config:
    """Those without a section are of the workload."""
    given = ["name=causal_lm", "size=tiny", "dropout=0", *settings]
    return load_config(None, [each if "." in each.partition("=")[0] else f"workload.{each}" for each in given])


def language(*settings: str) -> CausalLanguageModel:
    return CausalLanguageModel(configured(*settings))


@pytest.fixture(scope="module")
def made() -> CausalLanguageModel:
    return language("max_length=32", "subset=64")


@pytest.mark.parametrize("size", MILLIONS)
def test_sizes_have_their_number_of_parameters(size):
    source = language_model(configured(f"size={size}").workload).source(BYTES)
    with torch.device("meta"):
        model = make_model(source.config, size, "", LANGUAGE_MODEL)
    found = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert found == pytest.approx(MILLIONS[size], abs=0.5 if found > 100 else 0.05)
    registered = WORKLOADS["causal_lm"]
    assert source.facts["positions"] == registered.sizes[registered.aliases.get(size, size)].positions
    assert {registered.aliases.get(each, each) for each in MILLIONS} | {OF_MODEL} == set(registered.sizes)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("size=xl", r"Did you mean xl-2025 or xl-2026\?"),
        ("size=base", "'base' is not a size of causal_lm; known: auto, tiny, gpt2-62m, small"),
        ("weights=pretrained", r"name one \(--model gpt2"),
        ("size=model", r"name one \(--model gpt2"),
    ],
)
def test_a_size_or_a_model_that_it_does_not_have_is_refused(setting, said):
    with pytest.raises(ConfigError, match=said):
        configured(setting)


def test_an_evaluation_is_of_the_target_tokens(made):
    model, ids = made.build_model(0).eval(), np.arange(5)
    batch, targets = batch_of(made, ids), made.train.weight(ids)
    assert made.eval_sums(model, batch) == {"loss_sum": made.loss(model, batch).item(), "tokens": targets}


def test_a_sample_of_one_token_has_no_target_and_no_gradient_of_its_own(made):
    data = TokenisedData.from_samples([[5], [5, 6]], np.zeros(2, np.int64), weights=[0, 1])
    model = made.build_model(0)
    loss = made.loss(model, made.collate(data, np.array([0]), 1))
    loss.backward()
    assert loss.item() == 0 and all(not parameter.grad.any() for parameter in model.parameters())


def test_unigram_perplexity_is_that_of_the_targets():
    data = TokenisedData.from_samples([[9, 1, 2], [8, 1], [7, 3]], np.zeros(3, np.int64))
    shares = np.array([2, 1, 1]) / 4
    assert unigram_perplexity(data, np.arange(3)) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert unigram_perplexity(data, np.array([1, 2])) == pytest.approx(2)
    assert unigram_perplexity(TokenisedData.from_samples([[5], [6]], np.zeros(2, np.int64)), np.arange(2)) is None


@pytest.mark.parametrize("evaluated", [0, 5, 10_000])
def test_unigram_perplexity_is_of_the_tokens_that_are_evaluated(tmp_path, evaluated):
    config = configured(f"train.eval_samples={evaluated}", "pad_to_multiple_of=1")
    workload, given = CausalLanguageModel(config), []
    for rank in range(3):
        evaluator = Evaluator(config, workload, CPU, shard=(rank, 3), sum_over_ranks=list, file=None)
        given += [int(sample) for batch in evaluator._batches or () for sample in batch]
    assert len(given) == min(evaluated, len(workload.eval))
    wanted = pytest.approx(unigram_perplexity(workload.eval, np.array(given))) if given else None
    assert workload.facts["unigram_perplexity"] == wanted


@pytest.mark.slow
def test_samples_end_where_the_models_positions_end(caplog):
    workload = language("max_length=4000", "dataset=lognormal")
    assert workload.positions == 1024 == workload.train.lengths.max()
    assert "the model has 1024 positions" in caplog.text
    assert workload.facts["decisions"]["workload.max_length"]["value"] == 1024


def test_a_model_that_looks_ahead_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no causal language model"):
        language("size=model", f"model={write_config(tmp_path / 'm', 'bert')}").build_model(0)
