import numpy as np
import pytest

from dynbench.errors import UsageError
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import Problem, make_policy

LENGTHS = np.arange(1, 41)


def test_an_unknown_policy_names_the_nearest():
    with pytest.raises(UsageError, match="partitoin") as caught:
        make_policy("partitoin", Problem(LENGTHS, 2, 8))
    assert "Did you mean 'partition'?" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": LENGTHS[:0]}, "no samples"),
        ({"lengths": np.array([3, 0, 2, 2])}, "sample 1: length 0"),
        ({"global_batch": 1}, "less than the 2 ranks"),
        ({"speeds": np.array([1.0])}, "schedule.speeds"),
        ({"speeds": np.array([1.0, 0.0])}, "schedule.speeds"),
        ({"capacity": Capacity.per_rank([1, 2, 3])}, "3 capacities for 2 ranks"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        Problem(**({"lengths": LENGTHS, "workers": 2, "global_batch": 4} | changes))


@pytest.mark.parametrize(
    ("policy", "changes", "message"),
    [
        ("prefix", {}, "with policy 'prefix'"),
        ("partition", {"capacity": Capacity.per_rank([4, 8])}, "unequal"),
    ],
)
def test_micro_batches_are_refused_where_they_are_not_planned(policy, changes, message):
    with pytest.raises(UsageError, match=message):
        make_policy(policy, Problem(LENGTHS, 2, 8, micro_batches=2, **changes))


def test_more_samples_per_step_than_there_are_is_refused():
    with pytest.raises(UsageError, match="more than the 40 samples"):
        DataOrder(40, 41)


def test_an_epoch_is_a_permutation_and_another_seed_another_one():
    order = DataOrder(40, 8, seed=1)
    assert sorted(order.permutation(0)) == list(range(40))
    assert order.permutation(0).tolist() == DataOrder(40, 8, seed=1).permutation(0).tolist()
    assert order.permutation(0).tolist() != order.permutation(1).tolist()
    assert order.permutation(0).tolist() != DataOrder(40, 8, seed=2).permutation(0).tolist()


def test_the_incomplete_last_batch_is_dropped():
    batches = DataOrder(41, 8, order="file").epoch_batches(3)
    assert batches.tolist() == np.arange(40).reshape(5, 8).tolist()
