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
from dynbench.engine.rank.memory import LifetimePeak, ResidentMemory, Saved, check_room, memory_meter
from dynbench.errors import ReplicasTooLarge

MB = 1_000_000


def resident() -> ResidentMemory:
    try:
        return ResidentMemory()
    except OSError as error:
        pytest.skip(f"the kernel cannot reset the peak: {error}")


def hold_for_a_moment(size: int) -> None:
    with mmap.mmap(-1, size) as block:
        block.write(b"x" * size)


def test_peak_is_seen_and_forgotten() -> None:
    meter = resident()
    meter.reset()
    before = meter.peak_mb()
    hold_for_a_moment(64 * MB)
    assert meter.peak_mb() > before + 60
    meter.reset()
    assert meter.peak_mb() < before + 60
    assert meter.reserved_mb() <= meter.peak_mb() + 1


def test_lifetime_peak_never_falls() -> None:
    meter = LifetimePeak()
    before = meter.peak_mb()
    meter.reset()
    assert meter.peak_mb() >= before > 10


def test_fallback_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("not here")

    monkeypatch.setattr(memory, "ResidentMemory", refuse)
    assert "cannot reset" in memory_meter(torch.device("cpu")).source


def most(*rows: int) -> int:
    """Bytes saved in a step with micro-batches of so many rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    saved = Saved()
    with saved_tensors_hooks(saved.save, lambda kept: kept.tensor):
        for number in rows:
            model(torch.randn(number, 8)).sum().backward()
    assert saved.now == 0, "a backward pass lets go of all"
    return saved.most


def test_what_is_saved_is_that_of_the_largest_micro_batch() -> None:
    inputs_and_states = 4 * (8 + 16 + 16)
    assert most(100) == 100 * inputs_and_states
    assert most(10, 100, 60, 99, 30) == most(100)


def test_storage_that_several_share_counts_until_the_last_lets_go() -> None:
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


@pytest.mark.parametrize(
    ("sync", "compress", "copies"),
    [
        ("ddp", "none", 4),
        ("local_sgd", "none", 5),
        ("diloco", "none", 6),
        ("zero1", "none", 3.5),
        ("fsdp", "none", 2),
        ("ps", "none", 5),
        ("ddp", "topk", 5),
        ("ddp", "topk compress.error_feedback=false", 4),
        ("ddp", "fp8", 4),
        ("ddp", "fp8 compress.error_feedback=true", 5),
    ],
)
@pytest.mark.parametrize("arms", [1, 2, 3])
@pytest.mark.parametrize("probed", [None, [(64, None)], [(32, None), (64, 8)]])
def test_what_fits_is_let_through(
    monkeypatch: pytest.MonkeyPatch,
    arms: int,
    probed: list[tuple[int, int | None]] | None,
    sync: str,
    compress: str,
    copies: float,
) -> None:
    replica_mb = copies * 4.0
    config = load_config(
        None,
        [
            "launch.nproc=2",
            f"sync.name={sync}",
            *f"compress.name={compress}".split(),
            *(["schedule.capacity=p", "probe.run=p"] if probed else []),
        ],
    )
    monkeypatch.setattr(memory, "load_probe", lambda *_: SimpleNamespace(tables=[[(64, None)], probed]))
    share = 0.1 if probed is not None and probed[-1][1] is not None else 0.5
    for room, fits in ((1.01, True), (0.99, False)):
        available = room * 2 * arms * replica_mb / share
        monkeypatch.setattr(memory, "memory_mb", lambda: {"available": available})  # noqa: B023
        if fits or arms == 1:
            check_room([config] * arms, MODEL, CPU)
        else:
            with pytest.raises(ReplicasTooLarge, match=f"the models of {arms} arms take {arms * replica_mb:.0f} MB"):
                check_room([config] * arms, MODEL, CPU)


def test_every_arm_counts_with_what_it_holds_and_with_its_own_capacities(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, outer = (load_config(None, ["launch.nproc=2", f"sync.name={name}"]) for name in ("ddp", "diloco"))
    monkeypatch.setattr(memory, "memory_mb", lambda: {"available": 2 * 79.0})
    with pytest.raises(ReplicasTooLarge, match=r"take 40 MB per rank at rest, more than 50%"):
        check_room([plain, outer], MODEL, CPU)
    monkeypatch.setattr(memory, "memory_mb", lambda: {"available": 2 * 399.0})
    check_room([plain, outer], MODEL, CPU)
    capped = load_config(None, ["launch.nproc=2", "sync.name=diloco", "schedule.capacity=p", "probe.run=p"])
    monkeypatch.setattr(memory, "load_probe", lambda *_: SimpleNamespace(tables=[[(64, 8)]]))
    with pytest.raises(ReplicasTooLarge, match=r"take 40 MB per rank at rest, more than 10%"):
        check_room([plain, capped], MODEL, CPU)
