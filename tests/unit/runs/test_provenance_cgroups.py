"""Limits of containers, on planted `/proc` and `/sys` trees of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dynbench.probe.children import RESERVE, default_cpu_limit_bytes
from dynbench.runs.provenance import cpu_quota, memory_available_bytes, memory_kills, memory_limit_bytes, memory_mb

MB = 1_000_000
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
NO_LIMIT_V1 = "9223372036854771712"


def plant(root: Path, files: Mapping[str, object]) -> Path:
    """A tree with 4,096 MB of memory available and the given files."""
    files = {"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nHugePages_Total: 0", **files}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")
    return root


MEMORY = {
    "v2, own group": (
        {"proc/self/cgroup": "0::/job", f"{V2}/job/memory.max": 900 * MB, f"{V2}/job/memory.current": 300 * MB},
        900,
        600,
    ),
    "v2, within a namespace": (
        {"proc/self/cgroup": "0::/", f"{V2}/memory.max": 900 * MB, f"{V2}/memory.current": 300 * MB},
        900,
        600,
    ),
    "v2, throttled before the limit": (
        {
            "proc/self/cgroup": "0::/job",
            f"{V2}/job/memory.max": 900 * MB,
            f"{V2}/job/memory.high": 500 * MB,
            f"{V2}/job/memory.current": 100 * MB,
        },
        500,
        400,
    ),
    "v2, a group above is full, with its cache to give back": (
        {
            "proc/self/cgroup": "0::/slice/job/step",
            f"{V2}/slice/job/step/memory.max": "max",
            f"{V2}/slice/job/memory.max": 800 * MB,
            f"{V2}/slice/job/memory.current": 10 * MB,
            f"{V2}/slice/memory.max": 1000 * MB,
            f"{V2}/slice/memory.current": 990 * MB,
            f"{V2}/slice/memory.stat": f"anon 1\ninactive_file {40 * MB}",
        },
        800,
        50,
    ),
    "v2, beyond the limit": (
        {"proc/self/cgroup": "0::/", f"{V2}/memory.max": 100 * MB, f"{V2}/memory.current": 130 * MB},
        100,
        0,
    ),
    "v2, outside of the namespace's root": (
        {"proc/self/cgroup": "0::/../other", f"{V2}/memory.max": 700 * MB, f"{V2}/memory.current": 0},
        700,
        700,
    ),
    "v2, no limit": ({"proc/self/cgroup": "0::/job", f"{V2}/job/memory.max": "max"}, None, 4096),
    "v1, own group below an unlimited one": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/slice/job\n1:name=systemd:/x",
            f"{V1}/memory.limit_in_bytes": NO_LIMIT_V1,
            f"{V1}/slice/memory.limit_in_bytes": 600 * MB,
            f"{V1}/slice/memory.usage_in_bytes": 200 * MB,
            f"{V1}/slice/memory.stat": f"inactive_file 1\ntotal_inactive_file {50 * MB}",
            f"{V1}/slice/job/memory.limit_in_bytes": NO_LIMIT_V1,
        },
        600,
        450,
    ),
    "v1, a container that sees the host's path": (
        {
            "proc/self/cgroup": "4:memory:/docker/0123",
            f"{V1}/memory.limit_in_bytes": 600 * MB,
            f"{V1}/memory.usage_in_bytes": 100 * MB,
        },
        600,
        500,
    ),
    "hybrid, memory in v1": (
        {
            "proc/self/cgroup": "4:memory:/job\n0::/job",
            "sys/fs/cgroup/unified/job/cgroup.procs": "",
            f"{V1}/job/memory.limit_in_bytes": 600 * MB,
            f"{V1}/job/memory.usage_in_bytes": 0,
        },
        600,
        600,
    ),
    "no control groups": ({}, None, 4096),
}


@pytest.mark.parametrize(("files", "limit", "available"), MEMORY.values(), ids=MEMORY)
def test_memory_within_the_container(
    tmp_path: Path, files: Mapping[str, object], limit: int | None, available: int
) -> None:
    root = plant(tmp_path, files)
    assert memory_limit_bytes(root) == (None if limit is None else limit * MB)
    assert memory_available_bytes(root) == (None if limit is None else available * MB)
    assert memory_mb(root) == {"total": 8192, "available": available, "limit": limit}
    assert default_cpu_limit_bytes(2, root) == int(available * MB * (1 - RESERVE) / 2)


def test_a_machine_with_less_than_the_container_may_take(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/self/cgroup": "0::/", f"{V2}/memory.max": 6000 * MB, f"{V2}/memory.current": 0})
    assert memory_mb(root) == {"total": 8192, "available": 4096, "limit": 6000}


CPU = {
    "v2, the group above": (
        {
            "proc/self/cgroup": "0::/slice/job",
            f"{V2}/slice/job/cpu.max": "max 100000",
            f"{V2}/slice/cpu.max": "150000 100000",
        },
        1.5,
    ),
    "v2, within a namespace": ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "50000 100000"}, 0.5),
    "v2, no limit": ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "max 100000"}, None),
    "v1, controllers together": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/job",
            f"{V2}/cpu,cpuacct/job/cpu.cfs_quota_us": 200000,
            f"{V2}/cpu,cpuacct/job/cpu.cfs_period_us": 100000,
            f"{V2}/cpu,cpuacct/cpu.cfs_quota_us": -1,
            f"{V2}/cpu,cpuacct/cpu.cfs_period_us": 100000,
        },
        2.0,
    ),
    "v1, no limit": (
        {
            "proc/self/cgroup": "5:cpu:/",
            f"{V2}/cpu/cpu.cfs_quota_us": -1,
            f"{V2}/cpu/cpu.cfs_period_us": 100000,
        },
        None,
    ),
    "no control groups": ({}, None),
}


@pytest.mark.parametrize(("files", "quota"), CPU.values(), ids=CPU)
def test_cpu_time_of_the_container(tmp_path: Path, files: Mapping[str, object], quota: float | None) -> None:
    assert cpu_quota(plant(tmp_path, files)) == quota


def test_processes_that_the_kernel_killed_for_memory(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) == 0
    assert memory_kills(plant(tmp_path, {"proc/vmstat": "pgfault 12\noom_kill 3\noom_kill_other 9"})) == 3
