"""What is said of strategies that were checked; tests/contract/test_sync.py trains them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
import torch

from dynbench.cli.main import main
from dynbench.engine.launching import toy_ranks
from dynbench.engine.launching.toy_ranks import check_strategies
from dynbench.engine.rank.toy_check import Case, Difference, difference, train_alone
from dynbench.errors import UsageError

APART = {"sgd": 1e-17, "adamw": 2e-17}


def checked_at_once(names: Sequence[str], world_size: int) -> Iterator[tuple[str, str, Difference]]:
    """In place of processes; `naive` forgets to divide."""
    for name in names:
        for optimizer, largest in APART.items():
            wrong = name == "naive"
            yield name, optimizer, Difference(0.1 if wrong else largest, "mix.weight", 1e8 if wrong else 0.01)


def test_an_exact_strategy_that_differs_fails_and_one_that_promises_nothing_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toy_ranks, "_on_processes", checked_at_once)
    found = {(each.strategy, each.optimizer): each for each in check_strategies(["ddp", "naive", "ddp_noop"], 2)}
    assert [found[name, "sgd"].passed for name in ("ddp", "naive", "ddp_noop")] == [True, False, True]
    assert [found[name, "sgd"].exact for name in ("ddp", "naive", "ddp_noop")] == [True, True, False]
    assert main(["sync", "check", "naive", "ddp", "--json"]) == 6
    answer = json.loads(capsys.readouterr().out)
    assert [row["passed"] for row in answer["checked"]] == [False, False, True, True]
    assert "naive trained other weights than one process" in answer["error"]["message"]


def test_a_strategy_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="'bucketted' is not a strategy"):
        list(check_strategies(["bucketted"], 2))


def test_rounding_is_told_from_a_difference() -> None:
    case = Case("sgd", steps=2)
    wanted = train_alone(case, 2)
    assert any(tensor.abs().max() > 0 for tensor in wanted.values())
    assert difference(wanted, wanted).largest == 0
    moved = {**wanted, "mix.weight": wanted["mix.weight"] * (1 + 1e-8)}
    assert difference(moved, wanted).name == "mix.weight"
    assert difference(moved, wanted).of_rounding > 1
    assert difference({**wanted, "mix.bias": wanted["mix.bias"] * (1 + 1e-13)}, wanted).of_rounding < 1


def test_the_toy_has_what_strategies_go_wrong_on() -> None:
    case = Case()
    model = case.model()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shares = [share for step in range(case.steps) for share in case.shares(step, 2)]
    assert {len(share) for share in shares} == {1, 2, 3}
    used = [any(bool((batch[:, 0] % 2 == 0).any()) for batch in share) for share in shares]
    assert set(used) == {True, False}
    ended = train_alone(case, 2)
    assert torch.equal(start["frozen.weight"], ended["frozen.weight"])
    assert torch.equal(start["unused.weight"], ended["unused.weight"]), "AdamW leaves it alone"
    assert not torch.equal(start["embed.weight"], ended["embed.weight"])
    assert torch.equal(ended["embed.weight"], ended["score.weight"])
