"""What is said of strategies that were checked; tests/contract/test_sync.py trains them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
import torch

from dynbench.cli.main import main
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.engine.rank.toy_check import Case, Difference, check_strategies, config_of, difference, train_alone
from dynbench.plugins import STRATEGIES
from dynbench.sync.fully_sharded_streams import blocks_of

APART = {"sgd": 1e-17, "adamw": 2e-17}


def checked_at_once(names: Sequence[str], world_size: int) -> Iterator[tuple[str, str, Difference]]:
    """In place of processes; `naive` forgets to divide."""
    for name in names:
        for optimizer, largest in APART.items():
            wrong = name == "naive"
            yield name, optimizer, Difference(0.1 if wrong else largest, "mix.weight", 1e8 if wrong else 0.01)


def test_an_exact_strategy_that_differs_fails_and_one_that_promises_nothing_passes(monkeypatch, capsys):
    monkeypatch.setattr(toy_ranks, "_on_processes", checked_at_once)
    found = {(each.strategy, each.optimizer): each for each in check_strategies(["ddp", "naive", "ddp_noop"], 2)}
    judged = [(found[name, "sgd"].passed, found[name, "sgd"].exact) for name in ("ddp", "naive", "ddp_noop")]
    assert judged == [(True, True), (False, True), (True, False)]
    assert main(["sync", "check", "naive", "ddp", "--json"]) == 6
    answer = json.loads(capsys.readouterr().out)
    assert [row["passed"] for row in answer["checked"]] == [False, False, True, True]
    assert "naive trained other weights than one process" in answer["error"]["message"]


def test_rounding_is_told_from_a_difference():
    case = Case("sgd", steps=2)
    wanted = train_alone(case, 2)
    assert any(tensor.abs().max() > 0 for tensor in wanted.values())
    assert difference(wanted, wanted).largest == 0
    moved = {**wanted, "mix.weight": wanted["mix.weight"] * (1 + 1e-8)}
    assert difference(moved, wanted).name == "mix.weight"
    assert difference(moved, wanted).of_rounding > 1
    assert difference({**wanted, "mix.bias": wanted["mix.bias"] * (1 + 1e-13)}, wanted).of_rounding < 1


@pytest.mark.parametrize("name", ["embed.weight", "score.bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_infinitely_far_from_any(name, value, monkeypatch, capsys):
    wanted = train_alone(Case("sgd", steps=1), 2)
    found = difference({**wanted, name: torch.full_like(wanted[name], value)}, wanted)
    assert found == Difference(float("inf"), name, float("inf"))
    monkeypatch.setattr(toy_ranks, "_on_processes", lambda *_: [("naive", "sgd", found)])
    assert main(["sync", "check", "naive", "--json"]) == 6
    assert json.loads(capsys.readouterr().out)["checked"][0]["difference"] is None


@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if entry.reads("bucket_mb")])
def test_the_toy_fills_many_buckets(name):
    limit = float(config_of(name).sync.model_dump()["bucket_mb"]) * 2**20
    assert sum(parameter.nbytes for parameter in Case().model().parameters()) > 20 * limit


def test_the_toy_has_what_strategies_go_wrong_on():
    case = Case()
    model = case.model()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shares = [share for step in range(case.steps) for share in case.shares(step, 2)]
    assert {len(share) for share in shares} == {1, 2, 3}
    used = [any(bool((batch[:, 0] % 2 == 0).any()) for batch in share) for share in shares]
    assert set(used) == {True, False}
    ended = train_alone(case, 2)
    moved = {name: not torch.equal(start[name], ended[name]) for name in start}
    assert not (moved["frozen.weight"] or moved["unused.weight"]) and moved["embed.weight"] and moved["norm.weight"]
    assert torch.equal(ended["embed.weight"], ended["score.weight"]), "tied"
    assert len(blocks_of(model)) == 4
