"""What a run ran on: known, or null with a reason; and what containers allow, on planted `/proc` and `/sys` trees."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from dynbench.config.schema import Config
from dynbench.probe.children import RESERVE, default_cpu_limit_bytes
from dynbench.runs import provenance
from dynbench.runs.atomic import jsonable
from dynbench.runs.provenance import (
    UnknownFactError,
    collect,
    cpu_quota,
    memory_available_bytes,
    memory_kills,
    memory_limit_bytes,
    memory_mb,
)
from dynbench.runs.run import start_mark


def test_every_fact_is_known_or_null_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise UnknownFactError("because")

    monkeypatch.setitem(provenance.FACTS, "cpu_model", broken)
    monkeypatch.setitem(provenance.FACTS, "cpu_governor", lambda: Path("/nowhere/at/all").read_text())
    decisions = {"launch.nproc": {"value": 2, "reason": "2 cores"}}
    env = json.loads(json.dumps(jsonable(collect(Config(), decisions, {"fingerprint": "f"}))))
    assert set(env["unknown"]) == {key for key, value in env.items() if value is None and key != "container"}
    assert env["unknown"]["cpu_model"] == "because" and "/nowhere/at/all" in env["unknown"]["cpu_governor"]
    assert (env["decisions"], env["data"]) == (decisions, {"fingerprint": "f"})
    assert env["packages"]["numpy"] and env["host"] and env["unknown"]["devices"]


def test_variables_that_change_speed_are_recorded_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = ("NCCL_ALGO", "NCCL_NEW_KNOB", "CUDA_MODULE_LOADING", "OMP_PROC_BIND", "LD_PRELOAD")
    for name in (*speed, "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"x of {name}")
    found = provenance.environment()
    assert {name: found[name] for name in speed} == {name: f"x of {name}" for name in speed}
    assert "SECRET" not in json.dumps(found) and "HF_TOKEN" not in found


def test_git_facts_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", 5)

    checkout = tmp_path / "dynbench"
    checkout.mkdir()
    monkeypatch.setattr(provenance, "_SOURCE", checkout)
    with pytest.raises(UnknownFactError, match="not run from a git checkout"):
        provenance.git_state()
    git("init")
    with pytest.raises(UnknownFactError, match="git rev-parse: "):
        provenance.git_state()
    (checkout / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "x")
    state = provenance.git_state()
    assert len(str(state["commit"])) == 40
    assert (state["dirty"], state["changed_files"], state["changes_digest"]) == (False, 0, None)
    digests = set()
    for content in (b"2", b"3", b"\xff not UTF-8"):
        (checkout / "a.py").write_bytes(content)
        state = provenance.git_state()
        assert (state["dirty"], state["changed_files"]) == (True, 1)
        digests.add(state["changes_digest"])
    assert len(digests) == 3
    monkeypatch.setenv("PATH", "")
    facts, unknown = provenance.machine_facts()
    assert facts["git"] is None and unknown["git"] == "git: No such file or directory"
    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(UnknownFactError, match="more than 5 s"):
        provenance.git_state()


def says(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> None:
    """These files of the system say this; there is no other."""

    def read_text(path: Path, **_: object) -> str:
        if str(path) not in files:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)


CPUINFO, DRIVER = "/proc/cpuinfo", "/proc/driver/nvidia/version"


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        (CPUINFO, "processor\t: 0\nmodel name\t:\nModel\t\t: Board: rev 4\n", "Board: rev 4"),
        (CPUINFO, "system type\t: x\ncpu model\t\t: V0.9\n", "V0.9"),
        (CPUINFO, "processor : 0\n", None),
        (DRIVER, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023\n", "535.129.03"),
        (DRIVER, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n", "570.86"),
        (DRIVER, "nothing", None),
        ("no driver", "", None),
    ],
)
def test_processor_and_driver_of_a_system(
    monkeypatch: pytest.MonkeyPatch, file: str, text: str, found: str | None
) -> None:
    says(monkeypatch, {file: text})
    learn = provenance.cpu_model if file == CPUINFO else provenance.nvidia_driver
    with nullcontext() if found else pytest.raises(UnknownFactError, match=r"names no|no NVIDIA driver is loaded"):
        assert learn() == found


def test_what_hints_at_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files before variables, one taken away after another."""
    hints = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
    variables = {"KUBERNETES_SERVICE_HOST": "kubernetes", "SLURM_JOB_ID": "slurm"}
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in hints)
    for name in variables:
        monkeypatch.setenv(name, "1")
    for name, kind in [*hints.items(), *variables.items()]:
        assert provenance.container() == kind
        hints.pop(name, None)
        monkeypatch.delenv(name, raising=False)
    assert provenance.container() is None


def test_cores_are_those_of_the_affinity_within_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5})
    for quota, cores in ((None, 3), (2.9, 2), (0.3, 1), (64.0, 3)):
        monkeypatch.setattr(provenance, "cpu_quota", lambda quota=quota: quota)
        assert provenance.usable_cores() == cores


def test_a_mark_is_boot_and_start_and_none_of_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field 22 of the process's line, whose name may hold spaces and parentheses; a zombie has ended."""
    line = "77 (a (b) c) {} 1 " + " ".join(str(number) for number in range(5, 53))
    boot = {"/proc/sys/kernel/random/boot_id": "0123456789ab\n"}
    for files, mark in (
        ({"/proc/77/stat": line.format("S"), **boot}, "01234567:22"),
        ({"/proc/77/stat": line.format("Z"), **boot}, None),
        ({"/proc/77/stat": line.format("X"), **boot}, None),
        ({"/proc/77/stat": line.format("R")}, ":22"),
        ({}, None),
    ):
        says(monkeypatch, files)
        assert start_mark(77) == mark


