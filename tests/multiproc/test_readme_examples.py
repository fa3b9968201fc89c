"""The README's programs run as they stand, on two ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiproc

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"<!-- example: (?P<name>[\w-]+) -->\n+```python\n(?P<code>.*?)```", re.DOTALL)
LINE = r"rank [01], epoch 1: last batch \d+ samples, loss [\d.]+"
EXAMPLES = {
    "sampler-ddp": (LINE, 2, None),
    "sampler-trainer": (r"trained 32 steps", 2, "accelerate"),
    "sampler-accelerate": (LINE, 2, "accelerate"),
}
"""Name to what is printed, how often, and the package that it needs beside ours."""
TO_THE_END = "import os, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__'); sys.stdout.flush(); os._exit(0)"
"""Runs a program, but not the interpreter's shutdown, in which a gloo thread of torch 2.13 that drops a finished
collective aborts now and then: 5 of 48 runs of the Trainer program on a busy machine, 3 of 20 of the plain DDP one."""


def test_every_program_of_the_readme_is_known_here() -> None:
    marked = {match["name"] for match in BLOCK.finditer(README.read_text(encoding="utf-8"))}
    assert marked == set(EXAMPLES)


def test_the_chinese_readme_has_the_same_programs() -> None:
    chinese = README.with_name("README.zh-CN.md").read_text(encoding="utf-8")
    assert BLOCK.findall(chinese) == BLOCK.findall(README.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    printed, times, needs = EXAMPLES[name]
    programs = {match["name"]: match["code"] for match in BLOCK.finditer(README.read_text(encoding="utf-8"))}
    if needs is not None and find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    (tmp_path / "example.py").write_text(programs[name], encoding="utf-8")
    (tmp_path / "to_the_end.py").write_text(TO_THE_END, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += ["to_the_end.py", "example.py"]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(re.findall(printed, done.stdout)) == times, done.stdout
