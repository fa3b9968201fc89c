from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path

import pytest
import torch.distributed

from dynbench.cli import health
from dynbench.cli.health import CHECKS, Diagnosis
from dynbench.cli.main import main
from dynbench.cli.options import Settings
from dynbench.runs import provenance


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(results=tmp_path / "results")


def test_doctor_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--results", str(tmp_path / "results"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [check["id"] for check in shown["checks"]] == list(CHECKS)
    assert shown["environment"]["packages"]["torch"]
    assert all(check["ok"] or check["hint"] for check in shown["checks"])
    assert list(tmp_path.iterdir()) == []


def test_strict_turns_warnings_into_exit_6(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECKS", {"poor": lambda s: Diagnosis(False, "seen", "do it")})
    assert main(["doctor", "--strict", "--json"]) == 6
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert shown["error"]["exit_code"] == 6
    assert shown["checks"][0]["hint"] == "do it"
    assert err == "error: checks that warn: poor\nhint: The next steps are in the checks.\n"
    monkeypatch.setattr(health, "CHECKS", {"fine": lambda s: Diagnosis(True, "seen")})
    assert main(["doctor", "--strict"]) == 0


def test_what_the_system_denies_a_check_ends_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Settings) -> Diagnosis:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/hub")

    monkeypatch.setattr(health, "CHECKS", {"hub cache": denied, "fine": lambda s: Diagnosis(True, "seen")})
    assert main(["doctor", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["checks"]
    assert (first["id"], first["ok"], first["seen"]) == ("hub cache", False, "/srv/hub: Permission denied")
    assert first["hint"] and second["ok"]


def test_too_few_cores_and_a_busy_machine_warn(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.6, 0.0, 0.0))
    assert not health.cores(settings).ok
    assert not health.load(settings).ok
    monkeypatch.setattr(provenance, "usable_cores", lambda: 2)
    assert health.cores(settings).ok
    assert health.load(settings).ok


def test_little_memory_and_disk_warn(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "memory_mb", lambda: {"total": 4000.0, "available": 100.0, "limit": None})
    assert not health.memory(settings).ok
    monkeypatch.setattr(provenance, "memory_mb", lambda: {"total": 9e3, "available": 0.0, "limit": 8e3})
    full = health.memory(settings)
    assert not full.ok and "within the container's 8" in full.seen
    monkeypatch.setattr(health, "LEAST_DISK_BYTES", 10**18)
    assert not health.disk(settings).ok


def test_a_missing_package_warns(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "package_versions", lambda: {"polars": None, "triton": None, "numpy": "2"})
    finding = health.packages(settings)
    assert (finding.ok, finding.seen) == (False, "missing: polars")


@pytest.mark.parametrize(
    ("driver", "build", "cuda", "listed", "said"),
    [
        (None, "2.13.0+cpu", None, 0, "no GPU: ranks run on the CPU with gloo"),
        ("570.86", "2.13.0+cpu", None, 0, "NVIDIA driver 570.86, torch 2.13.0+cpu built without CUDA"),
        ("570.86", "2.14.0", "13.0", 8, "torch 2.14.0 built for CUDA 13.0, which needs driver 580 or newer"),
        ("590.1", "2.14.0", "13.0", 8, "NVIDIA driver 590.1, torch 2.14.0 built for CUDA 13.0"),
        (None, "2.14.0", "13.0", 8, "NVIDIA driver of unknown version"),
    ],
)
def test_driver_and_build_are_named_where_they_do_not_fit(
    driver: str | None, build: str, cuda: str | None, listed: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known() -> str:
        if driver is None:
            raise provenance.UnknownFactError("no NVIDIA driver is loaded")
        return driver

    monkeypatch.setattr(provenance, "nvidia_driver", known)
    found = health.without_gpus(build, cuda, listed)
    assert said in found.seen
    assert found.ok == (driver is None and not listed)
    assert found.ok or ("TORCH_INDEX=" in found.hint and "13.x from driver 580" in found.hint)


def test_two_ranks_meet(settings: Settings) -> None:
    found = health.communication(settings)
    assert found.ok and "two ranks added up a tensor over gloo in" in found.seen


@pytest.mark.parametrize("fault", ["cannot connect", "wrong sum", "never answers"])
def test_ranks_that_cannot_meet(settings: Settings, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    class Faulty:
        def __init__(self, *_: object) -> None:
            if fault == "cannot connect":
                raise RuntimeError("connectFullMesh failed\nmore")

        def allreduce(self, tensors: object) -> Faulty:
            return self

        def wait(self) -> None:
            if fault == "never answers":
                threading_event.wait(5)

    import threading

    threading_event = threading.Event()
    monkeypatch.setattr(health, "PATIENCE_S", 0.01)
    monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", Faulty)
    found = health.communication(settings)
    threading_event.set()
    said = {"cannot connect": "connectFullMesh failed", "wrong sum": "1 + 1 gives 1", "never answers": "no answer"}
    assert not found.ok and found.seen.endswith(said[fault]) and "GLOO_SOCKET_IFNAME" in found.hint


def test_few_files_and_processes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "tasks_limit", lambda: None)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert health.threads(settings).ok
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    found = health.threads(settings)
    assert not found.ok and "64 open files (ulimit -n), 1024 wanted" in found.seen and "ulimit" in found.hint
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4096, 4096))
    monkeypatch.setattr(provenance, "tasks_limit", lambda: 100)
    assert "100 processes of the container" in health.threads(settings).seen


def test_a_hub_that_does_not_answer(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", lambda *_: "timed out")
    found = health.hub(settings)
    assert not found.ok and found.seen.endswith("does not answer: timed out") and "--model FOLDER" in found.hint
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", lambda *_: "")
    assert health.hub(settings).ok
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "forbids" in health.hub(settings).seen
