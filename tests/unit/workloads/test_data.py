from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.workloads.data import TokenisedData

samples_of = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=9), min_size=1, max_size=12)


def data_of(samples: list[list[int]]) -> TokenisedData:
    return TokenisedData.from_samples(samples, np.arange(len(samples), dtype=np.int64))


@pytest.mark.slow
@given(samples_of, st.lists(st.integers(2, 10), max_size=3), st.integers(0, 5), st.data())
def test_cut_taken_and_padded_samples_are_as_lists_are(samples, limits, extra, draw):
    """Of a cut sample the last token stays the last."""
    data, whole = data_of(samples), [*map(len, samples)]
    for limit in limits:
        data = data.truncate(limit)
        samples = [s if len(s) <= limit else [*s[: limit - 1], s[-1]] for s in samples]
    assert (len(data), data.lengths.tolist()) == (len(samples), [*map(len, samples)])
    ids = np.array(draw.draw(st.lists(st.integers(0, len(samples) - 1), max_size=8)), dtype=np.int64)
    taken, wanted = data.take(ids), [samples[i] for i in ids]
    assert taken.fingerprint == TokenisedData.from_samples(wanted, ids).fingerprint
    if wanted:
        removed, described = [whole[i] - len(samples[i]) for i in ids], taken.describe()
        assert [described[f"cut_{what}"] for what in ("samples", "tokens")] == [np.count_nonzero(removed), sum(removed)]
        assert described["classes"] == len({*ids.tolist()})
        width = max(map(len, wanted)) + extra
        rows, valid = data.padded(ids, width, pad_id=0)
        assert rows.tolist() == [sample + [0] * (width - len(sample)) for sample in wanted]
        assert valid.sum(1).tolist() == [*map(len, wanted)] and not rows[~valid].any()


def test_fingerprint_changes_with_a_token_a_boundary_and_a_label():
    found = [data_of(samples) for samples in ([[1, 2], [3]], [[1, 9], [3]], [[1], [2, 3]])]
    found.append(TokenisedData.from_samples([[1, 2], [3]], np.array([0, 0])))
    assert len({each.fingerprint for each in found}) == 4


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
