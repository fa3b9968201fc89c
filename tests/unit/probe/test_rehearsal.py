"""A trial is a step under the strategy of the run, and holds what a rank of so many holds, without any other rank."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from probes import resolved
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from dynbench.config.ranks import parameter_copies, ranks_under
from dynbench.config.schema import Config
from dynbench.engine.rank.memory import HeldMemory
from dynbench.plugins import STRATEGIES
from dynbench.probe.trial import TrialStep, rehearsed
from dynbench.runs.run import Run
from dynbench.workloads.base import Workload
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
WORKERS = 4
SETTINGS = ("workload.name=causal_lm", "workload.size=tiny", "workload.subset=64", "workload.dropout=0.0")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """One of four processes, of which the others are not there."""
    import torch.testing._internal.distributed.fake_pg as fake

    gc.collect()
    gc.freeze()  # so that `held_bytes` looks through what came since
    dist.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=WORKERS)
    found = dist.group.WORLD
    assert found is not None
    yield found
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def workload() -> Workload:
    return build_workload(config_of("ddp"))


def config_of(name: str, form: str = "none") -> Config:
    compressor, *options = form.split()
    asked = (f"compress.name={compressor}", *(f"compress.{option}" for option in options))
    return resolved(*SETTINGS, "train.global_batch=8", f"sync.name={name}", *asked).config


def trial_of(name: str, workload: Workload, group: dist.ProcessGroup, form: str = "none") -> TrialStep:
    config = config_of(name, form)
    return TrialStep(config, workload, CPU, None, partial(rehearsed, config, 1, WORKERS, group))


def held_bytes() -> int:
    """Bytes of all tensors of this process that anything can be asked for, each storage once."""
    gc.collect()
    tensors = (each for each in gc.get_objects() if isinstance(each, Tensor) and not isinstance(each, FakeTensor))
    found = [each for each in tensors if each.device.type == "cpu"]  # what was compiled before leaves fake ones
    found += [each.grad for each in found if each.is_leaf and each.grad is not None]
    dense = [each for each in found if each.layout is torch.strided]  # other tests may have left others
    storages = [(each.to_local() if isinstance(each, DTensor) else each).untyped_storage() for each in dense]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_trial_holds_what_the_registry_says_of_so_many_ranks_and_goes_on_when_memory_ran_out(
    name, workload, group, tmp_path, monkeypatch
):
    before = held_bytes()
    trial, run, entry = trial_of(name, workload, group), Run(tmp_path), STRATEGIES[name]
    replica = trial._replica
    assert entry.servers or entry.load().equal_gradients or replica.precision.agree is None, (
        "ranks that agree on overflow have a collective in the middle of a trial"
    )
    run.ranks_dir.mkdir()
    with monkeypatch.context() as counting:
        held = HeldMemory(run, 1, replica, trial.memory, wanted=True)
        counting.setattr(replica, "update", partial(replica.update, held.stepped))
        counting.setattr(replica, "compute", held.computing()(replica.compute))
        trial.step(2, 16)
        del held
    seen: list[int] = []

    def watched() -> None:
        """After the step, with the gradients still there."""
        replica.strategy.step(replica.optimizer, replica.precision)
        replica.strategy.drain()
        seen.append(held_bytes() - before)
        replica.optimizer.zero_grad()

    with monkeypatch.context() as watching:
        watching.setattr(replica, "update", watched)
        trial.step(2, 16)
    copies = parameter_copies(config_of(name), ranks_under(name, WORKERS + entry.servers))
    assert seen[0] / (4 * trial.gradient_numel) == pytest.approx(copies, rel=0.12)

    found, model_mb = json.loads(run.held_file(1).read_text()), 4e-6 * trial.gradient_numel
    kinds = ("parameters_mb", "gradients_mb", "optimizer_mb", "strategy_mb")
    assert found["whole_mb"] == pytest.approx(model_mb)
    assert sum(found["after_step"][kind] for kind in kinds) == pytest.approx(copies * model_mb, rel=0.12)
    assert found["initialised"]["optimizer_mb"] == found["before_step"]["optimizer_mb"] == 0, "made in the first step"
    divided = WORKERS if entry.moments == "divided" else 1
    if name != "zero1_torch":  # deals out whole parameters
        state = 0 if entry.moments == "served" else 2 * model_mb / divided
        assert found["after_step"]["optimizer_mb"] == pytest.approx(state, rel=0.12)
    assert found["activations_mb"] > 0
    goes_on_when_memory_ran_out(trial)


def goes_on_when_memory_ran_out(trial: TrialStep) -> None:
    """In the middle of a backward pass, with some gradients there and others not."""
    left = [MemoryError("out of memory, on purpose")]

    def runs_out(_: Tensor) -> None:
        if left:
            raise left.pop()

    model = trial._replica.strategy.model
    block = next(module for module in model.modules() if type(module).__name__.endswith("GPT2Block"))
    hook = block.register_forward_hook(
        lambda _, __, output: (output[0] if isinstance(output, tuple) else output).register_hook(runs_out) and None
    )
    assert trial.fits(2, 16) == (False, None)
    hook.remove()
    assert not left
    assert [trial.fits(2, 16)[0] for _ in range(2)] == [True, True]


KEEPS = {
    "topk": (1.0, 1.2),
    "topk start_step=9": (1.0, 1.2),
    "topk error_feedback=false": (0.0, 0.2),
    "powersgd rank=4": (1.0, 1.2),
    "gradiveq": (1.0, 1.1),
    "fp8 error_feedback=true": (1.25, 2.3),
    "fp16_torch": (0.0, 0.1),
}
"""By form, copies of the parameters that its residuals and last results take, and those with what it has sent."""
TRIED = [("bucketed", "topk start_step=9"), ("fsdp", "fp8 error_feedback=true"), ("diloco", "gradiveq")]
"""In `make test`."""


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=() if (name, form) in TRIED else pytest.mark.matrix)
        for name in ("bucketed", "ddp", "fsdp", "diloco")
        for form in KEEPS
    ],
)
def test_a_trial_holds_what_the_compressor_keeps(name, form, workload, group):
    def held(compressor: str) -> float:
        before = held_bytes()
        trial = trial_of(name, workload, group, compressor)
        for _ in range(2):
            trial.step(2, 16)
        return (held_bytes() - before) / (4 * trial.gradient_numel)

    least, most = KEEPS[form]
    if name == "fsdp" and form.startswith("fp8"):
        least = 1.0  # no rank gives a mean to the others
    assert 0.95 * least - 0.02 <= held(form) - held("none") <= most
