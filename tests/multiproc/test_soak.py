"""The soak of `make soak` on some hundred steps: what leaks is found and named, and what does not is flat."""

from __future__ import annotations

from pathlib import Path

import pytest
from multiproc.launches import own_strategy
from scale.soak import ENDLESS, Look, begin, end, leaks

pytestmark = pytest.mark.multiproc

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
    own_strategy(tmp_path, monkeypatch, LEAKING)
    soak = begin(tmp_path / "results", (*ENDLESS, "sync.name=own", "train.eval_every=50"))
    last = soak.steps() + STEPS
    soak.watch(0.05, lambda: soak.steps() < last)
    found = soak.found()
    assert [name for name, grown in found.items() if grown] == ["rank 1"], found
    memory, files = found["rank 1"]
    assert "memory grew by" in memory and "more open files" in files
    assert end(soak) == []


def flat(number: int = 90) -> list[Look]:
    return [Look(300_000_000 + 1_000_000 * (index % 5), 40 + index % 2) for index in range(number)]


@pytest.mark.parametrize(
    ("grown", "said"),
    [
        (lambda index: Look(0, 0), []),
        (lambda index: Look(30_000_000 if index < 25 else 0, 0), []),  # before it is warm
        (lambda index: Look(200_000 * index, 0), ["memory grew by 11.8 MB of 314 MB (limit 3%)"]),
        (lambda index: Look(0, index // 10), ["more open files, of 4"]),
        (lambda index: Look(200_000_000 if index % 10 == 0 else 0, 0), []),  # for a moment
    ],
)
def test_what_grows_is_told_from_what_comes_and_goes(grown, said) -> None:
    looks = [Look(one.memory + grown(n).memory, one.files + grown(n).files) for n, one in enumerate(flat())]
    found = leaks(looks)
    assert len(found) == len(said) and all(text in line for text, line in zip(said, found, strict=True)), found
