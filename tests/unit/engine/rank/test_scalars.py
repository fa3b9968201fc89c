"""Scalars for TensorBoard: those of one rank's rows and of evaluations, a writer for each run, none unasked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
import torch
from toys import Toy

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.rank import evaluation as module
from dynbench.engine.rank.evaluation import EVAL_FILE, SCALARS_FOLDER, scalars_of
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.turns import play
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

CPU = torch.device("cpu")


class SummaryWriter:
    """Remembers what it was told, by folder."""

    made: dict[Path, SummaryWriter]

    def __init__(self, log_dir: str, flush_secs: int) -> None:
        self.scalars: dict[tuple[str, int], float] = {}
        self.closed = False
        assert self.made.setdefault(Path(log_dir), self) is self, "one writer for a folder"

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert not self.closed
        self.scalars[tag, step] = value

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> dict[Path, SummaryWriter]:
    """The writers by folder; the package is there."""
    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    SummaryWriter.made = {}
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    return SummaryWriter.made


class Evaluated(Toy):
    """The toy with samples to evaluate on."""

    def __init__(self) -> None:
        super().__init__()
        self.eval = self.train

    def eval_sums(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        return {"loss_sum": self.loss(model, batch).item()}


def configured(*settings: str) -> Config:
    asked = [
        *("train.global_batch=6", "train.warmup_steps=1", "train.steps=3", "train.max_grad_norm=1", *settings),
        *("launch.launcher=virtual", "launch.world_size=2", "launch.device=cpu"),
    ]
    return resolve(load_config(None, asked), Machine(cores=2, gpus=0, bf16=False), RunStore(Path("nowhere"))).config


def trained(folder: Path, config: Config) -> Run:
    run = Run(folder)
    run.ranks_dir.mkdir(parents=True)
    with virtual_loop(run, config, RankContext(0, 0, 1, CPU), Evaluated(), memory_meter(CPU)) as loop:
        play(config.train, [loop], None, StopFlag(), None)
    return run


def test_the_first_ranks_rows_and_the_evaluations_are_drawn(tmp_path: Path, made: dict[Path, SummaryWriter]) -> None:
    run = trained(tmp_path / "a", configured("train.tensorboard=true"))
    assert list(made) == [run.path / SCALARS_FOLDER]
    writer, rows = made[run.path / SCALARS_FOLDER], pl.read_csv(run.rank_file(0))
    assert writer.closed
    for name in ("loss", "step_time_ms", "sync_ms", "real_tokens", "grad_norm"):
        drawn = [writer.scalars[f"rank_0/{name}", step] for step in range(4)]
        assert drawn == pytest.approx(rows[name].to_list())
    tags = {tag for tag, _ in writer.scalars}
    assert not tags & {f"rank_0/{name}" for name in ("step", "rank", "warmup", "work_hash", "policy", "turn")}
    assert {tag for tag in tags if not tag.startswith("rank_0/")} == {"evaluation/loss", "evaluation/samples"}
    assert writer.scalars["evaluation/loss", 3] == pl.read_csv(run.path / EVAL_FILE)["loss"][0]


def test_arms_that_take_turns_have_a_writer_each(tmp_path: Path, made: dict[Path, SummaryWriter]) -> None:
    config = configured("train.tensorboard=true")
    runs = [Run(tmp_path / name) for name in "ab"]
    with scalars_of(config, runs[0], writes=True) as first, scalars_of(config, runs[1], writes=True) as second:
        first.evaluation(0, {"loss": 1.0, "accuracy": None})
        second.evaluation(0, {"loss": 2.0})
    assert [made[run.path / SCALARS_FOLDER].scalars for run in runs] == [
        {("evaluation/loss", 0): 1.0},
        {("evaluation/loss", 0): 2.0},
    ]


def test_nothing_is_written_unasked_or_by_other_ranks(tmp_path: Path, made: dict[Path, SummaryWriter]) -> None:
    trained(tmp_path / "a", configured())
    with scalars_of(configured("train.tensorboard=true"), Run(tmp_path), writes=False) as others:
        others.evaluation(0, {"loss": 1.0})
    assert not made
