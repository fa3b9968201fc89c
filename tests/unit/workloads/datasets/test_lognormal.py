from __future__ import annotations

import numpy as np

from dynbench.config.schema import Workload
from dynbench.workloads.datasets import embedded, lognormal


def test_lengths_are_those_of_the_published_benchmark():
    lengths = lognormal.load(Workload(dataset="lognormal")).train.data.lengths
    assert len(lengths) == embedded.TRAIN_SAMPLES
    assert (lengths.min(), lengths.max()) == (16, 1024)
    one_sigma = np.log(np.quantile(lengths, (0.1587, 0.5, 0.8413)))
    assert np.abs(one_sigma - (4, 5, 6)).max() < 0.05


def test_it_is_another_data_set_in_the_same_words():
    long, short = lognormal.load(Workload()).eval.data, embedded.load(Workload()).eval.data
    assert long.fingerprint != short.fingerprint
    assert long.tokens.max() < embedded.VOCAB_SIZE