def plant(root: Path, groups: str, files: Mapping[str, object]) -> Path:
    """A tree with 4,096 MB of memory available, the groups of this process, and files below `/sys/fs/cgroup`."""
    meminfo = "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nHugePages_Total: 0"
    known = {"proc/meminfo": meminfo, **({"proc/self/cgroup": groups} if groups else {})}
    for path, content in {**known, **{f"sys/fs/cgroup/{name}": each for name, each in files.items()}}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}000000\n" if isinstance(content, int) else f"{content}\n")
    return root


NO_LIMIT_V1 = "9223372036854771712"
V1 = {"memory/memory.limit_in_bytes": 600, "memory/memory.usage_in_bytes": 100}
FULL_ABOVE = {
    "slice/job/step/memory.max": "max",
    "slice/job/memory.max": 800,
    "slice/job/memory.current": 10,
    "slice/memory.max": 1000,
    "slice/memory.current": 990,
    "slice/memory.stat": "anon 1\ninactive_file 40000000",
}
"""A group above is full, with its cache to give back."""
BELOW_UNLIMITED = {
    "memory/memory.limit_in_bytes": NO_LIMIT_V1,
    "memory/slice/memory.limit_in_bytes": 600,
    "memory/slice/memory.usage_in_bytes": 200,
    "memory/slice/memory.stat": "inactive_file 1\ntotal_inactive_file 50000000",
    "memory/slice/job/memory.limit_in_bytes": NO_LIMIT_V1,
}
THROTTLED = {"job/memory.max": 900, "job/memory.high": 500, "job/memory.current": 100}
"""Before the limit."""
V1_GROUPS = "5:cpu,cpuacct:/job\n4:memory:/slice/job\n1:name=systemd:/x"
MEMORY: dict[str, tuple[str, Mapping[str, object], int | None, int]] = {
    "v2, within a namespace": ("0::/", {"memory.max": 900, "memory.current": 300}, 900, 600),
    "v2, throttled": ("0::/job", THROTTLED, 500, 400),
    "v2, full above": ("0::/slice/job/step", FULL_ABOVE, 800, 50),
    "v2, beyond the limit": ("0::/", {"memory.max": 100, "memory.current": 130}, 100, 0),
    "v2, outside of the namespace's root": ("0::/../other", {"memory.max": 700, "memory.current": 0}, 700, 700),
    "v2, no limit": ("0::/job", {"job/memory.max": "max"}, None, 4096),
    "v2, more than the machine has": ("0::/", {"memory.max": 6000, "memory.current": 0}, 6000, 4096),
    "v1, own group below an unlimited one": (V1_GROUPS, BELOW_UNLIMITED, 600, 450),
    "v1, a container that sees the host's path": ("4:memory:/docker/0123", V1, 600, 500),
    "hybrid, memory in v1": ("4:memory:/job\n0::/job", {"unified/job/cgroup.procs": "", **V1}, 600, 500),
    "no control groups": ("", {}, None, 4096),
}


@pytest.mark.parametrize(("groups", "files", "limit", "available"), MEMORY.values(), ids=MEMORY)
def test_memory_within_the_container(
    tmp_path: Path, groups: str, files: Mapping[str, object], limit: int | None, available: int
) -> None:
    root = plant(tmp_path, groups, files)
    assert memory_limit_bytes(root) == (limit and limit * 10**6)
    if limit != 6000:
        assert memory_available_bytes(root) == (None if limit is None else available * 10**6)
    assert memory_mb(root) == {"total": 8192, "available": available, "limit": limit}
    assert default_cpu_limit_bytes(2, root) == int(available * 10**6 * (1 - RESERVE) / 2)


QUOTA_V1 = {
    "cpu,cpuacct/job/cpu.cfs_quota_us": "200000",
    "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "cpu,cpuacct/cpu.cfs_quota_us": "-1",
    "cpu,cpuacct/cpu.cfs_period_us": "100000",
}
CPU: dict[str, tuple[str, Mapping[str, object], float | None]] = {
    "v2, above": ("0::/slice/job", {"slice/job/cpu.max": "max 100000", "slice/cpu.max": "150000 100000"}, 1.5),
    "v2, within a namespace": ("0::/", {"cpu.max": "50000 100000"}, 0.5),
    "v2, no limit": ("0::/", {"cpu.max": "max 100000"}, None),
    "v1, controllers together": ("5:cpu,cpuacct:/job", QUOTA_V1, 2.0),
    "no control groups": ("", {}, None),
}


@pytest.mark.parametrize(("groups", "files", "quota"), CPU.values(), ids=CPU)
def test_cpu_time_of_a_container(tmp_path: Path, groups: str, files: Mapping[str, object], quota: float | None) -> None:
    assert cpu_quota(plant(tmp_path, groups, files)) == quota


def test_processes_that_the_kernel_killed_for_memory(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("pgfault 12\noom_kill 3\noom_kill_other 9\n")
    assert memory_kills(tmp_path) == 3
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nHugePages_Total:  0\n")
    with pytest.raises(UnknownFactError, match=r"^/proc/meminfo has no 'MemAvailable'$"):
        memory_mb(tmp_path)
