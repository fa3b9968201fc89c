"""Generated texts as token ids, which need no network: of two classes, or walks that a language model can learn.

The data are the same in every run: their generators have fixed seeds of their own, `train.seed` does not change them.

`embedded` and `lognormal`: every text is [CLS], words, [SEP]. A word is one of its class's own words with probability
`SIGNAL`, else a word of the common vocabulary under Zipf's law. Short samples may carry no signal, so the best accuracy
is about 0.93. `lognormal` has the lengths of a published benchmark of batch rebalancing
(huggingface/transformers#47340): lognormal(5, 1), clamped to 16-1,024 tokens.

`lengths`: a trace of the user's own, which can be shared where the texts cannot. The samples have exactly the lengths
of the trace, in its order, and all of them are trained on: nothing is held out, so that the lengths of another run's
training samples give its plans, step by step. Words and labels are drawn as those of `embedded`, but from a hash
(splitmix64, Steele et al., OOPSLA 2014) of sample and position instead of one stream: a sample's tokens depend on its
index alone, and a sample that is cut keeps its beginning.

Walks, for language models on data sets of which only the lengths matter: with probability `FOLLOWS` a token decides the
one after it, else that is drawn from Zipf's law. Tokens depend on nothing but a sample's index, as those of `lengths`.
The last token ends the text. A model that knows the walk has a perplexity of about 8, one that knows how often each
token comes of about 290.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.lengths import READERS, SHIPPED, read_second, read_trace
from dynbench.plugins import WORKLOADS, options_of
from dynbench.plugins.datasets import TraceOptions
from dynbench.runs.records import HASH_STEP, mixed
from dynbench.workloads.data import IntArray, TokenisedData, offsets_of
from dynbench.workloads.datasets.base import CorpusSplit, LengthSplit, Split, Splits, TextSplit, TokenSplit
from dynbench.workloads.datasets.images import generated_digits, generated_stripes, image_side

TRAIN_SAMPLES = 8192
EVAL_SAMPLES = 1024
GENERATOR_SEED = 20_000
CLASSES = 2
SIGNAL = 0.3

VOCAB_SIZE = 4096
PAD_ID, CLS_ID, SEP_ID = 0, 101, 102
FIRST_WORD_ID = 1000
"""Words of the bert-base-uncased vocabulary start about here; below are special and unused ids."""
WORDS_PER_CLASS = 48
FIRST_COMMON_ID = FIRST_WORD_ID + CLASSES * WORDS_PER_CLASS

DrawLengths = Callable[[int, np.random.Generator], IntArray]
"""So many lengths from a generator, at least 2 tokens each."""


def load_embedded(settings: Workload) -> Splits:
    """What the workload learns from: of texts 8,192 samples to train on and 1,024 to evaluate on, of two classes."""
    entry = WORKLOADS.get(settings.name, WORKLOADS["text_classification"])
    if entry.samples == "digits":
        return generated_digits()
    if entry.samples == "images":
        return generated_stripes(image_side(settings)[0])
    assert entry.lengths is not None, "texts have lengths"
    return _as_long_as(entry.lengths)


@cache  # the arms of a launch learn from the same
def _as_long_as(shipped: str) -> Splits:
    return generate(lambda n, rng: rng.choice(SHIPPED[shipped], size=n))


def generate(draw_lengths: DrawLengths) -> Splits:
    """The samples of `embedded` with lengths of another distribution."""
    return Splits(_split("train", TRAIN_SAMPLES, 0, draw_lengths), _split("eval", EVAL_SAMPLES, 1, draw_lengths))


def _split(split: str, n_samples: int, stream: int, draw_lengths: DrawLengths) -> TokenSplit:
    rng = np.random.default_rng([GENERATOR_SEED, stream])
    lengths = draw_lengths(n_samples, rng)
    labels = rng.integers(CLASSES, size=n_samples)
    data = framed(_words(np.repeat(labels, lengths), rng), lengths, labels)
    return TokenSplit(data, VOCAB_SIZE, PAD_ID, f"generated, {split}, seed {GENERATOR_SEED}")


def framed(tokens: IntArray | NDArray[np.int32], lengths: IntArray, labels: IntArray) -> TokenisedData:
    """Samples whose first token becomes [CLS] and whose last, where there are two, [SEP].

    Args:
        tokens: word ids of all samples, one after another, shape [total tokens]; overwritten.
        lengths: tokens of each sample, at least 1, shape [N].
        labels: class of each sample, shape [N].
    """
    offsets = offsets_of(lengths)
    tokens[offsets[1:] - 1] = SEP_ID
    tokens[offsets[:-1]] = CLS_ID
    return TokenisedData.from_arrays(tokens.astype(np.int32, copy=False), offsets, labels)


def _words(labels: IntArray, rng: np.random.Generator) -> IntArray:
    """One word id per entry of `labels`, shape [total tokens]."""
    common = FIRST_COMMON_ID + rng.choice(VOCAB_SIZE - FIRST_COMMON_ID, size=len(labels), p=zipf())
    own = FIRST_WORD_ID + labels * WORDS_PER_CLASS + rng.integers(WORDS_PER_CLASS, size=len(labels))
    return np.where(rng.random(len(labels)) < SIGNAL, own, common)


def zipf() -> NDArray[np.float64]:
    """Probability of each word of the common vocabulary, from `FIRST_COMMON_ID` on; sums to 1."""
    ranks = np.arange(1, VOCAB_SIZE - FIRST_COMMON_ID + 1)
    probabilities: NDArray[np.float64] = (1 / ranks) / (1 / ranks).sum()
    return probabilities


MU, SIGMA = 5.0, 1.0
"""Mean and standard deviation of the length's natural logarithm."""
SHORTEST, LONGEST = 16, 1024


