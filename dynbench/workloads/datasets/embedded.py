"""Generated data that needs no network: images, or texts of a corpus's lengths whose words tell the class.

Every text is [CLS], words, [SEP]. A word is one of its class's own words with probability `SIGNAL`, else a word
of the common vocabulary under Zipf's law. Short samples may carry no signal, so the best accuracy is about 0.93.
The data are the same in every run: their generator has its own fixed seed, `train.seed` does not change them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dynbench.config.schema import Workload
from dynbench.lengths import SHIPPED
from dynbench.plugins import WORKLOADS
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets import digits, pictures
from dynbench.workloads.datasets.base import Splits, TokenSplit
from dynbench.workloads.image_side import image_side

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


def load(settings: Workload) -> Splits:
    """What the workload learns from: of texts 8,192 samples to train on and 1,024 to evaluate on, of two classes."""
    entry = WORKLOADS.get(settings.name, WORKLOADS["text_classification"])
    if entry.samples == "digits":
        return digits.generated()
    if entry.samples == "images":
        return pictures.generated(image_side(settings)[0])
    assert entry.lengths is not None, "texts have lengths"
    return generate(SHIPPED[entry.lengths].sample)


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
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
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
