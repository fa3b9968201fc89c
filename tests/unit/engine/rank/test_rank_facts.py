"""What a rank warns about and keeps, and ranks that disagree."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from dynbench.config.layers import load_config
from dynbench.config.ranks import Ranks
from dynbench.engine.rank import exchange, rank_facts
from dynbench.engine.rank.rank_facts import keep_warnings, read_warnings
from dynbench.engine.rank.rank_process import RankContext, set_up_logging
from dynbench.errors import ConfigError
from dynbench.plugins import WORKLOADS
from dynbench.runs.records import LENGTHS_FILE
from dynbench.workloads.registry import build_workload


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("dynbench"), "handlers", [])


def context(rank: int) -> RankContext:
    return RankContext(rank=rank, local_rank=rank, world_size=2, device=torch.device("cpu"))


def test_warnings_of_a_server_and_of_the_first_that_trains_are_kept_once_and_on_one_line(run):
    log = logging.getLogger("dynbench.workloads.samples")
    for rank in (0, 1, 2):
        keep_warnings(run, context(rank), Ranks(3, 1))
        log.info("nothing to see")
        for _ in range(2):
            log.warning("two\nlines of %d", rank)
        log.error("of all")
        logging.getLogger("elsewhere").warning("not ours")
        logging.getLogger("dynbench").handlers[:] = []
    assert read_warnings(run) == ["two lines of 0", "of all", "two lines of 1"]


@pytest.mark.parametrize(("rank", "level"), [(0, logging.INFO), (1, logging.INFO), (2, logging.WARNING)])
def test_every_line_says_what_the_rank_is(monkeypatch, rank, level):
    asked: dict[str, object] = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **settings: asked.update(settings))
    set_up_logging(context(rank), Ranks(3, 1))
    assert asked["level"] == level
    assert Ranks(3, 1).title(rank) in str(asked["format"])


CONFIG = load_config(None, [])


def gathered(monkeypatch: pytest.MonkeyPatch, *others: dict[str, str]) -> None:
    """What rank 0 has, and what other ranks have loaded; their configurations agree."""

    def gather(value: object) -> list[object]:
        return [value, *others] if isinstance(value, dict) and "mine.py" in value else [value] * (1 + len(others))

    monkeypatch.setattr(exchange, "gather_objects", gather)
    monkeypatch.setattr(exchange, "digests", lambda: {"mine.py": "a", "theirs": "b"})


def test_a_mapping_in_another_order_is_the_same_setting(monkeypatch):
    said = []
    monkeypatch.setattr(exchange, "gather_objects", lambda value: [said.append(value) or value])
    for slowdown in ("{0: 2.0, 1: 3.0}", "{1: 3.0, 0: 2.0}"):
        exchange.check_same_config(load_config(None, [f"launch.slowdown={slowdown}"]))
    assert said[1] == said[3] and said[1]["launch.slowdown"] == "{'0': 2.0, '1': 3.0}"


def test_nodes_agree_in_their_plugins_or_what_differs_is_named(monkeypatch):
    gathered(monkeypatch, {"theirs": "b", "mine.py": "a"})
    exchange.check_same_config(CONFIG)
    gathered(monkeypatch, {"mine.py": "c", "theirs": "b"}, {"mine.py": "a"})
    with pytest.raises(ConfigError) as caught:
        exchange.check_same_config(CONFIG)
    assert list(caught.value.problems) == [
        "nodes disagree in plug-ins: mine.py is a on rank 0, c on rank 1",
        "nodes disagree in plug-ins: theirs is b on rank 0, not loaded on rank 2",
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_the_lengths_of_a_registered_workload_are_kept_too(run, monkeypatch, kept):
    config = load_config(None, ["workload.dataset=lognormal", "launch.launcher=torchrun", "workload.subset=64"])
    workload = build_workload(config)
    monkeypatch.setattr(rank_facts, "gather_objects", lambda value: [value])
    monkeypatch.setattr(rank_facts, "compare_clocks", dict)
    if kept:
        monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    rank_facts.write_facts(run, config, context(0), workload, SimpleNamespace(source="rss"))  # type: ignore[arg-type]
    assert (run.ranks_dir / LENGTHS_FILE).exists() is kept
    assert (run.ranks_dir / "facts.json").exists()
