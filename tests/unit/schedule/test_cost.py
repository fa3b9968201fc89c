"""Every cost by hand: of micro-batches, of a further sample, of packed rows, of a rank's share."""

import numpy as np
import pytest

from dynbench.schedule.cost import CostModel

MEASURED = CostModel("measured", alpha=7.0, beta=2.0, gamma=0.5)
OTHERS = {"alpha": 5.0, "beta": 3.0, "gamma": 2.0}
"""What only a measured cost says."""


@pytest.mark.parametrize(
    ("cost", "padded", "sample", "packed"),
    [
        (CostModel("tokens"), 12.0, 4.0, 9.0),
        (CostModel("tokens", **OTHERS), 12.0, 4.0, 9.0),
        (CostModel("tokens_sq"), 144.0, 4.0, 81.0),
        (CostModel("tokens_sq", **OTHERS), 144.0, 4.0, 81.0),
        (CostModel("attention", attention_a=0.5), 12 + 0.5 * 48, 4 + 0.5 * 16, 9 + 0.5 * 29),
        (CostModel("attention"), 12 + 0.001 * 48, 4 + 0.001 * 16, 9 + 0.001 * 29),
        (MEASURED, 7 + 24 + 24.0, 8 + 8.0, 7 + 18 + 14.5),
        (CostModel("measured"), 12.0, 4.0, 9.0),
    ],
)
def test_three_samples_of_at_most_four_tokens(cost, padded, sample, packed):
    assert float(cost.cost_padded(3, 4)) == padded
    assert float(cost.cost(3, 4)) == padded
    assert float(cost.per_sample(4)) == sample
    assert float(cost.cost_packed(9, 16 + 9 + 4)) == packed
    assert cost.cost_padded(np.array([[1], [3]]), np.array([4, 5])).shape == (2, 2)


@pytest.mark.parametrize("cost", [CostModel("tokens"), CostModel("tokens_sq"), CostModel("attention"), MEASURED])
def test_nothing_costs_nothing(cost):
    assert cost.cost_padded(np.array([0, 1]), 4)[0] == 0 < cost.cost_padded(1, 4)
    assert cost.cost_packed(np.array([0, 1]), np.array([0, 1]))[0] == 0 < cost.cost_packed(1, 1)


def test_lengths_are_rounded_up_but_never_beyond_what_the_model_takes():
    cost = CostModel("tokens", pad_to_multiple_of=8, positions=20)
    assert cost.padded(np.array([1, 8, 9, 17])).tolist() == [8, 8, 16, 20]
    assert float(cost.cost(2, 9)) == 32
    assert float(cost.cost_padded(2, 9)) == 18


def test_a_rank_pays_alpha_once_and_the_price_of_every_further_micro_batch():
    priced = CostModel("measured", alpha=7.0, further=3.0)
    assert priced.surcharge == -4
    assert priced.of_rank([20.0, 20.0], [1, 3]).tolist() == [20, 12]
    assert MEASURED.of_rank(20.0, 3) == 20
    assert CostModel("tokens", alpha=7.0, further=3.0).of_rank(20.0, 3) == 20


@pytest.mark.parametrize(("kind", "tokens"), [("tokens", 2.0**33), ("tokens_sq", 2.0**66)])
def test_costs_are_floats_that_do_not_overflow(kind, tokens):
    cost = CostModel(kind)
    many = cost.cost_packed(np.array([2**33]), np.array([2**40]))
    assert (many.tolist(), many.dtype) == ([tokens], np.float64)
    assert cost.per_sample(np.array([4, 2])).dtype == np.float64
