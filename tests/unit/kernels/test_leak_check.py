"""Models on packed rows give what they give on each sample alone; what leaks is found, in flattened rows too."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from architectures import CONFIGS
from packed import CAUSAL, CHANGES, LENGTHS, WINDOW, row_of, tiny_model, tokens
from torch import Tensor

from dynbench.errors import LeakFound, UsageError
from dynbench.kernels import Boundaries, check_packed_rows, packed_attention, use_packed_rows
from dynbench.kernels.leak_check import TOLERANCE, Seen, alone_pass, compare, look_at_flattened_rows, observe, row_pass
from dynbench.kernels.packed_models import KNOWN, first_position, flattened_row, use_flattened_rows
from dynbench.workloads.models import CLASSIFIER

SAMPLES = tokens()
ROW, BOUNDARIES = row_of(SAMPLES)


@pytest.mark.parametrize("name", CHANGES)
def test_packed_is_what_each_sample_alone_is(name):
    """Also where a text holds the token of the padding."""
    model = tiny_model(name)
    pad = model.config.pad_token_id or 0
    *others, longest = SAMPLES
    samples = [[pad, *longest[1:4], pad, *longest[5:]], *others, [7, pad]]
    found = check_packed_rows(model, samples, autocast=torch.bfloat16)
    assert found["kernels"] == {each: ["by_length", "repadded"] for each in ("fp32", "bfloat16")}
    assert found["lengths"] == sorted((*LENGTHS, 2)) and found["precisions"] == ["fp32", "bfloat16"]
    assert found["foreign_gradient"] == 0 and 0 < found["gradient_difference"] < TOLERANCE
    assert all(parameter.grad is None for parameter in model.parameters()) and not model.training


@pytest.mark.parametrize("name", CHANGES)
def test_a_boundary_off_by_one_is_found(name, monkeypatch):
    """In attention alone: positions and the head's tokens are right."""
    attend = packed_attention.attend

    def shifted(*given: Any, **options: Any) -> Tensor:
        *states, boundaries = given
        *before, last, longest = boundaries.lengths
        wrong = Boundaries((*before, last + 1, longest - 1), arrangement=boundaries.arrangement)
        return attend(*states, wrong, **options)

    monkeypatch.setattr(packed_attention, "attend", shifted)
    with pytest.raises(LeakFound, match=r"packed row of \[1, 3, 3, 5, 9, 12\] tokens in fp32: the gradient"):
        check_packed_rows(tiny_model(name), SAMPLES)


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in CAUSAL and "mean" not in name])
def test_a_head_that_reads_the_token_beside_its_own_is_found(name):
    model = tiny_model(name)
    alone = observe(model, alone_pass(model, ROW, BOUNDARIES))
    use_packed_rows(model)
    wrong = Boundaries((2, 2, *LENGTHS[2:]))
    assert compare(observe(model, row_pass(model, wrong, input_ids=ROW)), alone, LENGTHS).fault() is not None


@pytest.mark.parametrize("name", ["modernbert, first token", "modernbert, mean"])
def test_a_window_that_is_not_kept_is_found(name, monkeypatch):
    assert max(LENGTHS) > WINDOW
    attend = packed_attention.attend
    monkeypatch.setattr(packed_attention, "attend", lambda *given, window, **more: attend(*given, window=None, **more))
    with pytest.raises(LeakFound, match="differ from those of each sample alone"):
        check_packed_rows(tiny_model(name), SAMPLES)


