"""What a trial process does before its memory is limited."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from dynbench.config.load import load_config
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
