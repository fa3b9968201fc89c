"""Rules where some ranks serve, which count those that train; and what ranks store of the parameters, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynbench.config.layers import load_config
from dynbench.config.ranks import Ranks, copies_text, parameter_copies, ranks_under, server_copies
from dynbench.config.rules import check_rules, rule_warnings
from dynbench.plugins import STRATEGIES


@pytest.fixture
def two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy of the configuration has two ranks serve."""
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=2))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("train.global_batch=3", None),
        ("train.global_batch=9", None),
        ("train.global_batch=2", "train.global_batch: 2 is less than the 3 workers (of 5 ranks)"),
        ("train.global_batch=10", "cannot be dealt equally to 3 workers (of 5 ranks), as static must; nearest"),
        ("train.global_batch=6 schedule.micro_batches=3", "3 on 3 workers (of 5 ranks) need 9 samples"),
        ("schedule.policy=partition schedule.speeds=1.0,2.0,1.0", None),
        ("schedule.policy=partition schedule.capacity=4,4,4,4,4", "one per worker"),
        ("launch.slowdown=2:3.0,4:2.0", None),
        ("launch.slowdown=1:3.0", "rank 1 trains nothing under sync.name 'ddp'"),
        ("launch.slowdown=5:3.0", "no rank 5 among 5; greatest: 4"),
        ("schedule.policy=prefix schedule.buffer=2", "nearest that works: 3"),
        ("train.precision=bf16", None),
        ("train.precision=fp16", "train.precision: 'fp16' scales the loss, which ranks that"),
    ],
)
@pytest.mark.usefixtures("two_servers")
def test_rules_count_workers(settings, says):
    problems = check_rules(load_config(None, ["train.global_batch=9", *settings.split()]), 5)
    assert [str(says) in problem for problem in problems] == [True] * (says is not None)


@pytest.mark.usefixtures("two_servers")
def test_somebody_has_to_train():
    config = load_config(None, ["train.global_batch=1"])
    (problem,) = check_rules(config, 2)
    assert problem.startswith("sync.name: 'ddp' has 2 of 2 ranks serve") and problem.endswith("that works: 3")
    assert check_rules(config, 3) == []


@pytest.mark.usefixtures("two_servers")
def test_buffers_are_those_of_the_workers():
    settings = ["train.global_batch=9", "schedule.policy=prefix", "schedule.buffer=4"]
    (warning,) = rule_warnings(load_config(None, settings), 5, ())
    assert "3 workers (of 5 ranks) hold 12 samples for a global batch of 9" in warning


ADAMW, SGD, PLAIN = [], ["train.optimizer=sgd"], ["train.optimizer=sgd", "train.momentum=0"]


@pytest.mark.parametrize(
    ("sync", "optimizer", "workers", "copies"),
    [
        ("ddp", ADAMW, 4, 4),
        ("ddp", SGD, 4, 3),
        ("ddp", PLAIN, 4, 2),
        ("zero1", ADAMW, 4, 2 + (1 + 2) / 4),
        ("zero1", ADAMW, 1, 5),
        ("zero1_torch", ADAMW, 4, 2 + 2 / 4),
        ("fsdp", ADAMW, 4, 4 / 4),
        ("fsdp", PLAIN, 2, 2 / 2),
        ("ps", ADAMW, 4, 2),
        ("local_sgd", SGD, 4, 4),
        ("diloco", ADAMW, 4, 6),
    ],
)
def test_copies_between_steps(sync, optimizer, workers, copies):
    config = load_config(None, [f"sync.name={sync}", *optimizer])
    ranks = ranks_under(sync, workers + STRATEGIES[sync].servers)
    assert parameter_copies(config, ranks) == copies
    assert f"a rank holds {copies:.3g} copies" in copies_text(config, ranks)


@pytest.mark.parametrize("sync", STRATEGIES)
def test_more_ranks_never_store_more_each(sync):
    config, servers = load_config(None, [f"sync.name={sync}"]), STRATEGIES[sync].servers
    stored = [parameter_copies(config, Ranks(workers + servers, servers), in_step=True) for workers in (1, 2, 4)]
    assert stored == sorted(stored, reverse=True)
    assert stored[0] >= parameter_copies(config, Ranks(1 + servers, servers))
    assert (server_copies(config) > 0) == (servers > 0)
