"""Progress is what all ranks have recorded; a line half written does not count."""

from __future__ import annotations

import logging

import pytest
import torch

from dynbench.config.ranks import Ranks
from dynbench.engine.launching.progress import Progress, ProgressReader
from dynbench.engine.rank.rank_facts import keep_warnings
from dynbench.engine.rank.rank_process import RankContext
from dynbench.runs.run import Run
from dynbench.workloads import cache

HEADER = "step,weight,real_tokens,compute_ms,step_time_ms,loss\n"


def append(run: Run, rank: int, text: str) -> None:
    with run.rank_file(rank).open("a") as file:
        file.write(text)


def test_before_the_first_row_what_takes_long_is_shown_with_its_rate(run, monkeypatch, caplog):
    monkeypatch.setattr(cache, "FIRST_S", 0.0)
    for logger in (cache.progress_logger, logging.getLogger("dynbench")):
        monkeypatch.setattr(logger, "handlers", [])
    keep_warnings(run, RankContext(0, 0, 2, torch.device("cpu")), Ranks(2))
    reader = ProgressReader([run], [range(1)], 10, None)
    with caplog.at_level(logging.INFO):
        cache.Progress("tokenising a file", 100, "characters").add(50)
    shown = reader.look()
    assert (shown.steps_done, shown.total_steps, shown.loss) == (0, 10, None)
    assert shown.preparing.startswith("tokenising a file: ") and "50%" in shown.preparing
    append(run, 0, HEADER + "0,3.0,30,10,40,1.0\n")
    assert reader.look().preparing == ""


def test_rates_over_ranks(run):
    reader = ProgressReader([run], [range(2)], 10, None)
    append(run, 0, HEADER + "0,3.0,30,10,40,1.0\n1,3.0,30,30,40,2.0\n2,3.0,3")
    append(run, 1, HEADER + "0,1,10,20,40,5.0\n1,1,10,10,42,6.0\n")
    progress = reader.look()
    assert progress.steps_done == 2
    assert progress.loss == pytest.approx((3 * 2 + 6) / 4)
    assert progress.tokens_per_s == pytest.approx(80 / 0.082)
    assert progress.imbalance == pytest.approx((20 + 30) / (15 + 20))
    append(run, 0, "0,10,40,2.5\n")
    append(run, 1, "2,1,10,10,40,1.0\n")
    assert reader.look().steps_done == 3


@pytest.mark.parametrize(("ranks", "imbalance"), [(3, 30 / 20), (1, None)])
def test_ranks_that_train_nothing_count_in_no_rate(run, ranks, imbalance):
    append(run, 0, HEADER + "0,0,0,0,90,0\n")
    append(run, 1, HEADER + "0,1,10,30,40,1.0\n")
    append(run, 2, HEADER + "0,1,10,10,40,2.0\n")
    progress = ProgressReader([run], [range(ranks)], 10, None).look()
    assert (progress.steps_done, progress.imbalance) == (1, imbalance)
    assert progress.tokens_per_s == (None if imbalance is None else pytest.approx(20 / 0.040))


def test_ranks_that_are_apart_use_common_steps(run):
    append(run, 0, HEADER + "".join(f"{step},1,10,10,40,1.0\n" for step in range(40)))
    append(run, 1, HEADER + "0,1,10,10,40,1.0\n")
    progress = ProgressReader([run], [range(2)], 50, None).look()
    assert progress.steps_done == 1 and progress.loss is None


def test_the_end_is_always_reported(run):
    seen: list[Progress] = []
    with ProgressReader([run], [range(1)], 1, seen.append):
        append(run, 0, HEADER + "0,1,10,10,40,1.0\n")
    assert seen[-1].steps_done == 1


@pytest.mark.parametrize(
    ("done", "place"), [(0, "warm-up 0/10"), (9, "warm-up 9/10"), (10, "step 0/40"), (50, "step 40/40")]
)
def test_steps_are_those_asked_for(done, place):
    assert Progress(done, 50, 1.0, warmup_steps=10).place == place
    assert Progress(done, 50, 1.0).place == f"step {done}/50"
