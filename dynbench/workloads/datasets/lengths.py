"""One's own trace of lengths with generated tokens: what can be shared where the texts cannot.

The samples have exactly the trace's lengths, in its order, and all of them are trained on: nothing is held out, so that
the lengths of another run's training samples give its plans, step by step. Words and labels are drawn as `embedded`
draws them, but from a hash (splitmix64, Steele et al., OOPSLA 2014) of sample and position instead of one stream: a
sample's tokens depend on its index alone, and a sample that is cut keeps its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TraceOptions
from dynbench.runs.records import HASH_STEP, mixed
from dynbench.trace_files import READERS, read_second, read_trace
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets import embedded
from dynbench.workloads.datasets.base import LengthSplit, Splits

TRAIN_STREAM, EVAL_STREAM = 0, 1
CHUNK_TOKENS = 2**20
"""Tokens generated at a time, so that the arrays between take little memory."""

BitArray = NDArray[np.uint64]


def load(settings: Workload) -> Splits:
    """Samples with the lengths of `data_path`, and for evaluation of `eval_path`, else drawn from the former.

    Raises:
        DataError: a file that cannot be used; the message names file and row.
    """
    trace = options_of(settings, TraceOptions)
    assert trace.data_path is not None, "config/rules.py"
    lengths = _read(trace.data_path, "workload.data_path", trace.length_column)
    train = _split(lengths, TRAIN_STREAM, trace.data_path)
    if trace.second_column is not None:
        train = replace(train, second=read_second(Path(trace.data_path).expanduser(), trace.second_column))
    if trace.eval_path is not None:
        own = _read(trace.eval_path, "workload.eval_path", trace.length_column)
        return Splits(train, _split(own, EVAL_STREAM, trace.eval_path))
    drawn = np.random.default_rng(embedded.GENERATOR_SEED).choice(lengths, size=embedded.EVAL_SAMPLES)
    return Splits(train, _split(drawn, EVAL_STREAM, f"generated, lengths drawn from {trace.data_path}"))


def _read(name: str, key: str, column: str | None) -> IntArray:
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"{key}: {path}: no such file", f"Name a file of lengths ({', '.join(READERS)}).")
    return read_trace(path, column)


def _split(lengths: IntArray, stream: int, source: str) -> LengthSplit:
    return LengthSplit(lengths, partial(generate, stream=stream), embedded.VOCAB_SIZE, embedded.PAD_ID, source)


def generate(lengths: IntArray, stream: int) -> TokenisedData:
    """Samples of these lengths.

    Args:
        lengths: tokens of each sample, at least 1, shape [N].
        stream: samples of different streams are independent of each other.
    """
    root = mixed(np.array([embedded.GENERATOR_SEED, stream], dtype=np.uint64)).sum(dtype=np.uint64)
    seeds = mixed(root + np.arange(len(lengths), dtype=np.uint64) * HASH_STEP)
    labels = (mixed(seeds) % np.uint64(embedded.CLASSES)).astype(np.int64)
    tokens = np.empty(int(lengths.sum()), dtype=np.int32)
    done = 0
    for start, end in _chunks(lengths):
        counts = lengths[start:end]
        position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        bits = mixed(np.repeat(seeds[start:end], counts) + (position + 1).astype(np.uint64) * HASH_STEP)
        tokens[done : done + len(bits)] = _words(np.repeat(labels[start:end], counts), bits)
        done += len(bits)
    return embedded.framed(tokens, lengths, labels)


def _chunks(lengths: IntArray) -> Iterator[tuple[int, int]]:
    """First sample and the one after the last of each chunk of at most `CHUNK_TOKENS`, or of one sample."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start] - lengths[start])
        end = max(start + 1, int(np.searchsorted(ends, before + CHUNK_TOKENS, side="right")))
        yield start, end
        start = end


def _words(labels: IntArray, bits: BitArray) -> IntArray:
    """One word id per entry of `labels` and of `bits`, as likely as in `embedded`."""
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    word = (uniform / embedded.SIGNAL * embedded.WORDS_PER_CLASS).astype(np.int64)
    own = embedded.FIRST_WORD_ID + labels * embedded.WORDS_PER_CLASS + word
    rest = (uniform - embedded.SIGNAL) / (1 - embedded.SIGNAL)
    common = embedded.FIRST_COMMON_ID + np.searchsorted(np.cumsum(embedded.zipf())[:-1], rest, side="right")
    return np.where(uniform < embedded.SIGNAL, own, common)
