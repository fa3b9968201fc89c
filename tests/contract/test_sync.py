"""Strategies train what one process trains, and the public classes keep their rules; planted faults are caught.

Warm processes are the ranks: two, three and four.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from broken_sync import BROKEN_SYNC
from sync_jobs import (
    MODELS,
    PUBLIC,
    at_another_size,
    checked,
    course,
    course_sharded,
    differing,
    gathered_late,
    killed,
    meetings,
    messages,
    odd_layouts,
    outer_steps,
    process_id,
    pushed_buffers,
    sent_during_backward,
    sharded,
    states,
    waits_noted,
)
from warm import RankError, WarmRanks

from dynbench.engine.rank.toy_check import Difference
from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc

EXACT = [name for name, entry in STRATEGIES.items() if entry.exact]
EVERYONE_TRAINS = [name for name in EXACT if not STRATEGIES[name].servers]
OVERLAPPING = ["overlap", "bucketed", "zero1"]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    """Two gloo ranks for tests that end them."""
    warm = WarmRanks(tmp_path_factory.mktemp("meet"))
    yield warm
    warm.close()


def judge(found: list[Difference | None]) -> None:
    """The first rank has the weights, and they differ from one process's by rounding alone."""
    assert found[0] is not None and found[1:] == [None] * (len(found) - 1)
    assert found[0].of_rounding <= 1, found[0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("sync", EVERYONE_TRAINS)
def test_two_ranks_train_what_one_process_trains(ranks: WarmRanks, sync: str, optimizer: str, model: str) -> None:
    judge(ranks(checked, sync, model, optimizer))


@pytest.mark.parametrize("model", ["toy", pytest.param("gpt2", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("sync", EXACT)
def test_four_ranks_train_what_one_process_trains(four: WarmRanks, sync: str, optimizer: str, model: str) -> None:
    judge(four(checked, sync, model, optimizer))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("sync", [name for name in EXACT if STRATEGIES[name].servers])
def test_two_workers_and_a_server_train_what_one_process_trains(
    three: WarmRanks, sync: str, optimizer: str, model: str
) -> None:
    judge(three(checked, sync, model, optimizer))


@pytest.mark.parametrize("model", [*MODELS, "uses_weights"])
def test_no_parameter_is_used_before_it_is_gathered(ranks: WarmRanks, model: str) -> None:
    judge(ranks(gathered_late, model))


@pytest.mark.parametrize("sync", ["averages_parameters", "sends_early", "forgets_to_divide_gradients", "tied_twice"])
def test_a_wrong_mean_is_caught(ranks: WarmRanks, sync: str) -> None:
    assert sync in BROKEN_SYNC
    with pytest.raises(AssertionError, match="largest"):
        judge(ranks(checked, sync, "toy", "sgd"))


def judge_overlap(found: list[list[tuple[int, int]]]) -> None:
    """From the second step on, when unused parameters are known, something is sent before all gradients are there."""
    for rank in found:
        for at_first, complete in rank[1:]:
            assert 0 < at_first < complete, "sent during the backward pass"


@pytest.mark.parametrize("sync", OVERLAPPING)
def test_the_first_is_sent_before_the_last_gradient_is_ready(ranks: WarmRanks, sync: str) -> None:
    judge_overlap(ranks(sent_during_backward, sync))


def test_sending_at_the_end_of_the_backward_pass_only_is_caught(ranks: WarmRanks) -> None:
    judge(ranks(checked, "sends_at_the_end", "toy", "sgd"))
    with pytest.raises(AssertionError, match="during the backward pass"):
        judge_overlap(ranks(sent_during_backward, "sends_at_the_end"))


@pytest.mark.parametrize(
    "fault", ["number", "shape", "dtype", "layout", "buffer_shape", "buffer_number", "buffer_name"]
)
def test_models_that_differ_between_ranks_are_an_error_on_all(ranks: WarmRanks, fault: str) -> None:
    for name in PUBLIC:
        said = ranks(differing, name, fault)
        assert said[0] == said[1]
        assert said[0].startswith("UsageError: the models of ranks 0 and 1 differ: ")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_parameter_that_no_rank_uses_has_no_gradient(ranks: WarmRanks, name: str) -> None:
    for nobody, one_rank in ranks(states, name):
        assert nobody == [True, True, True]
        assert one_rank == [True, False, True], "zeros where only the other rank used it"


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_of_any_layout_and_type(ranks: WarmRanks, name: str) -> None:
    assert max(ranks(odd_layouts, name)) < 1e-5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bucket_size_mb", [0.0016, 0.0001, 0.01])
def test_the_course_s_bucketed_adapters(ranks: WarmRanks, tied: bool, bucket_size_mb: float) -> None:
    for found in ranks(course, tied, bucket_size_mb, False):
        assert max(found) < 1e-6


@pytest.mark.parametrize("tied", [False, True])
def test_the_course_s_adapters_in_five_runs(ranks: WarmRanks, tied: bool) -> None:
    for _ in range(5):
        for found in ranks(course, tied, None, True):
            assert max(found) < 1e-6


@pytest.mark.parametrize(
    ("optimizer_cls", "settings"),
    [(torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
)
def test_a_sharded_optimizer_is_the_one_that_it_divides(
    ranks: WarmRanks, optimizer_cls: type[torch.optim.Optimizer], settings: dict[str, float]
) -> None:
    found = ranks(sharded, optimizer_cls, settings)
    assert sum(each["held"] for each in found) == 55
    assert max(each["held"] for each in found) == 30, "the largest alone on a rank"
    assert sorted(each["states"] for each in found) == [1, 3]
    for each in found:
        assert each["apart"] == 0
        assert each["groups"] == each["wanted_groups"]
        assert each["state"].keys() == each["wanted_state"].keys()
        for number, wanted in each["wanted_state"].items():
            for key, value in wanted.items():
                assert torch.equal(torch.as_tensor(each["state"][number][key]), torch.as_tensor(value)), key
        assert each["loaded"] == 0


def test_a_sharded_state_is_loaded_by_another_number_of_ranks(
    ranks: WarmRanks, four: WarmRanks, tmp_path: Path
) -> None:
    ranks(at_another_size, str(tmp_path), False)
    on_two, on_four = ranks(at_another_size, str(tmp_path), True), four(at_another_size, str(tmp_path), True)
    assert len({tuple(found) for found in (*on_two, *on_four)}) == 1


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        ("local_sgd", ["sync.inner_steps=1"]),
        ("local_sgd_torch", ["sync.inner_steps=1"]),
        ("diloco", ["sync.inner_steps=1", "sync.outer_rate=1", "sync.outer_momentum=0"]),
        ("diloco", ["sync.inner_steps=1", "sync.outer_rate=1", "sync.outer_momentum=0", "sync.fragments=3"]),
    ],
)
def test_ranks_that_meet_after_every_step_train_what_one_process_trains(
    ranks: WarmRanks, sync: str, settings: list[str]
) -> None:
    judge(ranks(checked, sync, "gpt2", "sgd", *settings))


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        ("local_sgd", ["sync.inner_steps=2"]),
        ("local_sgd_torch", ["sync.inner_steps=2"]),
        ("diloco", ["sync.inner_steps=1"]),
        ("ddp_noop", []),
    ],
)
def test_strategies_that_promise_no_such_thing_train_something_else(
    ranks: WarmRanks, sync: str, settings: list[str]
) -> None:
    assert not STRATEGIES[sync].exact
    with pytest.raises(AssertionError, match="largest"):
        judge(ranks(checked, sync, "toy", "sgd", *settings))


@pytest.mark.parametrize(("fragments", "met"), [(1, [0, 0, 0, 1]), (2, [0, 1, 0, 1]), (3, [1, 1, 0, 1])])
def test_fragments_meet_in_turn_and_every_parameter_once_in_a_round(
    ranks: WarmRanks, fragments: int, met: list[int]
) -> None:
    for rows, sent, whole in ranks(meetings, fragments):
        assert [int(row > 0) for row in rows] == met * 2
        assert sum(rows[:4]) == sum(rows[4:]) == whole
        assert sent == [row * 8 for row in rows], "each parameter's change, and no more"


def test_the_first_outer_steps_are_nesterov_s(ranks: WarmRanks) -> None:
    for ours, torchs in ranks(outer_steps):
        assert ours == pytest.approx(torchs, rel=1e-12)


def test_the_server_sends_and_receives_a_message_per_tensor_or_one(three: WarmRanks) -> None:
    tensors = sum(parameter.requires_grad for parameter in MODELS["toy"]().parameters())
    for sync, pushed, pulled in (("ps", 1 + tensors, tensors), ("ps_flat", 1, 1)):
        server, *workers = three(messages, sync)
        assert workers == [[pushed + pulled] * 2] * 2, "which gradients there are comes with them"
        assert server == [2 * (pushed + pulled)] * 2


WAIT_BESIDE_THE_GRADIENTS = ["fsdp", "zero1", "zero1_torch", "ps", "ps_flat", "local_sgd", "local_sgd_torch", "diloco"]


@pytest.mark.parametrize("sync", STRATEGIES)
def test_what_is_waited_for_within_passes_and_the_optimizers_step_is_told(ranks: WarmRanks, sync: str) -> None:
    """So that it is in the time to synchronise and in no other."""
    assert ranks(waits_noted, sync) == [sync in WAIT_BESIDE_THE_GRADIENTS] * 2


def test_the_workers_buffers_are_weighted_by_their_rows(three: WarmRanks) -> None:
    found, *_ = three(pushed_buffers)
    assert found == pytest.approx({"mean": (3 * 1 + 1 * 5) / 4, "batches": 2})


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        ("fsdp", ["sync.reshard=false"]),
        ("fsdp", ["sync.reduce_scatter=native"]),
        ("zero1", ["sync.reduce_scatter=native"]),
        ("zero1", ["sync.bucket_mb=0.0003"]),
        ("bucketed", ["sync.bucket_mb=0.0003"]),
        ("bucketed", ["sync.bucket_mb=none"]),
        ("ddp", ["sync.bucket_mb=none"]),
    ],
)
def test_options_that_leave_training_as_it_is(ranks: WarmRanks, sync: str, settings: list[str]) -> None:
    judge(ranks(checked, sync, "gpt2", "adamw", *settings))


