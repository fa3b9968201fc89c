"""A packed row: where its samples are, and how one is made of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from dynbench.errors import UsageError

CPU = torch.device("cpu")
NO_TARGET = -100
"""Label of a token that is not to be predicted: transformers' losses leave it out."""
Arrangement = Literal["by_length", "repadded"]
"""How attention that knows no boundaries is given the samples: those of equal length at once, a call for each length,
or all at once, padded to the longest."""


@dataclass(frozen=True)
class Boundaries:
    """Where the samples of a packed row are; known to the host, so that nothing waits for a device.

    Args:
        lengths: tokens of each sample in the order of the row, n of them, each at least 1. Attention is cheapest where
            equal lengths follow each other.
        device: where the row is.
        arrangement: for attention that knows no boundaries; None is whichever is cheaper.
        checked: of a check, for whose sake attention drops nothing of what it would: the names of all that ran. None
            in training.

    Raises:
        ValueError: no sample, or an empty one.
    """

    lengths: tuple[int, ...]
    device: torch.device = CPU
    arrangement: Arrangement | None = None
    checked: set[str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"a packed row of samples of {list(self.lengths)} tokens")

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Boundaries:
        """The same for a row on another device, which nothing has to be sent to later."""
        if torch.device(device) == self.device:
            return self
        moved = replace(self, device=torch.device(device))
        moved.__dict__["offsets"] = self.offsets.to(device, non_blocking=non_blocking)
        return moved

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return max(self.lengths)

    @cached_property
    def tokens(self) -> int:
        """Of all samples (T)."""
        return sum(self.lengths)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """How many samples of which length follow each other, in the order of the row."""
        return tuple((len(list(same)), length) for length, same in groupby(self.lengths))

    @cached_property
    def offsets(self) -> Tensor:
        """Where the samples begin, and where the last one ends, int32 [n + 1]."""
        ends = torch.tensor(self.lengths).cumsum(0)
        return torch.nn.functional.pad(ends, (1, 0)).to(self.device, torch.int32)

    @cached_property
    def starts(self) -> Tensor:
        """Where the samples begin, int64 [n]."""
        return self.offsets[:-1].long()

    @cached_property
    def sample(self) -> Tensor:
        """The sample of each token, from 0, int64 [T]."""
        samples = torch.arange(len(self.lengths), device=self.device)
        return torch.repeat_interleave(samples, self.offsets.diff(), output_size=self.tokens)

    @cached_property
    def positions(self) -> Tensor:
        """Each token's place in its sample, from 0, int64 [T]."""
        return torch.arange(self.tokens, device=self.device) - self.starts[self.sample]

    @cached_property
    def slots(self) -> Tensor:
        """Each token's place where the samples are padded to the longest, all in one, int64 [T]."""
        return self.sample * self.longest + self.positions

    @cached_property
    def valid(self) -> Tensor:
        """Which of these places hold a token, bool [n, longest]."""
        return torch.arange(self.longest, device=self.device) < self.offsets.diff()[:, None]


class PackedCollator:
    """Makes one packed row of the samples of a batch, for a model that `use_packed_rows` prepared.

    Takes what transformers' collators take: mappings with `input_ids` and, where the model is to learn, `labels`, a
    class or one label per token, and `token_type_ids` where tokenizers give them. Samples come in order of their
    lengths, shortest first, and so do the labels.
    """

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The row of at least one sample.

        Returns:
            `input_ids`, int64 [1, T]; `boundaries`; and `labels`: classes, int64 [n], or of each token, int64 [1, T],
            the first of every sample `NO_TARGET`, because a causal model would tell it from another sample. Where
            samples have them, `token_type_ids`, int64 [1, T].

        Raises:
            UsageError: samples that are padded.
        """
        if any(not all(sample.get("attention_mask", ())) for sample in samples):
            raise UsageError(
                "a packed row of samples whose attention_mask leaves tokens out", "Tokenise without padding."
            )
        ordered = sorted(samples, key=lambda sample: len(sample["input_ids"]))
        tokens = [torch.as_tensor(sample["input_ids"]) for sample in ordered]
        batch: dict[str, Any] = {
            "input_ids": torch.cat(tokens).long()[None],
            "boundaries": Boundaries(tuple(map(len, tokens))),
        }
        if "token_type_ids" in ordered[0]:
            kinds = [torch.as_tensor(sample["token_type_ids"]) for sample in ordered]
            batch["token_type_ids"] = torch.cat(kinds).long()[None]
        if "labels" in ordered[0]:
            labels = [torch.as_tensor(sample["labels"]) for sample in ordered]
            batch["labels"] = torch.stack(labels) if labels[0].ndim == 0 else _targets(labels, batch["boundaries"])
        return batch


def _targets(labels: Sequence[Tensor], boundaries: Boundaries) -> Tensor:
    """Labels of all tokens, int64 [1, T], without those that another sample's last token would have to tell."""
    joined = torch.cat(list(labels)).long()
    joined[boundaries.starts] = NO_TARGET
    return joined[None]
