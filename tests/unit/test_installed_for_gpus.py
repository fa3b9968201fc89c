"""What `make` and Slurm ask for on machines with GPUs, read from what they would run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "multinode.slurm"


def made(folder: Path, *settings: str) -> list[str]:
    """The lines that `make install` would run."""
    command = ["make", "--dry-run", "--always-make", "install", f"VENV={folder / 'venv'}", *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def limits_of(lines: list[str], folder: Path) -> str:
    """What the line writes that says which versions are taken."""
    (folder / "venv").mkdir(exist_ok=True)
    subprocess.run(next(line for line in lines if line.startswith("grep")), shell=True, cwd=ROOT, check=True)
    return (folder / "venv" / "constraints.txt").read_text(encoding="utf-8")


def test_make_takes_torch_from_the_index_that_is_named(tmp_path):
    lines = made(tmp_path, "TORCH_INDEX=https://index/cu126")
    newer_pip, first, second = (line.split("--no-compile")[1].split() for line in lines if "pip install" in line)
    assert newer_pip == ["--upgrade", "pip"]
    assert first == ["--index-url", "https://index/cu126", "torch"], "first, so that no other one is fetched"
    assert second == ["--constraint", f"{tmp_path}/venv/constraints.txt", "--editable", "."]
    kept = limits_of(lines, tmp_path)
    assert "torch==" not in kept and "triton==" not in kept and "numpy==" in kept and "transformers==" in kept


def test_make_takes_what_ci_runs_with_where_none_is_named(tmp_path):
    lines = made(tmp_path)
    _, *installs = (line.split("--no-compile")[1].split() for line in lines if "pip install" in line)
    assert [words[2:] for words in installs] == [["--editable", "."]]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert limits_of(lines, tmp_path).splitlines() == [line for line in pinned if not line.startswith("#")]


@pytest.mark.parametrize(("gpus", "asked"), [("4", "4"), (None, "0")])
def test_slurm_is_asked_for_gpus_cores_and_whole_nodes(gpus, asked, tmp_path):
    """srun is a program that says what it was asked, as sbatch would have it run."""
    text = SCRIPT.read_text(encoding="utf-8")
    directives = set(re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE))
    assert {"--gpus-per-node=8", "--exclusive", "--mem=0", "--ntasks-per-node=1"} <= directives
    for name, said in (("srun", 'printf "%s\\n" "$@"'), ("scontrol", "echo node-a")):
        program = tmp_path / name
        program.write_text(f"#!/bin/bash\n{said}\n", encoding="utf-8")
        program.chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_ID": "12"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CPUS_ON_NODE": "96", **job}
    if gpus is not None:
        environment["SLURM_GPUS_PER_NODE"] = gpus
    done = subprocess.run(["bash", SCRIPT, "--steps", "9"], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert {"--cpus-per-task=96", f"--gpus-per-node={asked}"} <= set(words)
    assert words[-6:] == ["--rdzv-endpoint", "node-a:20012", "--rdzv-id", "12", "--steps", "9"]
