"""The soak of `make soak` on some hundred steps: what leaks is found and named, and what does not is flat."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from scale.soak import ENDLESS, begin

pytestmark = pytest.mark.multiproc

ENTRY = "from dynbench.plugins import *\nregister(StrategyEntry('own', 'of a test', 'own_class:Own'))\n"
LEAKING = """\
import os
from dynbench.sync.ddp import Ddp

class Own(Ddp):
    leaked = []

    def step(self, optimizer, precision):
        if self.wire.rank == 1:
            self.leaked.append(os.urandom(400_000))
            if len(self.leaked) % 10 == 0:
                self.leaked.append(open(os.devnull))
        super().step(optimizer, precision)
"""
STEPS = 150


@pytest.mark.matrix  # with the soak itself, in `make nightly`
def test_a_leak_of_one_rank_is_found_there_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 kB of every step and a file of every tenth: 60 MB, in 150 steps."""
    for name, text in (("plugins.py", ENTRY), ("own_class.py", LEAKING)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("DYNBENCH_PLUGINS", str(tmp_path / "plugins.py"))
    soak = begin(tmp_path, (*ENDLESS, "sync.name=own", "train.eval_every=50"))
    last = soak.steps() + STEPS
    soak.watch(0.05, lambda: soak.steps() < last)
    found = soak.found()
    assert [name for name, grown in found.items() if grown] == ["rank 1"], found
    memory, files = found["rank 1"]
    assert "memory grew by" in memory and "more open files" in files
    soak.process.send_signal(signal.SIGINT)
    assert soak.command.end().code == 130
