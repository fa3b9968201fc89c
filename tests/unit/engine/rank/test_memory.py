"""The peak follows what the process holds, and what a rank holds of a model is counted by kind."""

from __future__ import annotations

import mmap
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dynbench.config.layers import load_config
from dynbench.engine.rank import memory
from dynbench.engine.rank.memory import ResidentMemory, Saved, check_room, memory_meter
from dynbench.errors import ReplicasTooLarge

MB = 1_000_000


def test_peak_is_seen_and_forgotten():
    try:
        meter = ResidentMemory()
    except OSError as error:
        pytest.skip(f"the kernel cannot reset the peak: {error}")
    meter.reset()
    before = meter.now().peak_mb
    with mmap.mmap(-1, 64 * MB) as block:
        block.write(b"x" * 64 * MB)
    assert meter.now().peak_mb > before + 60
    meter.reset()
    assert meter.now().peak_mb < before + 60
    assert meter.now().reserved_mb <= meter.now().peak_mb + 1


def test_where_the_peak_cannot_be_reset_it_never_falls_and_that_is_said(monkeypatch):
    def refuse() -> None:
        raise OSError("not here")

    monkeypatch.setattr(memory, "ResidentMemory", refuse)
    meter = memory_meter(torch.device("cpu"))
    before = meter.now().peak_mb
    meter.reset()
    assert meter.now().peak_mb >= before > 10 and "cannot reset" in meter.source


def test_what_is_saved_is_that_of_the_largest_micro_batch():
    model, saved = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)), Saved()
    with saved_tensors_hooks(saved.save, lambda kept: kept.tensor):
        for rows in (10, 100, 60, 99, 30):
            model(torch.randn(rows, 8)).sum().backward()
            assert saved.now == 0, "a backward pass lets go of all"
    inputs_and_states = 4 * (8 + 16 + 16)
    assert saved.most == 100 * inputs_and_states


def test_storage_that_several_share_counts_until_the_last_lets_go():
    states, saved = torch.zeros(10, 4), Saved()
    first, second = saved.save(states), saved.save(states[2:].T)
    assert saved.now == saved.most == 160
    del first
    assert saved.now == 160
    del second
    assert (saved.now, saved.most) == (0, 160)
    assert saved.save(nn.Parameter(states)).tensor.shape == (10, 4) and saved.now == 0


CPU = torch.device("cpu")
MODEL = nn.Linear(1000, 1000, bias=False)


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "gather_objects", lambda value: [value, 2 * value])


def room_for(monkeypatch: pytest.MonkeyPatch, available_mb: float, *arms: tuple[str, ...]) -> bool:
    """Whether the models of arms fit on every rank; the second has twice as much memory as the first."""
    monkeypatch.setattr(memory, "memory_mb", lambda: {"available": available_mb})
    try:
        check_room([load_config(None, ["launch.nproc=2", *arm]) for arm in arms], MODEL, CPU)
    except ReplicasTooLarge:
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        ("sync.name=diloco", 6),
        ("sync.name=zero1", 3.5),
        ("compress.name=topk", 5),
        ("compress.name=topk compress.error_feedback=false", 4),
        ("compress.name=fp8", 4),
        ("compress.name=fp8 compress.error_feedback=true", 5),
    ],
)
@pytest.mark.parametrize(("probed", "share"), [(None, 0.5), ([(64, None)], 0.5), ([(32, None), (64, 8)], 0.1)])
def test_what_fits_is_let_through(monkeypatch, probed, share, settings, copies):
    """What every strategy holds is measured in unit/probe/test_rehearsal."""
    arm = (*settings.split(), *(("schedule.capacity=p", "probe.run=p") if probed else ()))
    monkeypatch.setattr(memory, "load_probe", lambda *_: SimpleNamespace(tables=[[(64, None)], probed]))
    for arms in (1, 2, 3):
        needed = 2 * arms * copies * 4.0 / share
        assert room_for(monkeypatch, 1.01 * needed, *[arm] * arms)
        assert room_for(monkeypatch, 0.99 * needed, *[arm] * arms) == (arms == 1)


def test_every_arm_counts_with_what_it_holds_and_with_its_own_capacities(monkeypatch):
    plain, outer = ("sync.name=ddp",), ("sync.name=diloco",)
    monkeypatch.setattr(memory, "load_probe", lambda *_: SimpleNamespace(tables=[[(64, 8)]]))
    assert not room_for(monkeypatch, 2 * 79.0, plain, outer) and room_for(monkeypatch, 2 * 81.0, plain, outer)
    capped = (*outer, "schedule.capacity=p", "probe.run=p")
    assert not room_for(monkeypatch, 2 * 399.0, plain, capped) and room_for(monkeypatch, 2 * 401.0, plain, capped)
