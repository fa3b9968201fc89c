"""What rank 0 warns about reaches the launcher, each warning once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dynbench.config.ranks import Ranks
from dynbench.engine.rank.rank_facts import keep_warnings, read_warnings
from dynbench.engine.rank.rank_process import RankContext, set_up_logging
from dynbench.runs.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    run.ranks_dir.mkdir()
    before = list(logging.getLogger("dynbench").handlers)
    yield run
    logging.getLogger("dynbench").handlers[:] = before


def context(rank: int) -> RankContext:
    return RankContext(rank=rank, local_rank=rank, world_size=2, device=torch.device("cpu"))


def test_warnings_are_kept_once_and_on_one_line(run: Run) -> None:
    keep_warnings(run, context(0), Ranks(2))
    log = logging.getLogger("dynbench.workloads.samples")
    log.info("nothing to see")
    for _ in range(2):
        log.warning("two\nlines of %d", 3)
    log.error("worse")
    logging.getLogger("elsewhere").warning("not ours")
    assert read_warnings(run) == ["two lines of 3", "worse"]


def test_other_ranks_keep_nothing(run: Run) -> None:
    keep_warnings(run, context(1), Ranks(2))
    logging.getLogger("dynbench").warning("seen by rank 0 too")
    assert read_warnings(run) == []


def test_the_first_that_trains_is_heard_beside_a_server(run: Run) -> None:
    for rank in (0, 1, 2):
        keep_warnings(run, context(rank), Ranks(3, 1))
        logging.getLogger("dynbench").warning("of rank %d", rank)
        logging.getLogger("dynbench").warning("of all")
        logging.getLogger("dynbench").handlers[:] = []
    assert read_warnings(run) == ["of rank 0", "of all", "of rank 1"]


@pytest.mark.parametrize(("rank", "level"), [(0, logging.INFO), (1, logging.INFO), (2, logging.WARNING)])
def test_every_line_says_what_the_rank_is(monkeypatch: pytest.MonkeyPatch, rank: int, level: int) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **settings: asked.update(settings))
    set_up_logging(context(rank), Ranks(3, 1))
    assert asked["level"] == level
    assert Ranks(3, 1).title(rank) in str(asked["format"])
