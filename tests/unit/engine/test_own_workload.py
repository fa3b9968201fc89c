"""A workload of the user's own in a step: every policy's gradient, a probe's trial, its evaluation, its errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import batch_of
from own import NAME
from toys import InDouble

from dynbench.analysis.merge import _read_evaluations
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.failure import record_failure
from dynbench.engine.launching.probe_use import measured_settings
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.planning import build_problem
from dynbench.engine.rank import rank_facts
from dynbench.engine.rank.evaluation import EVAL_FILE, Evaluator
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.plugins import POLICIES, WORKLOADS
from dynbench.probe.trial import TrialStep
from dynbench.runs.row_writer import LENGTHS_FILE
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import Planner
from dynbench.sync.base import Local
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
RANKS = 2
NAMES = [name for name, entry in POLICIES.items() if entry.in_train]
SPLITTING = ("static", "partition", "group_by_length", "hf_batch_rebalance")
TINY = (f"workload.name={NAME}", "workload.max_length=24", "train.global_batch=16", "launch.nproc=2")


def resolved(*overrides: str) -> Config:
    machine = Machine(cores=2, gpus=0, bf16=False)
    return resolve(load_config(None, [*TINY, *overrides]), machine, RunStore(Path("nowhere"))).config


def in_double(config: Config) -> Replica:
    replica = Replica(config, build_workload(config), CPU, StepTimer(CPU), InDouble())
    load = replica.load

    def doubled(share):
        batches = load(share)
        for batch in batches:
            batch.inputs.update({key: batch.inputs[key].double() for key in ("mask", "target")})
        return batches

    replica.load = doubled  # type: ignore[method-assign]  # a user's tensors are fp32
    return replica


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "parts"), [*((policy, 1) for policy in NAMES), *((each, 2) for each in SPLITTING)])
def test_every_policy_gives_the_gradient_of_the_global_batch(policy: str, parts: int) -> None:
    if reason := POLICIES[policy].missing:
        pytest.skip(f"{policy} {reason}")
    window = ["schedule.window=2"] if policy == "window" else []
    config = resolved(f"schedule.policy={policy}", f"schedule.micro_batches={parts}", *window)
    workload = build_workload(config)
    plan = Planner(policy, build_problem(config, workload.train.lengths, RANKS, 1)).plan(0)

    planned, whole = in_double(config), in_double(config)
    batch = sum(plan.local_batches)
    for share in plan.shares:
        planned.compute(planned.load(share), lambda: 1 / batch)
    everything = np.concatenate([ids for share in plan.shares for ids in share])
    whole.compute(whole.load((everything,)), lambda: 1 / batch)

    pairs = list(zip(planned.model.parameters(), whole.model.parameters(), strict=True))
    assert all(torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12) for ours, theirs in pairs)


def test_a_probe_tries_it_at_any_shape() -> None:
    config = resolved()
    trial = TrialStep(config, build_workload(config), CPU)
    assert trial.fits(5, 40)[0]
    assert len(trial.timed(2, 8, 2)) == 2


def test_it_is_evaluated_without_an_accuracy(tmp_path: Path) -> None:
    config = resolved("train.eval_samples=100")
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


def test_a_probe_of_another_version_of_the_file_is_not_that_of_the_run() -> None:
    settings = resolved().workload
    changed = settings.model_copy(update={"code_digest": "another"})
    differing = {key for key, value in measured_settings(settings).items() if value != measured_settings(changed)[key]}
    assert differing == {"code_digest"}
    assert "import_from" not in measured_settings(settings)


@pytest.mark.parametrize("kept", [False, True])
def test_the_lengths_of_a_registered_workload_are_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    config = load_config(None, ["workload.dataset=lognormal", "launch.launcher=torchrun", "workload.subset=64"])
    workload, run = build_workload(config), Run(tmp_path / "run")
    run.ranks_dir.mkdir(parents=True)
    monkeypatch.setattr(rank_facts, "gather_objects", lambda value: [value])
    monkeypatch.setattr(rank_facts, "compare_clocks", dict)
    if kept:
        monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    context = SimpleNamespace(is_first=True, rank=0, world_size=2, device=CPU)
    rank_facts.write_facts(run, config, context, workload, SimpleNamespace(source="rss"))  # type: ignore[arg-type]
    assert (run.ranks_dir / LENGTHS_FILE).exists() is kept
    assert (run.ranks_dir / "facts.json").exists()


def test_an_error_in_a_step_names_the_line_of_the_users_own_file(tmp_path: Path) -> None:
    from dynbench.config.digest import dump_config
    from dynbench.runs.atomic import write_text

    config = resolved()
    workload, run = build_workload(config), Run(tmp_path / "run")
    run.ranks_dir.mkdir(parents=True)
    write_text(run.config_file, dump_config(config))
    batch = batch_of(workload, np.arange(3))
    with pytest.raises(RuntimeError) as caught:
        workload.loss(workload.build_model(0), {**batch, "tokens": batch["tokens"].float()})

    failure = record_failure(run, 0, caught.value)

    source = (Path(config.workload.import_from) / "length_regression.py").read_text(encoding="utf-8").splitlines()
    where, _, message = failure.message.partition(": ")
    assert where.partition(":")[0] == "length_regression.py"
    assert "self.embed(tokens)" in source[int(where.partition(":")[2]) - 1]
    assert message.startswith("RuntimeError: ")
    assert failure.kind == "worker"