@pytest.mark.parametrize("longest", [12, 24])
def test_positions_that_depend_on_the_longest_sample_are_found(longest):
    """Rows and padded batches shift them alike."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    model = tiny_model("llama", max_position_embeddings=12, rope_parameters=dynamic)
    with pytest.raises(LeakFound, match="outputs differ") if longest > 12 else nullcontext():
        check_packed_rows(model, [*SAMPLES, tokens((longest,))[0]])


def test_what_is_no_number_is_a_fault():
    worst = Seen(0.0, float("nan"), 0.0).worst(Seen(0.0, 1.0, 0.0))
    assert "outputs differ" in str(worst.fault()) and Seen(float("nan")).fault() is not None
    assert Seen(0.0, 1e-6, 1e-6).fault() is None and "gradients" in str(Seen(0.0, 0.0, 2e-5).fault())


def test_dropout_is_off_in_the_check_and_on_in_training():
    model = tiny_model("distilbert", attention_dropout=0.5, dropout=0.5).train()
    check_packed_rows(model, SAMPLES)
    assert model.training
    once, again = (model(input_ids=ROW, boundaries=BOUNDARIES).logits for _ in range(2))
    assert once.shape == (len(SAMPLES), 3) and not torch.equal(once, again)


def leaking(query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries, *_: Any) -> Tensor:
    """A kernel that sees the whole row, and drops nothing."""
    return query + key.mean((0, 1)) * value.mean((0, 1))


@pytest.mark.parametrize("name", ["distilbert", "bert", "roberta", "modernbert, mean", "gpt2", "llama"])
@pytest.mark.parametrize("dropping", [True, False], ids=["training", "evaluation"])
def test_the_kernels_of_training_and_of_evaluation_are_both_checked(name, dropping, monkeypatch):
    """Which one runs depends on the rate of dropout; in half precision on GPUs these are three."""
    rates = {**dict.fromkeys(("bert", "roberta"), "attention_probs_dropout_prob"), "gpt2": "attn_pdrop"}
    model = tiny_model(name, **{rates.get(name, "attention_dropout"): 0.3})
    rates_seen: set[float] = set()

    def chosen(query: Tensor, dropout: float) -> Any:
        rates_seen.add(dropout)
        return leaking if query.dtype is torch.bfloat16 and bool(dropout) is dropping else None

    monkeypatch.setattr(packed_attention, "variable_length_kernel", chosen)
    with pytest.raises(LeakFound, match="tokens in bfloat16: the gradient of a sample's output to another"):
        check_packed_rows(model, SAMPLES, autocast=torch.bfloat16)
    assert 0.3 in rates_seen and not any(part.training for part in model.modules())


@pytest.mark.parametrize("given", [SAMPLES[:1], []])
def test_a_sample_alone_proves_nothing(given):
    with pytest.raises(UsageError, match="of at least 2 samples"):
        check_packed_rows(tiny_model("bert"), given)


@pytest.mark.parametrize("name", CHANGES)
def test_a_prepared_model_takes_packed_rows_only(name):
    model = use_packed_rows(tiny_model(name))
    for said, given in {
        "without boundaries": {"input_ids": ROW},
        "attention mask": {"input_ids": ROW, "boundaries": BOUNDARIES, "attention_mask": torch.ones_like(ROW)},
        "boundaries of 33 tokens came with": {"input_ids": ROW[:, :-1], "boundaries": BOUNDARIES},
    }.items():
        with pytest.raises(UsageError, match=said):
            model(**given)


def test_it_is_prepared_once_and_shares_its_configuration_with_no_other():
    config = transformers.AutoConfig.for_model("distilbert", dim=16, hidden_dim=32, n_layers=1, n_heads=2)
    make = transformers.DistilBertForSequenceClassification
    model, other = make(config), make(config)
    before = config._attn_implementation
    hooks = [len(use_packed_rows(model).base_model._forward_pre_hooks) for _ in range(2)]
    assert hooks == [1, 1] and other.config._attn_implementation == before != model.config._attn_implementation
    assert other(input_ids=torch.tensor([[3, 4]])).logits.shape == (1, 2)
    assert "_attn_implementation" not in str(model.config.to_dict())


def test_other_models_are_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="AlbertForSequenceClassification is not among") as caught:
        use_packed_rows(CLASSIFIER.auto_class().from_config(transformers.AlbertConfig(**CONFIGS["albert"])))
    assert all(name in caught.value.hint for name in KNOWN)
    with pytest.raises(UsageError, match="is_decoder True"):
        use_packed_rows(tiny_model("bert", is_decoder=True))


def test_a_layer_that_boundaries_do_not_get_to_is_no_guess():
    model = use_packed_rows(tiny_model("distilbert"))
    with pytest.raises(UsageError, match="DistilBertSelfAttention: the boundaries of the packed row did not get"):
        model.distilbert.transformer.layer[0](torch.zeros(1, 4, 16))


ENCODERS = [name for name in CHANGES if name not in CAUSAL]


def test_a_flattened_row_is_transformers_own():
    collator = transformers.DataCollatorWithFlattening(return_tensors="pt", position_ids_start=2)
    expected = collator([{"input_ids": sample} for sample in SAMPLES])
    found = flattened_row(SAMPLES, 2)
    assert {*found} == {*expected} and all(torch.equal(found[name], expected[name]) for name in found)
    assert found["position_ids"][0, : len(SAMPLES[0]) + 1].tolist() == [*range(2, 2 + len(SAMPLES[0])), 2]


@pytest.mark.parametrize(
    ("name", "use_cache"), [*((name, False) for name in CHANGES), *((name, True) for name in CAUSAL)]
)
def test_samples_of_a_flattened_row_are_apart_in_a_language_model_without_its_cache_alone(name, use_cache):
    """An encoder attends to the whole row, whatever its positions say; a cache leaves them unnoticed."""
    found = look_at_flattened_rows(tiny_model(name), SAMPLES, torch.bfloat16, use_cache=use_cache)
    assert found["precisions"] == ["fp32", "bfloat16"] and found["lengths"] == list(LENGTHS)
    assert found["kernels"]["fp32"] == ["sdpa"]
    if name in ENCODERS or use_cache:
        assert found["foreign_gradient"] > TOLERANCE and "another sample's embeddings" in str(found["leak"])
    else:
        assert found["leak"] is None and found["foreign_gradient"] == 0
        assert 0 < found["gradient_difference"] < TOLERANCE


@pytest.mark.parametrize("name", ENCODERS)
def test_the_head_reads_each_samples_own_state(name):
    """Where attention gives each token its own value, the logits are those of the samples alone."""

    def own_value(module: object, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple:
        return value.transpose(1, 2), None

    transformers.AttentionInterface.register("own_value", own_value)
    model = tiny_model(name)
    model.set_attn_implementation("own_value")
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([sample])).logits[0] for sample in SAMPLES]
        use_flattened_rows(model)
        row = flattened_row(SAMPLES, first_position(model.config))
        del row["labels"]
        logits = model(**row, boundaries=BOUNDARIES).logits
    torch.testing.assert_close(logits, torch.stack(alone))
