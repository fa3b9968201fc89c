"""Ranks that are left are found by their command line, wherever their run lies, and what they started by its mark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from dynbench.engine.launching.torchrun import marked_environment, rank_pids, stop_leftovers
from dynbench.runs.run import Run


def test_ranks_of_a_folder_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    run = Run(tmp_path / os.fsdecode(b"caf\xe9 and more") / "run")
    words = [sys.executable, "-c", "print(flush=True); input()", "a.module", run.path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    rank = subprocess.Popen(words, **pipes, stderr=subprocess.DEVNULL)
    try:
        assert rank.stdout is not None and rank.stdout.readline(), "it runs, and has its command line"
        assert rank_pids("a.module", run) == [rank.pid]
        assert rank_pids("a.module", Run(tmp_path / "run")) == []
    finally:
        rank.communicate(b"")


def test_what_a_rank_had_started_ends_and_nothing_of_the_launcher_or_of_another_run(tmp_path: Path) -> None:
    run, other = Run(tmp_path / os.fsdecode(b"caf\xe9") / "run"), Run(tmp_path / "run")
    words = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    marks = (
        marked_environment(run) | {"RANK": "1"},
        marked_environment(run),
        marked_environment(other) | {"RANK": "1"},
    )
    own = {name: value for name, value in os.environ.items() if name != "RANK"}
    started = [subprocess.Popen(words, **pipes, env={**own, **mark}) for mark in marks]
    try:
        for each in started:
            assert each.stdout is not None and each.stdout.readline(), "it runs, and has its environment"
        stop_leftovers("a.module", run)
        assert started[0].wait(30) == -signal.SIGTERM
        assert [each.poll() for each in started[1:]] == [None, None]
    finally:
        for each in started:
            each.kill()
            each.communicate()
