"""Packed rows: where samples are, attention against softmax by hand, and models; what leaks is found, flattened too."""

from __future__ import annotations

import math
import pickle
import sys
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, groupby
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import transformers
from architectures import CONFIGS
from hypothesis import given
from hypothesis import strategies as st
from packed import CAUSAL, CHANGES, LENGTHS, WINDOW, row_of, tiny_model, tokens
from torch import Tensor

from dynbench.errors import LeakFound, UsageError
from dynbench.kernels import Boundaries, PackedCollator, check_packed_rows, packed_attention, use_packed_rows
from dynbench.kernels.leak_check import TOLERANCE, Seen, alone_pass, compare, look_at_flattened_rows, observe, row_pass
from dynbench.kernels.packed_attention import NO_TARGET, Arrangement, attend, cheaper_arrangement, sides
from dynbench.kernels.packed_models import first_position, flattened_row, use_flattened_rows
from dynbench.workloads.models import CLASSIFIER

SAMPLES = tokens()
ROW, BOUNDARIES = row_of(SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_packed_is_what_each_sample_alone_is(name):
    """Also where a text holds the token of the padding."""
    model = tiny_model(name)
    pad = model.config.pad_token_id or 0
    *others, longest = SAMPLES
    samples = [[pad, *longest[1:4], pad, *longest[5:]], *others, [7, pad]]
    found = check_packed_rows(model, samples, autocast=torch.bfloat16)
    assert found["kernels"] == {each: ["by_length", "repadded"] for each in ("fp32", "bfloat16")}
    assert found["lengths"] == sorted((*LENGTHS, 2))
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


@pytest.mark.slow
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
    for said, inputs in {
        "without boundaries": {"input_ids": ROW},
        "attention mask": {"input_ids": ROW, "boundaries": BOUNDARIES, "attention_mask": torch.ones_like(ROW)},
        "boundaries of 33 tokens came with": {"input_ids": ROW[:, :-1], "boundaries": BOUNDARIES},
    }.items():
        with pytest.raises(UsageError, match=said):
            model(**inputs)


def test_it_is_prepared_once_and_shares_its_configuration_with_no_other():
    config = transformers.AutoConfig.for_model("distilbert", dim=16, hidden_dim=32, n_layers=1, n_heads=2)
    make = transformers.DistilBertForSequenceClassification
    model, other = make(config), make(config)
    before = config._attn_implementation
    for _ in range(2):
        assert len(use_packed_rows(model).base_model._forward_pre_hooks) == 1
    assert other.config._attn_implementation == before != model.config._attn_implementation
    assert "_attn_implementation" not in str(model.config.to_dict())


def test_other_models_are_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="AlbertForSequenceClassification is not among"):
        use_packed_rows(CLASSIFIER.auto_class().from_config(transformers.AlbertConfig(**CONFIGS["albert"])))
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
    assert found["precisions"] == ["fp32", "bfloat16"] and found["kernels"]["fp32"] == ["sdpa"]
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


HEADS, CHANNELS = 4, 8
ARRANGEMENTS = get_args(Arrangement)
ORDERS = {"ascending": LENGTHS, "as they come": (5, 3, 12, 1, 3, 9)}


def states(length: int, key_heads: int = HEADS) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    heads = (HEADS, key_heads, key_heads)
    return tuple(torch.randn(length, n, CHANNELS, dtype=torch.float64).requires_grad_() for n in heads)


