"""Provenance on machines that say little: every fact that cannot be learned has its reason."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from dynbench.runs import provenance, run_record
from dynbench.runs.provenance import UnknownFactError
from dynbench.runs.run_record import host_name, is_gone, start_mark


def says(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str | OSError]) -> None:
    """These files of the system say this; there is no other."""

    def read_text(path: Path, **_: object) -> str:
        found = files.get(str(path), FileNotFoundError(2, "No such file or directory", str(path)))
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(Path, "read_text", read_text)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: Fast CPU 3000\n", "Fast CPU 3000"),
        ("processor\t: 0\nmodel name\t:\nModel\t\t: Board: rev 4\n", "Board: rev 4"),
        ("system type\t: x\ncpu model\t\t: V0.9\n", "V0.9"),
    ],
)
def test_the_processor_by_the_names_that_systems_have_for_it(
    monkeypatch: pytest.MonkeyPatch, text: str, model: str
) -> None:
    says(monkeypatch, {"/proc/cpuinfo": text})
    assert provenance.cpu_model() == model


def test_what_a_system_does_not_say_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nHugePages_Total:  0\n")
    with pytest.raises(UnknownFactError, match=r"^/proc/meminfo has no 'MemAvailable'$"):
        provenance.memory_mb(tmp_path)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nMemAvailable:  1000 kB\nHugePages_Total:  0\n")
    assert provenance.memory_mb(tmp_path) == {"total": 2.048, "available": 1.024, "limit": None}
    says(monkeypatch, {"/proc/cpuinfo": "processor : 0\n"})
    with pytest.raises(UnknownFactError, match="names no model"):
        provenance.cpu_model()
    with pytest.raises(UnknownFactError, match="no NVIDIA driver is loaded"):
        provenance.nvidia_driver()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (subprocess.TimeoutExpired("git", 5), "git took more than 5 s"),
        (
            subprocess.CalledProcessError(128, "git", stderr="fatal: dubious ownership\nmore\n"),
            "git status: fatal: dub",
        ),
        (subprocess.CalledProcessError(128, "git", stderr=""), "git status: exit 128"),
    ],
)
def test_git_that_does_not_answer_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, reason: str
) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(provenance, "_SOURCE", tmp_path / "dynbench")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UnknownFactError) as caught:
        provenance.git_state()
    assert str(caught.value).startswith(reason)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "triton":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(provenance, "version", version)
    found = provenance.package_versions()
    assert found.pop("triton") is None
    assert set(found.values()) == {"1.0"}


@pytest.mark.parametrize(
    ("file", "variable", "kind"),
    [
        ("/.dockerenv", "SLURM_JOB_ID", "docker"),
        ("/run/.containerenv", "SLURM_JOB_ID", "podman"),
        (None, "KUBERNETES_SERVICE_HOST", "kubernetes"),
        (None, "SLURM_JOB_ID", "slurm"),
        (None, "NO_BATCH_SYSTEM", None),
    ],
)
def test_what_hints_at_a_container(
    monkeypatch: pytest.MonkeyPatch, file: str | None, variable: str, kind: str | None
) -> None:
    for known in ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID"):
        monkeypatch.delenv(known, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == file)
    assert provenance.container() == kind


@pytest.mark.parametrize(("quota", "cores"), [(None, 3), (2.9, 2), (0.3, 1), (64.0, 3)])
def test_cores_are_those_of_the_affinity_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5})
    monkeypatch.setattr(provenance, "cpu_quota", lambda: quota)
    assert provenance.usable_cores() == cores


def test_a_system_without_proc_marks_no_process_and_asks_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, {})
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert start_mark(os.getpid()) is None
    assert not is_gone(host_name(), os.getpid(), "00000000:1"), "the mark cannot be looked up"
    for error, gone in ((ProcessLookupError(), True), (PermissionError(), False)):

        def kill(pid: int, signum: int, error: OSError = error) -> None:
            raise error

        monkeypatch.setattr(os, "kill", kill)
        assert is_gone(host_name(), 77, None) is gone


def test_a_mark_is_boot_and_start_and_none_of_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field 22 of the process's line, whose name may hold spaces and parentheses; a zombie has ended."""
    line = "77 (a (b) c) {} 1 " + " ".join(str(number) for number in range(5, 53))
    boot = {"/proc/sys/kernel/random/boot_id": "0123456789ab\n"}
    says(monkeypatch, {"/proc/77/stat": line.format("S"), **boot})
    assert start_mark(77) == "01234567:22"
    for ended in "ZX":
        says(monkeypatch, {"/proc/77/stat": line.format(ended), **boot})
        assert start_mark(77) is None
    says(monkeypatch, {"/proc/77/stat": line.format("R"), "/proc/sys/kernel/random/boot_id": PermissionError(13, "no")})
    assert start_mark(77) == ":22"
    assert run_record._boot_id() == ""
