"""The language model: shapes, data, what no model of its kind may do, and its loss, which is torch's own in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import write_config
from torch import Tensor
from unit.workloads.conftest import configured

from dynbench.config.schema import Config
from dynbench.engine.rank.evaluation import Evaluator
from dynbench.errors import ConfigError, UsageError
from dynbench.kernels.packed_attention import NO_TARGET
from dynbench.plugins import WORKLOADS
from dynbench.plugins.workloads import OF_MODEL
from dynbench.workloads import token_loss
from dynbench.workloads.causal_lm import CausalLanguageModel, language_model, unigram_perplexity
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.models import LANGUAGE_MODEL, make_model
from dynbench.workloads.token_loss import summed_cross_entropy

MILLIONS = {
    "tiny": 1.0, "gpt2-62m": 62.4, "small": 129, "medium": 423,
    "large": 969, "xl-2025": 1998, "xl-2026": 3407, "2.7B": 3407,
}  # fmt: skip
CPU = torch.device("cpu")


def of(*settings: str) -> Config:
    return configured("name=causal_lm", "size=tiny", "dropout=0", *settings)


def language(*settings: str) -> CausalLanguageModel:
    return CausalLanguageModel(of(*settings))


@pytest.mark.parametrize("size", MILLIONS)
def test_sizes_have_their_number_of_parameters(size):
    source = language_model(of(f"size={size}").workload).source(259)
    with torch.device("meta"):
        model = make_model(source.config, size, "", LANGUAGE_MODEL)
    found = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert found == pytest.approx(MILLIONS[size], abs=0.5 if found > 100 else 0.05)
    registered = WORKLOADS["causal_lm"]
    assert source.facts["positions"] == registered.sizes[registered.aliases.get(size, size)].positions
    assert {registered.aliases.get(each, each) for each in MILLIONS} | {OF_MODEL} == set(registered.sizes)


def test_a_size_or_a_model_that_it_does_not_have_is_refused():
    for setting, said in {
        "size=xl": r"Did you mean xl-2025 or xl-2026\?",
        "size=base": "'base' is not a size of causal_lm; known: auto, tiny, gpt2-62m, small",
        "weights=pretrained": r"name one \(--model gpt2",
        "size=model": r"name one \(--model gpt2",
    }.items():
        with pytest.raises(ConfigError, match=said):
            of(setting)


def test_an_evaluation_is_of_the_target_tokens():
    made = language("max_length=32", "subset=64")
    model, ids = made.build_model(0).eval(), np.arange(5)
    batch = made.collate(made.train, ids, 32)
    targets = made.train.lengths[ids].sum() - 5
    assert made.eval_sums(model, batch) == {"loss_sum": made.loss(model, batch).item(), "tokens": targets}


def test_a_sample_of_one_token_has_no_target_and_no_gradient_of_its_own():
    made = language("max_length=32", "subset=64")
    data = TokenisedData.from_samples([[5], [5, 6]], np.zeros(2, np.int64), weights=[0, 1])
    model = made.build_model(0)
    loss = made.loss(model, made.collate(data, np.array([0]), 1))
    loss.backward()
    assert loss.item() == 0 and all(not parameter.grad.any() for parameter in model.parameters())


def test_unigram_perplexity_is_that_of_the_targets():
    data = TokenisedData.from_samples([[9, 1, 2], [8, 1], [7, 3]], np.zeros(3, np.int64))
    shares = np.array([2, 1, 1]) / 4
    assert unigram_perplexity(data, np.arange(3)) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert unigram_perplexity(TokenisedData.from_samples([[5], [6]], np.zeros(2, np.int64)), np.arange(2)) is None


@pytest.mark.parametrize("evaluated", [0, 5, 10_000])
def test_unigram_perplexity_is_of_the_tokens_that_are_evaluated(evaluated):
    config = of("pad_to_multiple_of=1", f"train.eval_samples={evaluated}")
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


ROWS, VOCABULARY, WIDTH = 23, 11, 5
MAKERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda hidden, weight: F.linear(hidden, weight),
    "linear, seen otherwise": lambda hidden, weight: F.linear(hidden[None], weight).flatten(0, 1),
    "raised": lambda hidden, weight: F.linear(hidden.bfloat16(), weight.bfloat16()).float(),
    "capped": lambda hidden, weight: torch.tanh(F.linear(hidden, weight)),
    "capped, seen otherwise": lambda hidden, weight: torch.tanh(F.linear(hidden[None], weight)).flatten(0, 1),
    "given": lambda hidden, weight: weight.T[torch.arange(ROWS) % WIDTH],
}
OVERWRITTEN = {"linear", "linear, seen otherwise", "raised"}


def torchs_own(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=NO_TARGET)


def losses(make: str, loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[Tensor], bool]:
    """The loss and the gradients of what made the logits; and whether the gradient lay where the logits were."""
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, dtype=torch.float64).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (ROWS,))
    labels[torch.rand(ROWS) >= 0.7] = NO_TARGET
    logits, places = MAKERS[make](hidden, weight), []
    logits.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    found = loss(logits, labels)
    (found / 3).backward()
    gradients = [torch.zeros(()) if of.grad is None else of.grad for of in (hidden, weight)]
    return [found.detach(), *gradients], places == [logits.data_ptr()]


@pytest.mark.parametrize("piece", [1, 4 * VOCABULARY, 2**20])
@pytest.mark.parametrize("make", MAKERS)
def test_it_is_torchs_own_in_pieces(monkeypatch, make, piece):
    monkeypatch.setattr(token_loss, "PIECE", piece)
    wanted, _ = losses(make, torchs_own)
    found, over = losses(make, summed_cross_entropy)
    tolerance = 1e-2 if make == "raised" else 1e-12
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert over == (make in OVERWRITTEN)