def load_lognormal(settings: Workload) -> Splits:
    """8,192 training and 1,024 evaluation samples of two classes; no setting changes them."""
    return _lognormal()


@cache
def _lognormal() -> Splits:
    return generate(draw_lengths)


def draw_lengths(n: int, rng: np.random.Generator) -> IntArray:
    """Lengths in tokens, shape [n]."""
    return np.clip(np.rint(rng.lognormal(MU, SIGMA, n)), SHORTEST, LONGEST).astype(np.int64)


WALK_VOCAB_SIZE = 512
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
        _with_walks(splits.train, STREAMS["train"]),
        None if splits.eval is None else _with_walks(splits.eval, STREAMS["eval"]),
    )


def _with_walks(split: Split, stream: int) -> Split:
    if isinstance(split, TextSplit | CorpusSplit):
        return split
    assert isinstance(split, TokenSplit | LengthSplit), "rules ask for texts"
    lengths = split.data.lengths if isinstance(split, TokenSplit) else split.lengths
    second = split.second if isinstance(split, LengthSplit) else None
    return LengthSplit(lengths, partial(generate_walks, stream=stream), WALK_VOCAB_SIZE, END_ID, split.source, second)


def generate_walks(lengths: IntArray, stream: int) -> TokenisedData:
    """Samples of these lengths, shape [N]; all labels are 0."""
    root = mixed(np.array([stream], dtype=np.uint64))
    seeds = mixed(root + np.arange(len(lengths), dtype=np.uint64) * HASH_STEP)
    offsets = offsets_of(lengths)
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
    cumulated = np.cumsum(1 / np.arange(1, WALK_VOCAB_SIZE))
    before = np.zeros(len(lengths), dtype=np.int64)
    for position in range(int(longest_first[0]) if len(lengths) else 0):
        left = int(np.searchsorted(-longest_first, -position, side="left"))
        bits = mixed(seeds[:left] + np.uint64((position + 1) * int(HASH_STEP) % 2**64))
        follows = (bits & np.uint64(1023)) < FOLLOWS * 1024 if position else np.zeros(left, dtype=bool)
        drawn = 1 + np.searchsorted(cumulated, (bits >> np.uint64(11)) * 2.0**-53 * cumulated[-1], side="right")
        before = np.where(follows, 1 + before[:left] * _STRIDE % (WALK_VOCAB_SIZE - 1), drawn)
        tokens[starts[:left] + position] = before


