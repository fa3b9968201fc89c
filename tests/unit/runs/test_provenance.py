from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dynbench.config.schema import Config
from dynbench.runs import provenance
from dynbench.runs.atomic import jsonable
from dynbench.runs.provenance import UnknownFactError, collect


def test_every_fact_is_known_or_null_with_a_reason() -> None:
    env = collect(Config(), {"launch.nproc": {"value": 2, "reason": "2 cores"}}, {"fingerprint": "f"})
    unknown = env["unknown"]
    assert isinstance(unknown, dict)
    assert set(unknown) == {key for key, value in env.items() if value is None and key != "container"}
    assert all(unknown.values())
    assert env["decisions"] == {"launch.nproc": {"value": 2, "reason": "2 cores"}}
    assert env["data"] == {"fingerprint": "f"}
    assert json.loads(json.dumps(jsonable(env)))["packages"]["numpy"]


def test_devices_are_the_callers() -> None:
    env = collect(Config(), {}, {}, {"kind": "cpu"})
    assert env["devices"] == {"kind": "cpu"}
    assert "devices" not in env["unknown"]  # type: ignore[operator]


def test_secrets_of_the_environment_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws_secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    text = json.dumps(jsonable(collect(Config(), {}, {})))
    assert "secret" not in text
    assert '"OMP_NUM_THREADS": "3"' in text


def test_a_failing_fact_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise UnknownFactError("because")

    def missing() -> str:
        return Path("/nowhere/at/all").read_text()

    monkeypatch.setitem(provenance.FACTS, "cpu_model", broken)
    monkeypatch.setitem(provenance.FACTS, "cpu_governor", missing)
    env = collect(Config(), {}, {})
    assert env["cpu_model"] is None
    assert env["unknown"]["cpu_model"] == "because"  # type: ignore[index]
    assert "/nowhere/at/all" in env["unknown"]["cpu_governor"]  # type: ignore[index]
    assert env["host"]


def test_git_facts_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / "dynbench"
    package.mkdir()
    monkeypatch.setattr(provenance, "_SOURCE", package)
    with pytest.raises(UnknownFactError, match="not run from a git checkout"):
        provenance.git_state()
    git("init")
    with pytest.raises(UnknownFactError, match="git rev-parse"):
        provenance.git_state()
    (package / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "x")
    state = provenance.git_state()
    assert len(str(state["commit"])) == 40
    assert (state["dirty"], state["changed_files"]) == (False, 0)
    assert state["changes_digest"] is None
    digests = set()
    for content in (b"2", b"3", b"\xff not UTF-8"):
        (package / "a.py").write_bytes(content)
        state = provenance.git_state()
        assert (state["dirty"], state["changed_files"]) == (True, 1)
        digests.add(state["changes_digest"])
    assert len(digests) == 3


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_NEW_KNOB", "CUDA_MODULE_LOADING", "OMP_PROC_BIND", "LD_PRELOAD"])
def test_variables_that_change_speed_are_recorded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    assert name not in provenance.environment()
    monkeypatch.setenv(name, "1")
    assert provenance.environment()[name] == "1"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build  (root@host)\n", "570.86"),
    ],
)
def test_the_driver_says_its_version(monkeypatch: pytest.MonkeyPatch, line: str, version: str) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: line)
    assert provenance.nvidia_driver() == version


def test_a_driver_that_says_nothing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "nothing")
    with pytest.raises(UnknownFactError, match="names no version"):
        provenance.nvidia_driver()


def test_no_git_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(provenance, "_SOURCE", tmp_path / "dynbench")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnknownFactError, match="git is not installed"):
        provenance.git_state()


@pytest.mark.slow
def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from dynbench.config.schema import Config; from dynbench.runs.provenance import collect\n"
        "collect(Config(), {}, {}); print([m for m in ('torch', 'polars', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cores_are_at_least_one_and_at_most_those_present(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.usable_cores() >= 1
    monkeypatch.setattr(provenance, "cpu_quota", lambda: 0.5)
    assert provenance.usable_cores() == 1
