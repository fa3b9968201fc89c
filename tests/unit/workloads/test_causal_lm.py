"""The language model: shapes, data, losses over target tokens, and what no model of its kind may do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import write_config
from batches import batch_of

from dynbench.config.layers import load_config
from dynbench.engine.rank.evaluation import Evaluator
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import WORKLOADS
from dynbench.plugins.workloads import OF_MODEL
from dynbench.workloads.causal_lm import CausalLanguageModel, language_model, unigram_perplexity
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.datasets import generated as language
from dynbench.workloads.models import LANGUAGE_MODEL, make_model
from dynbench.workloads.token_loss import check_sums

MILLIONS = {
    "tiny": 1.0, "gpt2-62m": 62.4, "small": 129, "medium": 423,
    "large": 969, "xl-2025": 1998, "xl-2026": 3407, "2.7B": 3407,
}  # fmt: skip
BYTES = 259
CPU = torch.device("cpu")


def configured(*settings: str):
    return load_config(None, ["workload.name=causal_lm", "workload.size=tiny", "workload.dropout=0", *settings])


@pytest.fixture(scope="module")
def made() -> CausalLanguageModel:
    return CausalLanguageModel(configured("workload.max_length=32", "workload.subset=64"))


@pytest.mark.parametrize("size", MILLIONS)
def test_sizes_have_their_number_of_parameters(size):
    source = language_model(configured(f"workload.size={size}").workload).source(BYTES)
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
        load_config(None, ["workload.name=causal_lm", f"workload.{setting}"])


def test_the_loss_is_the_sum_over_the_next_tokens(made):
    model = made.build_model(0).double().eval()
    ids = np.arange(5)
    wanted = 0.0
    for i in ids:
        tokens = torch.from_numpy(made.train.tokens[made.train.offsets[i] : made.train.offsets[i + 1]]).long()
        logits = model(input_ids=tokens[None]).logits[0, :-1]
        wanted += F.cross_entropy(logits, tokens[1:], reduction="sum").item()
    batch = batch_of(made, ids)
    sums = made.eval_sums(model, batch)
    assert made.loss(model, batch).item() == pytest.approx(wanted, rel=1e-12)
    assert (
        sums["loss_sum"] == pytest.approx(wanted, rel=1e-6)
        and sums["tokens"] == made.train.weight(ids)
        and "correct" not in sums
    )


def test_what_pads_counts_nothing_and_changes_nothing(made):
    model, ids = made.build_model(0).double().eval(), np.array([1, 2])
    short, long = (made.collate(made.train, ids, width) for width in (32, 64))
    long["input_ids"][:, 32:] = 7
    assert made.loss(model, long).item() == pytest.approx(made.loss(model, short).item(), rel=1e-12)
    check_sums(made, model.float(), "causal_lm", torch.device("cpu"))


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
    config = configured(f"train.eval_samples={evaluated}", "workload.pad_to_multiple_of=1")
    workload, given = CausalLanguageModel(config), []
    for rank in range(3):
        evaluator = Evaluator(config, workload, CPU, shard=(rank, 3), sum_over_ranks=list, file=None)
        given += [int(sample) for batch in evaluator._batches or () for sample in batch]
    assert len(given) == min(evaluated, len(workload.eval))
    wanted = unigram_perplexity(workload.eval, np.array(given)) if given else None
    assert workload.facts["unigram_perplexity"] == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.slow
def test_samples_end_where_the_models_positions_end(caplog):
    workload = CausalLanguageModel(configured("workload.max_length=4000", "workload.dataset=lognormal"))
    assert workload.positions == 1024 == workload.train.lengths.max()
    assert "the model has 1024 positions" in caplog.text
    assert workload.facts["decisions"]["workload.max_length"]["value"] == 1024


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "opt", "bloom"])
def test_a_configuration_gives_the_shape(tmp_path, architecture):
    folder = write_config(tmp_path / "m", architecture)
    workload = CausalLanguageModel(
        configured("workload.size=auto", f"workload.model={folder}", "workload.max_length=16")
    )
    model = workload.build_model(3).double().eval()
    assert workload.facts["model"]["vocab_size"] == language.WALK_VOCAB_SIZE
    check_sums(workload, model, architecture, torch.device("cpu"))


def test_a_model_that_looks_ahead_is_refused(tmp_path):
    folder = write_config(tmp_path / "m", "bert")
    workload = CausalLanguageModel(configured("workload.size=model", f"workload.model={folder}"))
    with pytest.raises(UsageError, match="no causal language model"):
        workload.build_model(0)


def test_pretrained_weights_are_those_of_the_folder(tmp_path):
    config = language_model(configured().workload).source(language.WALK_VOCAB_SIZE).config
    saved = make_model(config, "saved", "", LANGUAGE_MODEL)
    saved.save_pretrained(tmp_path)
    settings = ("workload.weights=pretrained", f"workload.model={tmp_path}", "workload.max_length=16")
    found = CausalLanguageModel(configured(*settings)).build_model(5)
    for name, value in saved.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value)
