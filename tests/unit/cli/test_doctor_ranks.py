"""What `dynbench doctor` says of ranks, threads and connections; a fault is planted for each."""

from __future__ import annotations

import resource
import socket
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch.distributed

from dynbench.cli import health
from dynbench.cli.options import Settings
from dynbench.runs import provenance


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(results=tmp_path / "results")


def test_an_interpreter_that_nobody_tried_warns(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    version = namedtuple("version", "major minor micro")
    for found, fine in (((3, 11, 0), True), ((3, 13, 9), True), ((3, 10, 1), False), ((3, 99, 0), False)):
        monkeypatch.setattr(sys, "version_info", version(*found))
        assert health.python(settings).ok is fine
    assert health.python(settings).seen.endswith("; tried with 3.11, 3.12 and 3.13")


def test_the_interpreters_are_those_that_the_package_declares() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    declared = [int(line.removeprefix(prefix)) for line in project["classifiers"] if line.startswith(prefix)]
    assert [(3, minor) for minor in declared] == list(health.TRIED_PYTHONS)
    assert project["requires-python"] == f">=3.{declared[0]}"


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


def test_ports_that_are_closed_or_taken(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as server:
        monkeypatch.setattr(health, "RENDEZVOUS_PORT", server.getsockname()[1])
        found = health.ports(settings)
        assert found.ok and "in use: name another in --rdzv-endpoint" in found.seen

    def closed(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_connection", closed)
    found = health.ports(settings)
    assert not found.ok and "Permission denied" in found.seen and "127.0.0.1 localhost" in found.hint


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


def test_triton_is_no_must(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "find_spec", lambda name: None)
    found = health.triton(settings)
    assert found.ok and "dynbench[triton]" in found.hint


def test_a_hub_that_does_not_answer(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", lambda *_: "timed out")
    found = health.hub(settings)
    assert not found.ok and found.seen.endswith("does not answer: timed out") and "--model FOLDER" in found.hint
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", lambda *_: "")
    assert health.hub(settings).ok
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "forbids" in health.hub(settings).seen
