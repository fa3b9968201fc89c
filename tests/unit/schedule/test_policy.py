import numpy as np

from dynbench.schedule.plan import DataOrder


def test_an_epoch_is_a_permutation_and_another_seed_another_one():
    order = DataOrder(40, 8, seed=1)
    assert sorted(order.permutation(0)) == list(range(40))
    assert order.permutation(0).tolist() == DataOrder(40, 8, seed=1).permutation(0).tolist()
    assert order.permutation(0).tolist() != order.permutation(1).tolist()
    assert order.permutation(0).tolist() != DataOrder(40, 8, seed=2).permutation(0).tolist()


def test_the_incomplete_last_batch_is_dropped():
    batches = DataOrder(41, 8, order="file").epoch_batches(3)
    assert batches.tolist() == np.arange(40).reshape(5, 8).tolist()