TRAIN_STREAM, EVAL_STREAM = 0, 1
CHUNK_TOKENS = 2**20
"""Tokens generated at a time, so that the arrays between take little memory."""


def load_lengths(settings: Workload) -> Splits:
    """Samples with the lengths of `data_path`, and for evaluation of `eval_path`, else drawn from the former.

    Raises:
        DataError: a file that cannot be used; the message names file and row.
    """
    trace = options_of(settings, TraceOptions)
    assert trace.data_path is not None, "config/rules.py"
    lengths = _read_lengths(trace.data_path, "workload.data_path", trace.length_column)
    train = _trace_split(lengths, TRAIN_STREAM, trace.data_path)
    if trace.second_column is not None:
        train = replace(train, second=read_second(Path(trace.data_path).expanduser(), trace.second_column))
    if trace.eval_path is not None:
        own = _read_lengths(trace.eval_path, "workload.eval_path", trace.length_column)
        return Splits(train, _trace_split(own, EVAL_STREAM, trace.eval_path))
    drawn = np.random.default_rng(GENERATOR_SEED).choice(lengths, size=EVAL_SAMPLES)
    return Splits(train, _trace_split(drawn, EVAL_STREAM, f"generated, lengths drawn from {trace.data_path}"))


def _read_lengths(name: str, key: str, column: str | None) -> IntArray:
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"{key}: {path}: no such file", f"Name a file of lengths ({', '.join(READERS)}).")
    return read_trace(path, column)


def _trace_split(lengths: IntArray, stream: int, source: str) -> LengthSplit:
    return LengthSplit(lengths, partial(generate_samples, stream=stream), VOCAB_SIZE, PAD_ID, source)


def generate_samples(lengths: IntArray, stream: int) -> TokenisedData:
    """Samples of these lengths.

    Args:
        lengths: tokens of each sample, at least 1, shape [N].
        stream: samples of different streams are independent of each other.
    """
    root = mixed(np.array([GENERATOR_SEED, stream], dtype=np.uint64)).sum(dtype=np.uint64)
    seeds = mixed(root + np.arange(len(lengths), dtype=np.uint64) * HASH_STEP)
    labels = (mixed(seeds) % np.uint64(CLASSES)).astype(np.int64)
    tokens = np.empty(int(lengths.sum()), dtype=np.int32)
    ends = np.cumsum(lengths)
    done, first = 0, np.searchsorted(ends, np.arange(0, len(tokens), CHUNK_TOKENS), side="right")
    for start, end in pairwise([*np.unique(first), len(lengths)]):
        counts = lengths[start:end]
        position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        bits = mixed(np.repeat(seeds[start:end], counts) + (position + 1).astype(np.uint64) * HASH_STEP)
        tokens[done : done + len(bits)] = _hashed_words(np.repeat(labels[start:end], counts), bits)
        done += len(bits)
    return framed(tokens, lengths, labels)


def _hashed_words(labels: IntArray, bits: NDArray[np.uint64]) -> IntArray:
    """One word id per entry of `labels` and of `bits`, as likely as in `embedded`."""
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    word = (uniform / SIGNAL * WORDS_PER_CLASS).astype(np.int64)
    own = FIRST_WORD_ID + labels * WORDS_PER_CLASS + word
    rest = (uniform - SIGNAL) / (1 - SIGNAL)
    common = FIRST_COMMON_ID + np.searchsorted(np.cumsum(zipf())[:-1], rest, side="right")
    return np.where(uniform < SIGNAL, own, common)
