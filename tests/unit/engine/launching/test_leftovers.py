"""Ranks that are left are found by their command line, wherever their run lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dynbench.engine.launching.leftovers import rank_pids
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