def by_hand(given: tuple[Tensor, ...], lengths: tuple[int, ...], causal: bool, window: int | None) -> Tensor:
    """Softmax over the whole row, of which every token sees those of its own sample."""
    query, key, value = (each.repeat_interleave(HEADS // each.shape[1], 1).transpose(0, 1) for each in given)
    sample = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    before = torch.arange(len(sample))[:, None] - torch.arange(len(sample))
    unseen = (sample[:, None] != sample) | (causal & (before < 0)) | (before.abs() >= (window or math.inf))
    scores = (query @ key.mT / math.sqrt(CHANNELS)).masked_fill(unseen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("window", [None, 4, 12])
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_are_those_of_each_sample_alone(causal, window, key_heads, arrangement, order):
    boundaries = Boundaries(ORDERS[order], arrangement=arrangement)
    given = states(boundaries.tokens, key_heads)
    expected = by_hand(given, boundaries.lengths, causal, window)
    found = attend(*given, boundaries, causal=causal, window=window)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    upstream = torch.randn(expected.shape, dtype=torch.float64)
    gradients = (torch.autograd.grad(each, given, upstream) for each in (found, expected))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_dropped_weights_are_of_the_own_sample_and_the_others_are_scaled_up(arrangement):
    boundaries = Boundaries((3, 5, 40), arrangement=arrangement)
    even = torch.zeros(boundaries.tokens, 1, boundaries.tokens)
    value = torch.eye(boundaries.tokens)[:, None]
    weights = attend(even, even, value, boundaries, causal=False, dropout=0.25)[:, 0]
    own = boundaries.sample[:, None] == boundaries.sample
    assert not weights[~own].any()
    lengths = torch.tensor(boundaries.lengths)[boundaries.sample]
    scaled = weights * lengths[:, None] * 0.75
    assert torch.all((scaled.abs() < 1e-5) | ((scaled - 1).abs() < 1e-5))
    assert 0.6 < float(scaled[own].mean()) < 0.9


def test_the_cheaper_arrangement_is_the_one_that_the_rule_says():
    width, many, meta = 256, tuple(range(1, 17)), torch.device("meta")
    assert [cheaper_arrangement(Boundaries(each), width) for each in ((60,) * 8, (10, 200, 200), many)] == [
        "by_length", "by_length", "repadded"
    ]  # fmt: skip
    assert cheaper_arrangement(Boundaries((100, 200, 200), meta), width) == "repadded"
    assert cheaper_arrangement(Boundaries((1, 1, 200), meta), width) == "by_length"


def test_what_kernels_with_boundaries_are_told():
    found = [sides(causal, window) for window in (None, 5) for causal in (False, True)]
    assert found == [(-1, -1), (-1, 0), (4, 4), (4, 0)]


def test_heads_that_are_no_multiple_of_8_go_to_flash_attention_alone(monkeypatch):
    """Which pads them; torch's kernel refuses them."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(packed_attention, "_torch_has_one", lambda: True)

    def kernel(channels: int) -> object:
        query = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16, shape=(3, 2, channels))
        return packed_attention.variable_length_kernel(query, 0.0)

    for there, otherwise in ((False, None), (True, packed_attention.flash_attention_2)):
        monkeypatch.setattr(packed_attention, "_flash_attention_is_there", partial(bool, there))
        assert [kernel(channels) for channels in (8, 96)] == [packed_attention.torch_kernel] * 2
        assert [kernel(channels) for channels in (4, 100)] == [otherwise] * 2


@pytest.mark.parametrize(("file", "there"), [("cute/__init__.py", False), ("__init__.py", True), (None, False)])
def test_version_4_in_the_folder_of_version_2_is_not_it(tmp_path, monkeypatch, file, there):
    if file is not None:
        (tmp_path / "flash_attn" / file).parent.mkdir(parents=True)
        (tmp_path / "flash_attn" / file).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packed_attention._flash_attention_is_there.__wrapped__() is there


def test_states_that_autocast_left_in_fp32_are_half_precision_for_every_kernel(monkeypatch):
    """As rotated queries and keys are beside values, which kernels that take boundaries would refuse."""
    dtypes = []
    monkeypatch.setattr(packed_attention, "variable_length_kernel", lambda query, _: dtypes.append(query.dtype))
    query, value = torch.randn(9, 2, 8), torch.randn(9, 2, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed_attention.attend(query, query, value, Boundaries((4, 5)), causal=True)
    packed_attention.attend(query, query, query, Boundaries((4, 5)), causal=True)
    assert dtypes == [torch.bfloat16, torch.float32]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_every_token_is_where_it_is(lengths):
    row = Boundaries(tuple(lengths))
    places = [(sample, position) for sample, length in enumerate(lengths) for position in range(length)]
    assert row.tokens == len(places) and row.longest == max(lengths)
    assert list(zip(row.sample.tolist(), row.positions.tolist(), strict=True)) == places
    assert row.offsets.tolist() == [0, *accumulate(lengths)]
    assert row.offsets.dtype == torch.int32
    assert list(row.runs) == [(len([*group]), length) for length, group in groupby(lengths)]


@pytest.mark.parametrize("lengths", [(), (3, 0)])
def test_a_row_has_samples_and_these_tokens(lengths):
    with pytest.raises(ValueError, match="packed row"):
        Boundaries(lengths)


def test_boundaries_go_to_a_device_and_through_a_loader_of_other_processes():
    row = Boundaries((2, 1), arrangement="repadded")
    moved = row.to("meta", non_blocking=True)
    assert (moved.positions.device.type, moved.lengths, moved.arrangement) == ("meta", (2, 1), "repadded")
    assert row.to(torch.device("cpu")) is row
    assert row.offsets.tolist() == [0, 2, 3] and pickle.loads(pickle.dumps(row)) == row


def test_no_sample_tells_the_first_token_of_the_next():
    samples = [{"input_ids": ids, "labels": ids} for ids in ([5, 6, 7], [8, 9])]
    assert PackedCollator()(samples)["labels"].tolist() == [[NO_TARGET, 9, NO_TARGET, 6, 7]]
    assert "labels" not in PackedCollator()([{"input_ids": [1, 2]}])


def test_labels_and_kinds_of_tokens_go_with_their_samples():
    """Kinds as tokenizers of BERT give them for pairs of sentences; without them the model takes all for the first."""
    samples = [
        {"input_ids": [5, 6, 7, 8], "token_type_ids": [0, 0, 1, 1], "attention_mask": [1, 1, 1, 1], "labels": 2},
        {"input_ids": [8, 9], "token_type_ids": torch.tensor([0, 1]), "labels": torch.tensor(1)},
    ]
    batch = PackedCollator()(samples)
    assert {name: each.tolist() for name, each in batch.items() if name != "boundaries"} == {
        "input_ids": [[8, 9, 5, 6, 7, 8]], "token_type_ids": [[0, 1, 0, 0, 1, 1]], "labels": [1, 2]
    }  # fmt: skip
    assert batch["boundaries"] == Boundaries((2, 4))
    model = tiny_model("bert")
    alone = [
        model(**{name: torch.as_tensor(sample[name])[None] for name in ("input_ids", "token_type_ids")}).logits
        for sample in reversed(samples)
    ]
    torch.testing.assert_close(use_packed_rows(model)(**batch).logits, torch.cat(alone))


@pytest.mark.parametrize("mask", [[1, 1, 0], torch.tensor([1, 1, 0])], ids=["list", "tensor"])
def test_samples_that_are_padded_are_refused(mask):
    padded = {"input_ids": [5, 6, 0], "attention_mask": mask}
    with pytest.raises(UsageError, match="attention_mask leaves tokens out"):
        PackedCollator()([{"input_ids": [1, 2]}, padded])
