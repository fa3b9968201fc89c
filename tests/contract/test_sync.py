"""Strategies train what one process trains, and the public classes keep their rules.

Warm processes are the ranks: two, three and four.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from sampled import matrix, sampled
from sync_jobs import (
    ADAPTERS,
    FAULTS,
    PLAIN,
    checked,
    gathered_late,
    killed,
    norm_of_one_weight,
    optimized,
    overflowing,
    own_loop,
    public,
    pushed_buffers,
    refusals,
    sharded,
)
from toys import TiedModel
from warm import RankError, WarmRanks

from dynbench.engine.rank.toy_check import Difference
from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc

EXACT = [name for name, entry in STRATEGIES.items() if entry.exact]
EVERYONE_TRAINS = [name for name in EXACT if not STRATEGIES[name].servers]
TRAINED = ("toy", "gpt2")
"""Models."""
OF_EACH_KIND = ("overlap", "ddp", "zero1", "fsdp", "ps_flat")
"""One of each way to cut gradients and state among ranks."""


def judge(found: list[Difference | None]) -> None:
    """The first rank has the weights, and they differ from one process's by rounding alone."""
    assert found[0] is not None and found[1:] == [None] * (len(found) - 1)
    assert found[0].of_rounding <= 1, found[0]


@pytest.mark.parametrize(
    ("sync", "model", "optimizer"),
    sampled(
        product(EXACT, TRAINED, ("sgd", "adamw")),
        [*product(EXACT, ["toy"], ("sgd", "adamw")), *product(OF_EACH_KIND, ["gpt2"], ["adamw"])],
    ),
)
def test_two_workers_train_what_one_process_trains(
    ranks: WarmRanks, three: WarmRanks, sync: str, optimizer: str, model: str
) -> None:
    judge((three if STRATEGIES[sync].servers else ranks)(checked, sync, model, optimizer))


@pytest.mark.parametrize("model", ["toy", matrix("gpt2")])
@pytest.mark.parametrize("optimizer", ["sgd", matrix("adamw")])
@pytest.mark.parametrize("sync", sampled(EXACT, OF_EACH_KIND))
def test_four_ranks_train_what_one_process_trains(four: WarmRanks, sync: str, optimizer: str, model: str) -> None:
    judge(four(checked, sync, model, optimizer))


@pytest.mark.parametrize("model", [*TRAINED, "uses_weights"])
def test_no_parameter_is_used_before_it_is_gathered(ranks: WarmRanks, model: str) -> None:
    judge(ranks(gathered_late, model))


BESIDE_DDP = ["sync.outer_rate=1", "sync.outer_momentum=0"]


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        ("fsdp", ["sync.reshard=false"]),
        ("fsdp", ["sync.reduce_scatter=native"]),
        ("zero1", ["sync.reduce_scatter=native"]),
        ("bucketed", ["sync.bucket_mb=none"]),
        ("ddp", ["sync.bucket_mb=none"]),
        ("local_sgd", []),
        ("local_sgd_torch", []),
        ("diloco", BESIDE_DDP),
        ("diloco", [*BESIDE_DDP, "sync.fragments=3"]),
    ],
)
def test_options_that_leave_training_as_it_is(ranks: WarmRanks, sync: str, settings: list[str]) -> None:
    """Ranks that step apart average their models after every step here."""
    judge(ranks(checked, sync, "gpt2", "adamw" if STRATEGIES[sync].exact else "sgd", *settings))


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        ("local_sgd", ["sync.inner_steps=2"]),
        ("local_sgd_torch", ["sync.inner_steps=2"]),
        ("diloco", []),
        ("ddp_noop", []),
    ],
)
def test_what_trains_something_else_is_caught(ranks: WarmRanks, sync: str, settings: list[str]) -> None:
    """By what promises no more."""
    with pytest.raises(AssertionError, match="largest"):
        judge(ranks(checked, sync, "toy", "sgd", *settings))


def test_gathering_in_bfloat16_rounds(ranks: WarmRanks) -> None:
    found, _ = ranks(checked, "fsdp", "gpt2", "sgd", "sync.gather_bf16=true")
    assert found is not None
    assert 1e-6 < found.largest < 0.05


