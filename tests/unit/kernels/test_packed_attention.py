"""Packed rows: where their samples are by brute force, how they are made, and attention against softmax by hand."""

from __future__ import annotations

import math
import pickle
import sys
from functools import partial
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed import LENGTHS, tiny_model
from torch import Tensor

from dynbench.errors import UsageError
from dynbench.kernels import Boundaries, PackedCollator, packed_attention, use_packed_rows
from dynbench.kernels.packed_attention import CALL, COPY, NO_TARGET, Arrangement, attend, cheaper_arrangement, sides

HEADS, CHANNELS = 4, 8
ARRANGEMENTS = get_args(Arrangement)
ORDERS = {"ascending": LENGTHS, "as they come": (5, 3, 12, 1, 3, 9)}


def states(length: int, key_heads: int = HEADS) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    heads = (HEADS, key_heads, key_heads)
    return tuple(torch.randn(length, n, CHANNELS, dtype=torch.float64).requires_grad_() for n in heads)


def by_hand(given: tuple[Tensor, ...], lengths: tuple[int, ...], causal: bool, window: int | None) -> Tensor:
    """Every sample's softmax over its own tokens."""
    results = []
    for states in zip(*(each.split(lengths) for each in given), strict=True):
        query, key, value = (each.repeat_interleave(HEADS // each.shape[1], 1).transpose(0, 1) for each in states)
        before = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])
        unseen = (causal & (before < 0)) | (before.abs() >= (window or math.inf))
        scores = (query @ key.mT / math.sqrt(CHANNELS)).masked_fill(unseen, -torch.inf)
        results.append((scores.softmax(-1) @ value).transpose(0, 1))
    return torch.cat(results)


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
    for packed, alone in zip(*gradients, strict=True):
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


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
    assert width * (16 * 16 * (16 + COPY) - sum(length**2 for length in many)) < 15 * CALL
    assert cheaper_arrangement(Boundaries((100, 200, 200), meta), width) == "repadded"
    assert cheaper_arrangement(Boundaries((1, 1, 200), meta), width) == "by_length"


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [(False, None, (-1, -1)), (True, None, (-1, 0)), (False, 5, (4, 4)), (True, 5, (4, 0))],
)
def test_what_kernels_with_boundaries_are_told(causal, window, expected):
    assert sides(causal, window) == expected


def test_heads_that_are_no_multiple_of_8_go_to_flash_attention_alone(monkeypatch):
    """Which pads them; torch's kernel refuses them."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(packed_attention, "_torch_has_one", lambda: True)

    def kernel(channels: int) -> object:
        query = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16, shape=(3, 2, channels))
        return packed_attention.variable_length_kernel(query, 0.0)

    for there, otherwise in ((False, None), (True, packed_attention.flash_attention_2)):
        monkeypatch.setattr(packed_attention, "_flash_attention_is_there", partial(bool, there))
        assert [kernel(channels) for channels in (8, 64, 96)] == [packed_attention.torch_kernel] * 3
        assert [kernel(channels) for channels in (4, 20, 100)] == [otherwise] * 3


@pytest.mark.parametrize(("file", "there"), [("cute/__init__.py", False), ("__init__.py", True), (None, False)])
def test_version_4_in_the_folder_of_version_2_is_not_it(tmp_path, monkeypatch, file, there):
    if file is not None:
        (tmp_path / "flash_attn" / file).parent.mkdir(parents=True)
        (tmp_path / "flash_attn" / file).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    packed_attention._flash_attention_is_there.cache_clear()
    assert packed_attention._flash_attention_is_there() is there
    packed_attention._flash_attention_is_there.cache_clear()


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
    assert row.slots.tolist() == [sample * max(lengths) + position for sample, position in places]
    assert row.valid.flatten().nonzero().flatten().tolist() == row.slots.tolist()
    assert row.offsets.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert row.offsets.dtype == torch.int32 and row.starts.tolist() == row.offsets.tolist()[:-1]
    assert [length for count, length in row.runs for _ in range(count)] == lengths
    assert all(one[1] != other[1] for one, other in zip(row.runs, row.runs[1:], strict=False))


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


def test_a_row_of_classified_samples():
    samples = [{"input_ids": [5, 6, 7], "labels": 2}, {"input_ids": [8], "labels": 0}, {"input_ids": [9, 4, 3]}]
    samples[2]["labels"] = torch.tensor(1)
    batch = PackedCollator()(samples)
    assert batch["input_ids"].tolist() == [[8, 5, 6, 7, 9, 4, 3]]
    assert batch["boundaries"] == Boundaries((1, 3, 3))
    assert batch["labels"].tolist() == [0, 2, 1]


def test_no_sample_tells_the_first_token_of_the_next():
    samples = [{"input_ids": ids, "labels": ids} for ids in ([5, 6, 7], [8, 9])]
    assert PackedCollator()(samples)["labels"].tolist() == [[NO_TARGET, 9, NO_TARGET, 6, 7]]
    assert "labels" not in PackedCollator()([{"input_ids": [1, 2]}])


def test_kinds_of_tokens_stay_with_their_samples():
    """As tokenizers of BERT give them for pairs of sentences; without them the model takes all for the first."""
    samples = [
        {"input_ids": [5, 6, 7, 8], "token_type_ids": [0, 0, 1, 1], "attention_mask": [1, 1, 1, 1]},
        {"input_ids": [8, 9], "token_type_ids": torch.tensor([0, 1]), "attention_mask": torch.ones(2)},
    ]
    batch = PackedCollator()(samples)
    assert batch["token_type_ids"].tolist() == [[0, 1, 0, 0, 1, 1]] and "attention_mask" not in batch
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
