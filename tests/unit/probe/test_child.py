"""What a trial process does before its memory is limited."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from dynbench.config.layers import load_config
from dynbench.plugins import STRATEGIES
from dynbench.probe import child


def test_the_code_of_the_strategy_is_read_before_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("build_workload", "silent_group", "TrialStep"):
        monkeypatch.setattr(child, name, lambda *_: SimpleNamespace(gradient_numel=1))
    monkeypatch.setattr(child.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(child.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(child.sys, "stdin", io.StringIO())
    monkeypatch.setattr(child, "import_model_code", lambda _: done.append("model"))
    monkeypatch.setattr(type(STRATEGIES["fsdp"]), "load", lambda entry: done.append(entry.name))
    monkeypatch.setattr(child, "_limit", lambda *_: done.append("limit"))
    spec = {"device": "cpu", "servers": 0, "rank": 0, "world_size": 1, "threads": 1, "memory_limit_bytes": 1}
    config = load_config(None, ["launch.launcher=torchrun", "sync.name=fsdp"])
    child._serve({**spec, "rendezvous": "", "timeout_s": 1}, config, io.StringIO())
    assert done == ["model", "fsdp", "limit"]


@pytest.mark.parametrize(("second", "peak"), [(108.0, 108.0), (None, 115.0)])
def test_a_soak_tells_how_far_above_the_limit_it_went(second: float | None, peak: float) -> None:
    """It has room beyond the limit for that; stopped there, a step wanted more than the room."""
    asked = []

    def fits(n: int, length: int, room: float) -> tuple[bool, float | None]:
        asked.append(room)
        return n < 3, 90.0 if n < 3 else second

    step = SimpleNamespace(
        fits=fits,
        limit_mb=100.0,
        device=child.torch.device("cpu"),
        memory=SimpleNamespace(reserved_mb=lambda: 50.0),
    )
    found = child._soak(step, [(2, 8), (3, 8), (1, 8)])  # type: ignore[arg-type]  # what it asks of one
    assert (found["ok"], found["n"], found["peak_mem_mb"]) == (False, 3, pytest.approx(peak))
    assert set(asked) == {1.15} and len(asked) == (2 if second is None else 3)
