"""What a probe refuses before it is a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.layers import load_config
from dynbench.errors import UsageError
from dynbench.probe import prober
from dynbench.runs.store import RunStore


def test_several_nodes_are_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober.Prober, "probe", lambda *_: pytest.fail("measured"))
    nodes = ["launch.device=cpu", "launch.nproc=2", "launch.nnodes=2", "launch.rdzv_endpoint=localhost:1"]
    with pytest.raises(UsageError, match=r"launch\.nnodes: 2"):
        prober.run_probe(load_config(None, nodes), RunStore(tmp_path), report=lambda text: None)
    assert not RunStore(tmp_path).list()
