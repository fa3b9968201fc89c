"""Generated tokens that a language model can learn, for data sets of which only the lengths matter.

Every sample is a walk: with probability `FOLLOWS` a token decides the one after it, else that is drawn from Zipf's law.
Tokens depend on nothing but a sample's index, as those of `lengths`, and a sample that is cut keeps its beginning. The
last token ends the text. A model that knows the walk has a perplexity of about 8, one that knows how often each
token comes of about 290.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dynbench.runs.records import HASH_STEP, mixed
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.base import CorpusSplit, LengthSplit, Split, Splits, TextSplit, TokenSplit

VOCAB_SIZE = 512
END_ID = 0
FOLLOWS = 0.7
STREAMS = {"train": 2, "eval": 3}
"""Samples of different streams are independent of each other, and of those of `lengths`."""
_STRIDE = 211
"""Odd, so that every word follows exactly one other."""
CHUNK_SAMPLES = 8192


def language_of(splits: Splits) -> Splits:
    """The splits with the texts that they hold, or with generated tokens of the lengths that they have."""
    return Splits(
        _generated(splits.train, STREAMS["train"]),
        None if splits.eval is None else _generated(splits.eval, STREAMS["eval"]),
    )


def _generated(split: Split, stream: int) -> Split:
    if isinstance(split, TextSplit | CorpusSplit):
        return split
    assert isinstance(split, TokenSplit | LengthSplit), "rules ask for texts"
    lengths = split.data.lengths if isinstance(split, TokenSplit) else split.lengths
    second = split.second if isinstance(split, LengthSplit) else None
    return LengthSplit(lengths, partial(generate, stream=stream), VOCAB_SIZE, END_ID, split.source, second)


def generate(lengths: IntArray, stream: int) -> TokenisedData:
    """Samples of these lengths, shape [N]; all labels are 0."""
    root = mixed(np.array([stream], dtype=np.uint64))
    seeds = mixed(root + np.arange(len(lengths), dtype=np.uint64) * HASH_STEP)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    tokens = np.empty(int(offsets[-1]), dtype=np.int32)
    for start in range(0, len(lengths), CHUNK_SAMPLES):
        some = slice(start, start + CHUNK_SAMPLES)
        _walk(tokens, offsets[:-1][some], lengths[some], seeds[some])
    tokens[offsets[1:] - 1] = END_ID
    return TokenisedData.from_arrays(tokens, offsets, np.zeros(len(lengths), np.int64))


def _walk(tokens: NDArray[np.int32], starts: IntArray, lengths: IntArray, seeds: NDArray[np.uint64]) -> None:
    """Fill in some samples, position by position over all of them that are so long."""
    order = np.argsort(-lengths, kind="stable")
    starts, longest_first, seeds = starts[order], lengths[order], seeds[order]
    cumulated = np.cumsum(1 / np.arange(1, VOCAB_SIZE))
    before = np.zeros(len(lengths), dtype=np.int64)
    for position in range(int(longest_first[0]) if len(lengths) else 0):
        left = int(np.searchsorted(-longest_first, -position, side="left"))
        bits = mixed(seeds[:left] + np.uint64((position + 1) * int(HASH_STEP) % 2**64))
        follows = (bits & np.uint64(1023)) < FOLLOWS * 1024 if position else np.zeros(left, dtype=bool)
        drawn = 1 + np.searchsorted(cumulated, (bits >> np.uint64(11)) * 2.0**-53 * cumulated[-1], side="right")
        before = np.where(follows, 1 + before[:left] * _STRIDE % (VOCAB_SIZE - 1), drawn)
        tokens[starts[:left] + position] = before
