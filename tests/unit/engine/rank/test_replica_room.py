"""Several replicas in one process: refused before the second is built where they would not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dynbench.config.layers import load_config
from dynbench.engine.rank import replica
from dynbench.engine.rank.replica import check_room
from dynbench.errors import ReplicasTooLarge

CPU = torch.device("cpu")
MODEL = nn.Linear(1000, 1000, bias=False)


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "gather_objects", lambda value: [value, 2 * value])


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
    monkeypatch.setattr(replica, "load_probe", lambda *_: SimpleNamespace(tables=[[(64, None)], probed]))
    share = 0.1 if probed is not None and probed[-1][1] is not None else 0.5
    for room, fits in ((1.01, True), (0.99, False)):
        available = room * 2 * arms * replica_mb / share
        monkeypatch.setattr(replica, "memory_mb", lambda: {"available": available})  # noqa: B023
        if fits or arms == 1:
            check_room([config] * arms, MODEL, CPU)
        else:
            with pytest.raises(ReplicasTooLarge, match=f"the models of {arms} arms take {arms * replica_mb:.0f} MB"):
                check_room([config] * arms, MODEL, CPU)


def test_every_arm_counts_with_what_it_holds_and_with_its_own_capacities(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, outer = (load_config(None, ["launch.nproc=2", f"sync.name={name}"]) for name in ("ddp", "diloco"))
    monkeypatch.setattr(replica, "memory_mb", lambda: {"available": 2 * 79.0})
    with pytest.raises(ReplicasTooLarge, match=r"take 40 MB per rank at rest, more than 50%"):
        check_room([plain, outer], MODEL, CPU)
    monkeypatch.setattr(replica, "memory_mb", lambda: {"available": 2 * 399.0})
    check_room([plain, outer], MODEL, CPU)
    capped = load_config(None, ["launch.nproc=2", "sync.name=diloco", "schedule.capacity=p", "probe.run=p"])
    monkeypatch.setattr(replica, "load_probe", lambda *_: SimpleNamespace(tables=[[(64, 8)]]))
    with pytest.raises(ReplicasTooLarge, match=r"take 40 MB per rank at rest, more than 10%"):
        check_room([plain, capped], MODEL, CPU)
