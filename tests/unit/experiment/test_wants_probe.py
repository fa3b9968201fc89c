"""When training is preceded by a probe of its own."""

from __future__ import annotations

import pytest

from dynbench.config.layers import load_config
from dynbench.engine.launching.resolve import Machine
from dynbench.experiment import training

TWO_NODES = ("launch.nnodes=2", "launch.rdzv_endpoint=a:1")


@pytest.mark.parametrize(
    ("overrides", "gpus", "wanted"),
    [
        (("schedule.mode=dynamic",), 2, True),
        (("schedule.mode=dynamic",), 0, False),
        (("schedule.mode=static",), 2, False),
        (("schedule.mode=dynamic", "schedule.capacity=8"), 2, False),
        (("schedule.mode=dynamic", "launch.device=cpu"), 2, False),
        (("schedule.mode=dynamic", *TWO_NODES), 2, False),
        (("schedule.mode=static", "probe.run=auto"), 0, True),
        (("schedule.mode=dynamic", "probe.run=p1"), 2, False),
    ],
)
def test_wanted(monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], gpus: int, wanted: bool) -> None:
    monkeypatch.setattr(training, "this_machine", lambda: Machine(cores=8, gpus=gpus, bf16=True))
    assert training.wants_probe(load_config(None, overrides)) is wanted
