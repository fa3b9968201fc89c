"""Where the samples of a packed row are, by brute force, and rows made of samples."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed import tiny_model

from dynbench.errors import UsageError
from dynbench.kernels import Boundaries, PackedCollator, use_packed_rows
from dynbench.kernels.packed_rows import NO_TARGET


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_every_token_is_where_it_is(lengths: list[int]) -> None:
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
def test_a_row_has_samples_and_these_tokens(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="packed row"):
        Boundaries(lengths)


def test_boundaries_go_to_a_device_and_through_a_loader_of_other_processes() -> None:
    row = Boundaries((2, 1), arrangement="repadded")
    moved = row.to("meta", non_blocking=True)
    assert (moved.positions.device.type, moved.lengths, moved.arrangement) == ("meta", (2, 1), "repadded")
    assert row.to(torch.device("cpu")) is row
    assert row.offsets.tolist() == [0, 2, 3] and pickle.loads(pickle.dumps(row)) == row


def test_a_row_of_classified_samples() -> None:
    samples = [{"input_ids": [5, 6, 7], "labels": 2}, {"input_ids": [8], "labels": 0}, {"input_ids": [9, 4, 3]}]
    samples[2]["labels"] = torch.tensor(1)
    batch = PackedCollator()(samples)
    assert batch["input_ids"].tolist() == [[8, 5, 6, 7, 9, 4, 3]]
    assert batch["boundaries"] == Boundaries((1, 3, 3))
    assert batch["labels"].tolist() == [0, 2, 1]


def test_no_sample_tells_the_first_token_of_the_next() -> None:
    samples = [{"input_ids": ids, "labels": ids} for ids in ([5, 6, 7], [8, 9])]
    assert PackedCollator()(samples)["labels"].tolist() == [[NO_TARGET, 9, NO_TARGET, 6, 7]]
    assert "labels" not in PackedCollator()([{"input_ids": [1, 2]}])


def test_kinds_of_tokens_stay_with_their_samples() -> None:
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
def test_samples_that_are_padded_are_refused(mask: object) -> None:
    padded = {"input_ids": [5, 6, 0], "attention_mask": mask}
    with pytest.raises(UsageError, match="attention_mask leaves tokens out"):
        PackedCollator()([{"input_ids": [1, 2]}, padded])
