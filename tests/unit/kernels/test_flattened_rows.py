"""Rows of transformers' flattening collator: as transformers makes them, and what is seen of their samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packed import CAUSAL, CHANGES, LENGTHS, row_of, tiny_model, tokens
from torch import nn

from dynbench.errors import UsageError
from dynbench.kernels.flattened_rows import (
    first_position,
    flattened_pass,
    flattened_row,
    look_at_flattened_rows,
    use_flattened_rows,
)
from dynbench.kernels.leak_check import TOLERANCE

SAMPLES = tokens()
ENCODERS = [name for name in CHANGES if name not in CAUSAL]


def test_a_row_is_transformers_own() -> None:
    collator = transformers.DataCollatorWithFlattening(return_tensors="pt", position_ids_start=2)
    expected = collator([{"input_ids": sample} for sample in SAMPLES])
    found = flattened_row(SAMPLES, 2)
    assert {*found} == {*expected} and all(torch.equal(found[name], expected[name]) for name in found)
    assert found["position_ids"][0, : len(SAMPLES[0]) + 1].tolist() == [*range(2, 2 + len(SAMPLES[0])), 2]


@pytest.mark.parametrize("name", ENCODERS)
def test_samples_of_an_encoder_see_each_other(name: str) -> None:
    """It attends to the whole row, whatever its positions say."""
    found = look_at_flattened_rows(tiny_model(name), SAMPLES)
    assert found["foreign_gradient"] > TOLERANCE
    assert "another sample's embeddings" in str(found["leak"]) and found["lengths"] == list(LENGTHS)
    assert found["kernels"] == {"fp32": ["sdpa"]}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_language_model_without_a_cache_keeps_samples_apart(name: str) -> None:
    found = look_at_flattened_rows(tiny_model(name), SAMPLES)
    assert found["leak"] is None and found["foreign_gradient"] == 0
    assert 0 < found["gradient_difference"] < TOLERANCE


@pytest.mark.parametrize("name", CAUSAL)
def test_with_its_cache_a_language_model_does_not_notice_the_samples_of_a_row(name: str) -> None:
    found = look_at_flattened_rows(tiny_model(name), SAMPLES, use_cache=True)
    assert found["foreign_gradient"] > TOLERANCE and "fp32" in str(found["leak"])


def test_half_precision_is_looked_at_too() -> None:
    found = look_at_flattened_rows(tiny_model("llama"), SAMPLES, torch.bfloat16)
    assert found["precisions"] == ["fp32", "bfloat16"] and found["leak"] is None


@pytest.mark.parametrize("name", ENCODERS)
def test_the_head_reads_each_samples_own_state(name: str) -> None:
    """What a layer without attention gives is each sample's own: then the logits are those of the samples alone."""
    model = without_attention(tiny_model(name))
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([sample])).logits[0] for sample in SAMPLES]
        use_flattened_rows(model)
        row = flattened_row(SAMPLES, first_position(model.config))
        together = flattened_pass(model, row, row_of(SAMPLES)[1])()
    assert len(together) == len(SAMPLES)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other)


def test_attention_is_told_of_no_boundaries() -> None:
    model, told = use_flattened_rows(tiny_model("bert")), []
    for part in model.modules():
        if type(part).__name__.endswith("SelfAttention"):
            part.register_forward_pre_hook(lambda _, __, keywords: told.append({*keywords}), with_kwargs=True)
    row, (_, boundaries) = flattened_row(SAMPLES), row_of(SAMPLES)
    model(input_ids=row["input_ids"], position_ids=row["position_ids"], boundaries=boundaries)
    assert told and not any("boundaries" in keywords for keywords in told)


def test_other_heads_are_refused_with_those_that_are_known() -> None:
    config = transformers.AlbertConfig(
        vocab_size=300, hidden_size=16, embedding_size=8, num_attention_heads=2, intermediate_size=32
    )
    with pytest.raises(UsageError, match="AlbertForSequenceClassification is not among"):
        look_at_flattened_rows(transformers.AlbertForSequenceClassification(config), SAMPLES)
    with pytest.raises(UsageError, match="1 of at least 2 samples"):
        look_at_flattened_rows(tiny_model("bert"), SAMPLES[:1])


def without_attention(model: Any) -> Any:
    """The model with attention that gives each token its own value."""

    def own_value(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, None]:
        return value.transpose(1, 2), None

    transformers.AttentionInterface.register("own_value", own_value)
    model.set_attn_implementation("own_value")
    return model
