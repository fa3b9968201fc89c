from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.workloads.data import TokenisedData

samples_of = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=9), min_size=1, max_size=12)


def data_of(samples: list[list[int]]) -> TokenisedData:
    return TokenisedData.from_samples(samples, np.arange(len(samples), dtype=np.int64))


@given(samples_of)
def test_lengths_are_those_of_the_samples(samples):
    data = data_of(samples)
    assert data.lengths.tolist() == [len(sample) for sample in samples]
    assert len(data) == len(samples)


@pytest.mark.slow
@given(samples_of, st.data())
def test_take_renumbers_in_the_order_asked_for(samples, draw):
    ids = draw.draw(st.lists(st.integers(0, len(samples) - 1), max_size=8))
    taken = data_of(samples).take(np.array(ids, dtype=np.int64))
    expected = TokenisedData.from_samples([samples[i] for i in ids], np.array(ids, dtype=np.int64))
    assert taken.fingerprint == expected.fingerprint


@given(samples_of, st.integers(2, 10))
def test_truncate_keeps_the_last_token_last(samples, max_length):
    expected = [s if len(s) <= max_length else [*s[: max_length - 1], s[-1]] for s in samples]
    assert data_of(samples).truncate(max_length).fingerprint == data_of(expected).fingerprint


@pytest.mark.slow
@given(samples_of, st.lists(st.integers(2, 10), min_size=1, max_size=3), st.data())
def test_what_truncation_took_stays_with_its_sample(samples, limits, draw):
    data = data_of(samples)
    for limit in limits:
        data = data.truncate(limit)
    ids = np.array(draw.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=8)), dtype=np.int64)
    removed = [max(0, len(samples[i]) - min(limits)) for i in ids]
    described = data.take(ids).describe()
    assert (described["cut_samples"], described["cut_tokens"]) == (sum(count > 0 for count in removed), sum(removed))
    assert described["classes"] == len(set(ids.tolist()))


@pytest.mark.slow
@given(samples_of, st.integers(0, 5), st.data())
def test_padded_equals_padding_by_hand(samples, extra, draw):
    ids = draw.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=8))
    width = max(len(samples[i]) for i in ids) + extra
    rows, valid = data_of(samples).padded(np.array(ids), width, pad_id=0)
    assert rows.tolist() == [samples[i] + [0] * (width - len(samples[i])) for i in ids]
    assert valid.tolist() == [[c < len(samples[i]) for c in range(width)] for i in ids]


def test_fingerprint_changes_with_a_token_a_boundary_and_a_label():
    base = data_of([[1, 2], [3]])
    others = [
        data_of([[1, 9], [3]]),
        data_of([[1], [2, 3]]),
        TokenisedData.from_samples([[1, 2], [3]], np.array([0, 0])),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="offsets"):
        TokenisedData.from_arrays(np.ones(3, np.int32), np.array([0, 2]), np.array([0]))
    with pytest.raises(ValueError, match="no tokens"):
        TokenisedData.from_samples([[1], []], np.array([0, 0]))


def test_weights_go_with_their_samples_and_into_the_fingerprint():
    samples, labels = [[1, 2], [3], [4, 5, 6]], np.zeros(3, dtype=np.int64)
    plain, weighed = (TokenisedData.from_samples(samples, labels, weights=weights) for weights in (None, [2, 0, 0.5]))
    assert (plain.weight(np.arange(3)), weighed.weight(np.arange(3)), weighed.weight(np.array([1]))) == (3, 2.5, 0)
    assert weighed.take(np.array([2, 1, 2])).weights.tolist() == [0.5, 0, 0.5]
    assert weighed.fingerprint != plain.fingerprint
    ones = TokenisedData.from_samples(samples, labels, weights=[1, 1, 1])
    assert (ones.weights, ones.fingerprint) == (None, plain.fingerprint)


@pytest.mark.parametrize("weights", [[1, 2], [1, -1, 2], [1, float("nan"), 2], [[1, 2, 3]], ["a", "b", "c"]])
def test_what_weighs_no_samples_is_refused(weights):
    with pytest.raises(ValueError, match=r"weights are one finite number|could not convert"):
        TokenisedData.from_samples([[1], [2], [3]], np.zeros(3, dtype=np.int64), weights=weights)


def test_what_is_weighed_is_cut_no_more_and_nothing_is_padded_to_less_than_it_is():
    data = TokenisedData.from_samples([[1, 2, 3], [3]], np.zeros(2, dtype=np.int64), weights=[3, 1])
    assert data.truncate(3) is data
    with pytest.raises(ValueError, match="cut first, then weigh"):
        data.truncate(2)
    with pytest.raises(ValueError, match="a sample of 3 tokens cannot be padded to 2"):
        data.padded(np.array([0]), 2, 0)
