"""Launches that follow a first stage: as many as the widest interval needs, within the limits, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from unit.experiment.test_compare import row

from dynbench.analysis.stats import student_t_quantile
from dynbench.config.dump import dump_config
from dynbench.config.recipes import load_recipe
from dynbench.config.schema import Config
from dynbench.experiment import launches
from dynbench.experiment.compare import Outcome, run_comparison, start_comparison
from dynbench.experiment.state import read_state
from dynbench.experiment.training import TrainingResult
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.row_writer import RowWriter
from dynbench.runs.run import Run
from dynbench.runs.status import Status
from dynbench.runs.store import Naming, RunStore

RECIPE = """\
description: two arms
settings:
  workload: {dropout: 0.0}
  train: {steps: 6, warmup_steps: 1, global_batch: 8}
  launch: {launcher: torchrun, nproc: 2, threads: 1, device: cpu}
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic, schedule.policy: partition}
"""


class Launched:
    """Stands in for `run_arms`: launches whose log ratios spread as they are told to.

    Args:
        spread: of the log ratios.
    """

    def __init__(self, spread: float) -> None:
        self.logs = (math.log(1.5) + spread * np.random.default_rng(0).standard_normal(200)).tolist()
        self.launches = 0

    def __call__(
        self,
        arms: Sequence[tuple[Config, Naming]],
        store: RunStore,
        *,
        on_made: Callable[[Sequence[Run]], None],
        **_: object,
    ) -> list[TrainingResult]:
        made = [store.create("train", config.schedule.policy_name, **naming) for config, naming in arms]
        on_made(made)
        ratio = math.exp(self.logs[self.launches])
        for (config, _naming), run in zip(arms, made, strict=True):
            write_text(run.config_file, dump_config(config))
            together = {"together": {"id": made[0].id}} if len(made) > 1 else {}
            write_json(run.env_file, {"data": {}, "cpu_cores": {"usable": 2}, **together})
            run.update(status=Status.RUNNING)
            for rank in range(2):
                with RowWriter(run.rank_file(rank)) as writer:
                    for step in range(7):
                        slow = ratio if config.schedule.mode == "static" else 1.0
                        writer.write(row(step, rank, config, 100.0 * slow))
            run.update(status=Status.COMPLETED)
        self.launches += 1
        return [TrainingResult(run, {}) for run in made]


@pytest.fixture
def compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float, str], tuple[Outcome, Launched, RunStore]]:
    def run(spread: float, asked: str) -> tuple[Outcome, Launched, RunStore]:
        fake = Launched(spread)
        monkeypatch.setattr(launches, "run_arms", fake)
        path, store = tmp_path / "demo.yaml", RunStore(tmp_path / "results")
        path.write_text(f"{RECIPE}launches: {{{asked}}}\n", encoding="utf-8")
        return run_comparison(start_comparison(load_recipe(path), store), store), fake, store

    return run


Compared = Callable[[float, str], tuple[Outcome, Launched, RunStore]]


def test_the_first_stage_says_how_many_follow_and_the_interval_keeps_its_spread(compared: Compared) -> None:
    outcome, fake, _ = compared(0.04, "half_width: 1%, first: 6")
    spread = float(np.std(fake.logs[:6], ddof=1))
    quantile = student_t_quantile(0.975, 5)
    needed = math.ceil((quantile * spread / math.log1p(0.01)) ** 2)
    assert fake.launches == outcome.state.blocks == needed > 6
    (found,) = outcome.analysed.comparisons
    record = found.record()
    assert record.first_stage == 6 and record.launches == needed
    assert record.ci95 is not None
    half = (math.log(record.ci95[1]) - math.log(record.ci95[0])) / 2
    assert half == pytest.approx(quantile * spread / math.sqrt(needed), rel=1e-3)
    assert half <= math.log1p(0.01)
    asked = outcome.as_dict()["launches"]
    assert asked == {
        "mode": "interleaved",
        "reason": "the arms can share their processes",
        "count": needed,
        "block": 1,
        "half_width": 0.01,
    }


def test_a_quiet_machine_needs_no_second_stage(compared: Compared) -> None:
    outcome, fake, _ = compared(0.001, "half_width: 5%, first: 4")
    assert fake.launches == 4 and outcome.run.record().warnings == []


def test_a_limit_is_kept_and_its_price_is_told(compared: Compared) -> None:
    outcome, fake, _ = compared(0.05, "half_width: 1%, first: 4, max_launches: 9")
    assert fake.launches == 9
    (warning,) = outcome.run.record().warnings
    assert (
        warning.startswith("launches.half_width: ±1.0% needs ") and "the limit allows 9, which give about ±" in warning
    )


def test_apart_the_number_stays_even(compared: Compared) -> None:
    outcome, _, _ = compared(0.05, "half_width: 2%, first: 4, mode: apart, max_launches: 9")
    assert outcome.state.mode == "apart" and outcome.state.blocks == 8


def test_resumed_it_is_not_asked_again(compared: Compared) -> None:
    outcome, fake, store = compared(0.04, "half_width: 1%, first: 6")
    again = run_comparison(outcome.run, store)
    assert again.state == read_state(outcome.run.path) == outcome.state
    assert fake.launches == outcome.state.blocks
