"""A workload of the user's own in a step: every policy's gradient, a probe's trial, its evaluation, its errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from own import NAME
from probes import resolved

from dynbench.analysis.merge import _read_evaluations
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.probe_use import measured_settings
from dynbench.engine.rank import rank_facts
from dynbench.engine.rank.evaluation import EVAL_FILE, Evaluator
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.plugins import WORKLOADS
from dynbench.probe.trial import TrialStep
from dynbench.runs.records import LENGTHS_FILE
from dynbench.runs.run import Run
from dynbench.sync.base import Local
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
TINY = (f"workload.name={NAME}", "workload.max_length=24", "train.global_batch=16", "launch.nproc=2")


def configured(*overrides: str) -> Config:
    return resolved(*TINY, *overrides).config


def test_a_probe_tries_it_at_any_shape():
    config = configured()
    trial = TrialStep(config, build_workload(config), CPU)
    assert trial.fits(5, 40)[0]
    assert len(trial.timed(2, 8, 2)) == 2


def test_it_is_evaluated_without_an_accuracy(tmp_path):
    config = configured("train.eval_samples=100")
    workload = build_workload(config)
    model, file = workload.build_model(0), tmp_path / EVAL_FILE
    for rank in (0, 1):
        evaluator = Evaluator(config, workload, CPU, shard=(rank, 2), sum_over_ranks=list, file=file)
        strategy = Local()
        strategy.wrap(model, CPU)
        evaluator.evaluate(7 + rank, strategy, Precision("fp32", CPU))
    with file.open("a", encoding="utf-8") as torn:
        torn.write("9,0.1,")

    rows = _read_evaluations([Run(tmp_path)]).to_dicts()

    assert [(row["step"], row["accuracy"], row["samples"]) for row in rows] == [(7, None, 50), (8, None, 50)]
    assert all(row["loss"] > 0 for row in rows)


def test_a_probe_of_another_version_of_the_file_is_not_that_of_the_run():
    settings = configured().workload
    changed = settings.model_copy(update={"code_digest": "another"})
    differing = {key for key, value in measured_settings(settings).items() if value != measured_settings(changed)[key]}
    assert differing == {"code_digest"}
    assert "import_from" not in measured_settings(settings)


@pytest.mark.parametrize("kept", [False, True])
def test_the_lengths_of_a_registered_workload_are_kept_too(run, monkeypatch, kept):
    config = load_config(None, ["workload.dataset=lognormal", "launch.launcher=torchrun", "workload.subset=64"])
    workload = build_workload(config)
    monkeypatch.setattr(rank_facts, "gather_objects", lambda value: [value])
    monkeypatch.setattr(rank_facts, "compare_clocks", dict)
    if kept:
        monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    context = SimpleNamespace(is_first=True, rank=0, world_size=2, device=CPU)
    rank_facts.write_facts(run, config, context, workload, SimpleNamespace(source="rss"))  # type: ignore[arg-type]
    assert (run.ranks_dir / LENGTHS_FILE).exists() is kept
    assert (run.ranks_dir / "facts.json").exists()
