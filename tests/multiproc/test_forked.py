"""A forked program is a process like a started one, but for what it need not import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPopen

pytestmark = [pytest.mark.multiproc, pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")]


def ended(*args: str, **more: Any) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    process = ForkedPopen([sys.executable, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def test_it_is_our_child_with_arguments_environment_and_folder_of_its_own(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getppid(), sys.argv[1:], dict(os.environ), os.getcwd(), sep='|')"
    found = ended("-c", code, "a", "b", env={"ONLY": "this"}, cwd=tmp_path)
    assert found == (0, f"{os.getpid()}|['a', 'b']|{ {'ONLY': 'this'} }|{tmp_path}\n", "")


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("raise ValueError('planted')", 1, "ValueError: planted\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_its_end_is_told_as_any_programs(code: str, exit_code: int, said: str) -> None:
    found, _, errors = ended("-c", code)
    assert found == exit_code and errors.endswith(said)


def test_it_has_imported_torch_and_knows_nothing_of_earlier_ones() -> None:
    code = "import sys; torch = sys.modules['torch']; print(hasattr(torch, 'left')); torch.left = 1"
    assert [ended("-c", code)[1] for _ in range(2)] == ["False\n"] * 2


def test_ranks_that_it_starts_are_forked_too_and_are_its_children(tmp_path: Path) -> None:
    rank = tmp_path / "rank.py"
    rank.write_text("import os, sys; print(os.environ['RANK'], os.getppid(), 'torch' in sys.modules, flush=True)")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(rank)]
    process = ForkedPopen([sys.executable, *launch], forks=True, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert sorted(output.splitlines()) == [f"{n} {process.pid} True" for n in (0, 1)]
