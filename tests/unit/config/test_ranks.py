"""Rules where some ranks serve: what is meant by ranks, and what by those of them that train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynbench.config.layers import load_config
from dynbench.config.ranks import Ranks, ranks_of, shared_ranks
from dynbench.config.rules import check_rules, rule_warnings
from dynbench.plugins import COMPRESSORS, STRATEGIES, CompressorEntry


@pytest.fixture(autouse=True)
def two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy of the configuration has two ranks serve."""
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=2))


def test_the_first_ranks_serve() -> None:
    found = ranks_of(load_config(None, []), 5)
    assert found == Ranks(5, 2)
    assert found.workers == 3
    assert [rank for rank in range(5) if found.serves(rank)] == [0, 1]
    assert [found.worker(rank) for rank in (2, 3, 4)] == [0, 1, 2]
    assert found.by_worker({0: "a", 2: "b", 4: "c"}) == {0: "b", 2: "c"}
    assert (str(found), str(Ranks(5))) == ("3 workers (of 5 ranks)", "5 ranks")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["train.global_batch=3"], None),
        (["train.global_batch=9"], None),
        (["train.global_batch=2"], "train.global_batch: 2 is less than the 3 workers (of 5 ranks)"),
        (["train.global_batch=10"], "cannot be dealt equally to 3 workers (of 5 ranks), as static must; nearest"),
        (["train.global_batch=6", "schedule.micro_batches=3"], "3 on 3 workers (of 5 ranks) need 9 samples"),
        (["train.global_batch=9", "schedule.policy=partition", "schedule.speeds=[1.0, 2.0, 1.0]"], None),
        (["train.global_batch=9", "schedule.policy=partition", "schedule.capacity=[4, 4, 4, 4, 4]"], "one per worker"),
        (["train.global_batch=9", "launch.slowdown={2: 3.0, 4: 2.0}"], None),
        (["train.global_batch=9", "launch.slowdown={1: 3.0}"], "rank 1 trains nothing under sync.name 'ddp'"),
        (["train.global_batch=9", "launch.slowdown={5: 3.0}"], "no rank 5 among 5; greatest: 4"),
        (["train.global_batch=9", "schedule.policy=prefix", "schedule.buffer=2"], "nearest that works: 3"),
        (["train.global_batch=9", "train.precision=bf16"], None),
        (["train.global_batch=9", "train.precision=fp16"], "train.precision: 'fp16' scales the loss, which ranks that"),
    ],
)
def test_rules_count_workers(settings: list[str], says: str | None) -> None:
    problems = check_rules(load_config(None, settings), 5)
    assert len(problems) == (says is not None)
    assert all(str(says) in problem for problem in problems)


def test_somebody_has_to_train() -> None:
    config = load_config(None, ["train.global_batch=1"])
    (problem,) = check_rules(config, 2)
    assert problem.startswith("sync.name: 'ddp' has 2 of 2 ranks serve")
    assert problem.endswith("least number of ranks that works: 3")
    assert check_rules(config, 3) == []


def test_buffers_are_those_of_the_workers() -> None:
    asked = ["train.global_batch=9", "schedule.policy=prefix", "schedule.buffer=4"]
    (warning,) = rule_warnings(load_config(None, asked), 5, ())
    assert "3 workers (of 5 ranks) hold 12 samples for a global batch of 9" in warning


def test_nothing_is_compressed_where_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPRESSORS.entries, "toy", CompressorEntry("toy", "a toy", "toys:Bf16"))
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=0))  # which would be sent to
    sends, silent = load_config(None, []), load_config(None, ["sync.communicate=false"])
    toy = {"compress": sends.compress.model_copy(update={"name": "toy"})}
    assert check_rules(sends.model_copy(update=toy), None) == check_rules(silent, None) == []
    (problem,) = check_rules(silent.model_copy(update=toy), None)
    assert problem.startswith("compress.name: 'toy' compresses what is sent")


def test_ranks_are_called_what_they_do() -> None:
    assert [Ranks(3).title(rank) for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]
    assert [Ranks(3, 1).title(rank) for rank in range(3)] == [
        "rank 0 (server)",
        "rank 1 (worker 1)",
        "rank 2 (worker 2)",
    ]
    assert [Ranks(3, 2).title(rank) for rank in (0, 1, 2)] == [
        "rank 0 (server 1)", "rank 1 (server 2)", "rank 2 (worker 1)",
    ]  # fmt: skip


def test_in_a_launch_of_arms_that_do_not_agree_no_rank_has_a_part() -> None:
    serving, plain = load_config(None, ["sync.name=ddp"]), load_config(None, ["sync.name=naive"])
    assert shared_ranks([serving, serving], 4) == Ranks(4, 2)
    assert shared_ranks([serving, plain], 4) == Ranks(4)