@pytest.mark.parametrize("sync", EVERYONE_TRAINS)
def test_fewer_elements_than_ranks_are_trained_and_clipped(ranks: WarmRanks, sync: str) -> None:
    judge(ranks(checked, sync, "one_weight", "adamw"))
    assert ranks(norm_of_one_weight, sync) == [(3.0, pytest.approx(0.5, rel=1e-5)), (3.0, 0.0)]


@pytest.mark.parametrize("sync", EVERYONE_TRAINS)
def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(ranks: WarmRanks, sync: str) -> None:
    first, second = ranks(overflowing, sync)
    assert first == [(False, True), (True, False), (False, True)]
    assert [skipped for skipped, _ in second] == [False, True, False]


@pytest.mark.parametrize("sync", STRATEGIES)
def test_models_that_differ_are_refused_on_all_ranks(ranks: WarmRanks, sync: str) -> None:
    first, second = ranks(refusals, sync)
    assert first == second and len(first) == len(FAULTS)
    for refusal in first:
        assert refusal.startswith("the models of ranks 0 and 1 differ: ")
        assert " of shape [" in refusal and " and type torch." in refusal


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_public_classes_in_a_loop_of_ones_own(ranks: WarmRanks, adapter: str) -> None:
    assert max(ranks(own_loop, adapter)) < 1e-5


def test_strategies_work_on_plain_torch(ranks: WarmRanks) -> None:
    """And what the first rank has whole it gives without the others, as in a run whose ranks are stopped apart."""
    first, second = ranks(public)
    assert len({round(total, 9) for total, _ in first}) == 1, "all take the same step"
    whole = sorted(TiedModel().state_dict())
    assert [names for _, names in first] == [None if name == "fsdp" else whole for name in PLAIN]
    assert second == [(0.0, None)] * len(first)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
)
def test_a_sharded_optimizer_is_the_one_that_it_divides(
    ranks: WarmRanks, four: WarmRanks, kind: type[torch.optim.Optimizer], settings: dict[str, float]
) -> None:
    """Also where its state is loaded by another number of ranks."""
    weights, state, _ = optimized(lambda groups: kind(groups, **settings))
    found = ranks(sharded, kind, settings)
    assert [each[0] for each in found] == [weights] * 2
    for _, whole, _, _ in found:
        torch.testing.assert_close(whole["state"], state["state"], rtol=0, atol=0)
        numbers = [[(group["lr"], group["params"]) for group in each["param_groups"]] for each in (whole, state)]
        assert numbers[0] == numbers[1]
    assert sorted(each[2:] for each in found) == [(25, 3), (30, 1)], "the largest alone on a rank"
    after, *_ = optimized(lambda groups: kind(groups, **settings), state)
    for warm, size in ((ranks, 2), (four, 4)):
        assert [each[0] for each in warm(sharded, kind, settings, found[0][1])] == [after] * size


def test_the_workers_buffers_are_weighted_by_their_rows(three: WarmRanks) -> None:
    found, *_ = three(pushed_buffers)
    assert found == pytest.approx({"mean": (3 * 1 + 1 * 5) / 4, "batches": 2})


KILLED = ["naive", "overlap", "zero1", "fsdp", "ps_flat", "diloco"]
"""In one of each kind; in the others by `make test-matrix`."""


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        *((name, []) if name in KILLED else matrix(name, []) for name, entry in STRATEGIES.items() if entry.trains),
        ("bucketed", ["compress.name=topk", "compress.min_elements=0"]),
        ("fsdp", ["compress.name=fp8", "compress.min_elements=0"]),
    ],
)
def test_a_rank_that_dies_ends_the_others(mortal: WarmRanks, sync: str, settings: list[str]) -> None:
    with pytest.raises(RankError) as ended:
        mortal(killed, sync, *settings)
    assert set(ended.value.errors) == {0, 1}
    assert ended.value.errors[1] == "ended without a word"
    assert settings or "Connection" in ended.value.errors[0]