def test_gathering_in_bfloat16_rounds(ranks: WarmRanks) -> None:
    found, _ = ranks(checked, "fsdp", "gpt2", "sgd", "sync.gather_bf16=true")
    assert found is not None
    assert 1e-6 < found.largest < 0.05


@pytest.mark.parametrize("tied", [False, True])
def test_the_course_s_sharded_adapters_in_five_runs(ranks: WarmRanks, tied: bool) -> None:
    for _ in range(5):
        for sharded_optimizer, fully_sharded in ranks(course_sharded, tied):
            assert sharded_optimizer < 1e-6
            assert fully_sharded < 1e-5


KILLED = ["naive", "overlap", "zero1", "fsdp", "ps_flat", "diloco"]
"""In one of each kind; in the others by `make test-matrix`."""


@pytest.mark.parametrize(
    "sync",
    [
        pytest.param(name, marks=() if name in KILLED else pytest.mark.matrix)
        for name, entry in STRATEGIES.items()
        if entry.trains
    ],
)
def test_a_rank_that_dies_ends_the_others(mortal: WarmRanks, sync: str) -> None:
    pids = mortal(process_id)
    with pytest.raises(RankError) as ended:
        mortal(killed, sync)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(ended.value.errors) == {0, 1}
    assert ended.value.errors[1] == "ended without a word"
    assert "Connection" in ended.value.errors[0]
