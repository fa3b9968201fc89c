"""Launches that follow a first stage: as many as the widest interval needs, within the limits, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_training import RECIPE, FakeTraining

from dynbench.analysis.stats import student_t_quantile
from dynbench.config.recipes import load_recipe
from dynbench.config.schema import Config
from dynbench.experiment import launches
from dynbench.experiment.compare import Outcome, run_comparison, start_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.runs.store import RunStore

LAUNCHES = "launches: {count: 4, mode: apart}"


class Launched(FakeTraining):
    """Launches whose log ratios spread as they are told to.

    Args:
        spread: of the log ratios.
    """

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.logs = (math.log(1.5) + spread * np.random.default_rng(0).standard_normal(200)).tolist()

    @property
    def launches(self) -> int:
        """Blocks begun so far; every run of one has its seed."""
        return len({seed for _, _, seed in self.calls})

    def step_ms(self, config: Config) -> float:
        return 100.0 * (math.exp(self.logs[config.train.seed]) if config.schedule.mode == "static" else 1.0)


Compared = Callable[[float, str], tuple[Outcome, Launched, RunStore]]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreported: None) -> Compared:
    def run(spread: float, asked: str) -> tuple[Outcome, Launched, RunStore]:
        fake = Launched(spread)
        monkeypatch.setattr(launches, "run_arms", fake)
        path, store = tmp_path / "demo.yaml", RunStore(tmp_path / "results")
        path.write_text(RECIPE.replace(LAUNCHES, f"launches: {{{asked}}}"), encoding="utf-8")
        return run_comparison(start_comparison(load_recipe(path), store), store), fake, store

    return run


@pytest.mark.slow
def test_the_first_stage_says_how_many_follow_and_the_interval_keeps_its_spread(compared: Compared) -> None:
    outcome, fake, store = compared(0.03, "half_width: 1%, first: 6")
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
    assert isinstance(asked, dict) and asked.pop("reason")
    assert asked == {"mode": "interleaved", "count": needed, "block": 1, "half_width": 0.01}
    again = run_comparison(outcome.run, store)
    assert again.state == read_state(outcome.run.path) == outcome.state
    assert fake.launches == outcome.state.blocks, "resumed, it is not asked again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "most", "made"),
    [("half_width: 1%, first: 4, max_launches: 9", 200, 9), ("half_width: 0.001%, first: 4", 10, 10)],
    ids=["asked for", "what can be laid out"],
)
def test_a_limit_is_kept_and_its_price_is_told(
    compared: Compared, monkeypatch: pytest.MonkeyPatch, asked: str, most: int, made: int
) -> None:
    monkeypatch.setattr(launches, "MOST_LAUNCHES", most)
    outcome, fake, _ = compared(0.05, asked)
    assert outcome.state.blocks == fake.launches == made
    (warning,) = outcome.run.record().warnings
    assert warning.startswith("launches.half_width: ") and f"allows {made}, " in warning and f"to {most} " in warning


def test_apart_the_number_stays_even(compared: Compared) -> None:
    outcome, _, _ = compared(0.05, "half_width: 2%, first: 4, mode: apart, max_launches: 9")
    assert outcome.state.mode == "apart" and outcome.state.blocks == 8
