from __future__ import annotations

import numpy as np

from dynbench.config.schema import Workload
from dynbench.lengths import SST2
from dynbench.workloads.datasets import embedded


def test_lengths_follow_sst2():
    data = embedded.load(Workload()).train.data
    assert len(data) == embedded.TRAIN_SAMPLES
    assert abs(data.lengths.mean() - SST2.lengths().mean()) < 0.5
    assert data.lengths.min() == 3
    assert data.lengths.max() > 55


def test_every_call_gives_the_same_samples_and_splits_differ():
    first, second = embedded.load(Workload()), embedded.load(Workload())
    assert first.train.data.fingerprint == second.train.data.fingerprint
    assert first.train.data.fingerprint != first.eval.data.fingerprint


def test_special_tokens_frame_every_sample_and_appear_nowhere_else():
    data = embedded.load(Workload()).eval.data
    assert (data.tokens[data.offsets[:-1]] == embedded.CLS_ID).all()
    assert (data.tokens[data.offsets[1:] - 1] == embedded.SEP_ID).all()
    inner = np.ones(len(data.tokens), dtype=bool)
    inner[data.offsets[:-1]] = inner[data.offsets[1:] - 1] = False
    assert data.tokens[inner].min() >= embedded.FIRST_WORD_ID
    assert data.tokens.max() < embedded.VOCAB_SIZE


def test_words_tell_the_label():
    """Counting each class's own words is right more than nine times in ten, and no better on shuffled labels."""
    data = embedded.load(Workload()).eval.data
    own = data.tokens - embedded.FIRST_WORD_ID
    votes = np.select(
        [(own >= 0) & (own < embedded.WORDS_PER_CLASS), (own >= 0) & (own < 2 * embedded.WORDS_PER_CLASS)], [-1, 1], 0
    )
    guess = np.add.reduceat(votes, data.offsets[:-1]) > 0
    assert (guess == data.labels).mean() > 0.9
    assert (guess == np.random.default_rng(0).permutation(data.labels)).mean() < 0.6
