"""Models of several architectures in a step: dealing the global batch anew leaves its gradient as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from architectures import CONFIGS, write_config
from toys import InDouble

from dynbench.config.layers import load_config
from dynbench.engine.failure import lasting_fault
from dynbench.engine.launching.probe_use import measured_settings
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.planning import build_problem
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.errors import UsageError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import Planner
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_static_and_partition_give_the_same_gradient(architecture: str, tmp_path: Path) -> None:
    settings = [f"workload.model={write_config(tmp_path / 'm', architecture)}", "workload.dropout=0"]
    settings += ["workload.max_length=40", "workload.subset=100", "train.global_batch=12", "launch.nproc=2"]
    gradients = []
    for policy in ("static", "partition"):
        asked = load_config(None, [*settings, f"schedule.policy={policy}"])
        config = resolve(asked, Machine(cores=2, gpus=0, bf16=False), RunStore(tmp_path)).config
        workload = build_workload(config)
        problem = build_problem(config, workload.train.lengths, 2, 1, positions=workload.positions)
        replica = Replica(config, workload, CPU, StepTimer(CPU), InDouble())
        plan = Planner(policy, problem).plan(0)
        for share in plan.shares:
            replica.compute(replica.load(share), lambda: 1 / 12)
        gradients.append(
            {key: part.grad.clone() for key, part in replica.model.named_parameters() if part.requires_grad}
        )
        replica.update()
        assert all(torch.isfinite(part).all() for part in replica.model.parameters())
    static, partition = gradients
    largest = max(float(gradient.abs().max()) for gradient in static.values())
    assert static.keys() == partition.keys() and largest > 0
    assert all(torch.allclose(static[key], partition[key], rtol=1e-5, atol=1e-7 * largest) for key in static)


def test_a_probe_of_another_shape_is_not_that_of_the_run(tmp_path: Path) -> None:
    settings = load_config(None, [f"workload.model={write_config(tmp_path / 'm', 'bert')}"]).workload
    small, other = settings.model_copy(update={"size": "small"}), settings.model_copy(update={"model": "elsewhere"})
    assert measured_settings(settings)["size"] == "model"
    for changed in (small, other.model_copy(update={"size": "model"})):
        assert measured_settings(changed) != measured_settings(settings)
    named = settings.model_copy(update={"size": "model"})
    assert measured_settings(named) == measured_settings(settings)


@pytest.mark.parametrize(
    "error", [UsageError("workload.model: no"), ConnectionError("x"), MemoryError(), KeyError("k")]
)
def test_a_trial_process_tells_of_mistakes_only(error: Exception, tmp_path: Path) -> None:
    assert lasting_fault(error, Run(tmp_path)) == ("workload.model: no" if isinstance(error, UsageError) else None)
