from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")


def test_a_rank_whose_launcher_died_while_it_started_ends_at_once() -> None:
    code = "import sys; from dynbench.engine.process import die_with_parent; die_with_parent(int(sys.argv[1]))"

    def exit_code(launcher: int) -> int:
        return subprocess.run([sys.executable, "-c", code, str(launcher)], check=False).returncode

    assert exit_code(os.getpid()) == 0
    assert exit_code(os.getpid() + 1) == 143
