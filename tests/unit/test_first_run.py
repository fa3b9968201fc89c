"""The first run on GPUs, with made-up parts: what fails or hangs stops nothing, and the page says all of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu import first
from gpu.first import Part
from multiproc.launches import wait_until

HANGS = """sh -c 'trap "" TERM; setsid sleep 600 & echo $!; sleep 600'"""
PASSES = Part("passes", "sh -c 'echo 12 passed in 3 s'", 60, cpu="")
MADE_UP = (
    Part("fails", "sh -c 'seq -f row%g 60; exit 3'", 60, cpu=""),
    Part("hangs", HANGS, 1, cpu=""),
    PASSES,
    Part("two", "sh -c true", 60, gpus=2),
    Part("absent", "no_such_program -g 2", 60, cpu=""),
)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(first, "PARTS", MADE_UP)
    monkeypatch.setattr(first, "GRACE_S", 0.3)
    monkeypatch.setattr(first.signal, "signal", lambda *_: None)
    return monkeypatch


def with_gpus(made_up: pytest.MonkeyPatch, gpus: int) -> None:
    made_up.setattr(first, "this_machine", lambda: SimpleNamespace(gpus=gpus, gpu_fault=None))


@pytest.mark.slow
def test_what_fails_or_hangs_stops_nothing(tmp_path, made_up):
    with_gpus(made_up, 1)
    assert first.main([str(tmp_path)]) == 1
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "1 GPU: 1 passed, 2 failed, 2 left out." in page
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in page.splitlines() if line.startswith("| ")]
    results = ["FAILED", "FAILED", "passed", "left out", "left out"]
    assert rows[1:] == [[part.name, result] for part, result in zip(MADE_UP, results, strict=True)]
    assert "## fails: exit code 3\n\n    row21\n" in page and "    row60\n" in page and "row20\n" not in page
    assert "## hangs: not done after 1 s" in page
    assert "- two: wants 2 GPUs, here is 1\n- absent: no_such_program is not installed\n" in page
    assert page.endswith("## passes\n\n    12 passed in 3 s\n")
    assert ended(tmp_path), "what it started, in a session of its own, goes on"


def test_one_that_is_stopped_leaves_its_page_and_no_process(tmp_path, made_up):
    wait = subprocess.Popen.wait

    def stopped(self: subprocess.Popen[bytes], limit: float) -> int:
        if limit == 600:
            wait_until(lambda: log(tmp_path) != "", "the child of what hangs")
            raise KeyboardInterrupt
        return wait(self, limit)

    made_up.setattr(first, "PARTS", (PASSES, Part("hangs", HANGS, 600, cpu="")))
    made_up.setattr(first.subprocess.Popen, "wait", stopped)
    with pytest.raises(KeyboardInterrupt):
        first.main([str(tmp_path), "--device", "cpu"])
    assert "1 passed, 0 failed, 0 left out, 1 not ended." in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert ended(tmp_path)


def log(folder: Path) -> str:
    return (folder / "logs" / "hangs.log").read_text(encoding="utf-8").strip()


def ended(folder: Path) -> bool:
    """Whether the child of what hangs is gone, or dead and not yet asked for."""
    try:
        return not Path("/proc", log(folder), "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_exit_codes(tmp_path, made_up):
    with_gpus(made_up, 0)
    assert first.main([str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())
    assert first.main([str(tmp_path), "--device", "cpu", "--only", "passes", "two"]) == 0
