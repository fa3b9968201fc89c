"""What trains in turns with a step without communication, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.digest import differences
from dynbench.config.load import load_config
from dynbench.engine.launching import attach
from dynbench.errors import UsageError
from dynbench.experiment import training
from dynbench.experiment.training import run_training
from dynbench.experiment.without_communication import with_null
from dynbench.plugins import STRATEGIES
from dynbench.runs.store import RunStore

REAL = (
    "launch.launcher=torchrun",
    "launch.nproc=2",
    "launch.device=cpu",
    "workload.subset=96",
    "train.global_batch=12",
)


@pytest.mark.parametrize("sync", STRATEGIES)
def test_every_strategy_has_a_like_that_sends_nothing_or_says_why_not(tmp_path: Path, sync: str) -> None:
    entry = STRATEGIES[sync]
    if entry.servers or not entry.trains:
        with pytest.raises(UsageError, match=r"--exposed: .*(server steps by|sends nothing already)"):
            with_null(load_config(None, [*REAL, f"sync.name={sync}"]), {}, RunStore(tmp_path))
        return
    config = load_config(None, [*REAL, f"sync.name={sync}", "train.save_model=true"])
    arms, turns = with_null(config, {"name": "a", "replace": True}, RunStore(tmp_path))
    (one, named), (null, beside) = arms
    assert set(differences(one, null)) == {"sync.communicate", "train.save_model"}
    assert (named["name"], beside["name"], beside["replace"]) == ("a", "a-null", True)
    assert turns.block == (8 if entry.across_steps or entry.reads("inner_steps") else 1)


def test_ranks_that_step_apart_take_turns_of_as_many_steps(tmp_path: Path) -> None:
    config = load_config(None, [*REAL, "sync.name=diloco", "sync.inner_steps=20", "sync.overlap_steps=2"])
    assert with_null(config, {}, RunStore(tmp_path))[1].block == 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("launch.launcher=virtual",), "virtual ranks send nothing"),
        (("sync.communicate=false",), "sync.communicate false sends nothing already"),
        (("train.eval_every=2",), "take turns: train.eval_every of arm with is 2 steps"),
    ],
)
def test_what_cannot_take_turns_is_refused(tmp_path: Path, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        with_null(load_config(None, [*REAL, *settings]), {}, RunStore(tmp_path))


def test_a_rank_that_torchrun_started_launches_no_two_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "started_as_rank", lambda _: True)
    monkeypatch.setattr(attach, "join_training", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(UsageError, match="--exposed launches two arms"):
        run_training(load_config(None, REAL), RunStore(tmp_path), exposed=True)
