"""What a dataset hands over: texts still to be tokenised, or token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbench.workloads.data import IntArray, TokenisedData


@dataclass(frozen=True)
class TextSplit:
    """Labelled texts in the order of their source.

    Args:
        texts: N texts.
        labels: class of each text, counted from 0, int64 [N].
        source: where they come from, for messages and records.
    """

    texts: Sequence[str]
    labels: IntArray
    source: str


@dataclass(frozen=True)
class TokenSplit:
    """Samples that are token ids from the start, in BERT's numbering of the special tokens.

    Args:
        data: the samples, not yet truncated.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        source: where they come from, for messages and records.
    """

    data: TokenisedData
    vocab_size: int
    pad_id: int
    source: str


Split = TextSplit | TokenSplit


@dataclass(frozen=True)
class Splits:
    """Training samples, and evaluation samples where the source has its own."""

    train: Split
    eval: Split | None = None
