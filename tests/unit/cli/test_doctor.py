"""`dynbench doctor`: every check of the machine and of a recipe, with a fault planted in each."""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed
from said import Cli

from dynbench.cli import health, health_recipe
from dynbench.cli.common import Settings
from dynbench.cli.health import CHECKS, Trouble, expect
from dynbench.config.recipes import find_recipe
from dynbench.errors import HubError
from dynbench.runs import provenance

Patch = pytest.MonkeyPatch


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(results=tmp_path / "results")


def test_doctor_leaves_nothing_behind(tmp_path, cli):
    shown = cli(f"doctor --results {tmp_path}/results --json").json
    assert [check["id"] for check in shown["checks"]] == list(CHECKS)
    assert shown["environment"]["packages"]["torch"]
    assert all(check["ok"] or check["hint"] for check in shown["checks"])
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_warns_or_is_denied_ends_no_other_and_strict_makes_it_exit_6(cli, monkeypatch):
    def denied(_: Settings) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/hub")

    fine = {"fine": (lambda _: "seen", "")}
    poor = {"cache": (denied, ""), "poor": (lambda _: expect(False, "seen"), "do it"), **fine}
    monkeypatch.setattr(health, "CHECKS", poor)
    said = cli("doctor --strict --json", code=6)
    assert said.json["error"]["exit_code"] == 6
    seen = [(check["ok"], check["seen"], bool(check["hint"])) for check in said.json["checks"]]
    denied_first = [(False, "/srv/hub: Permission denied", True), (False, "seen", True)]
    assert seen == [*denied_first, (True, "seen", False)]
    assert said.err.startswith("error: checks that warn: cache, poor\n")
    monkeypatch.setattr(health, "CHECKS", fine)
    cli("doctor --strict")


MEMORY = {"total": 9e3, "available": 8e3, "limit": None}
FULL = {"total": 9e3, "available": 0.0, "limit": 8e3}
PLANTED: list[tuple[str, str, object, str]] = [
    ("cores", "dynbench.runs.provenance.usable_cores", 1, "2 ranks by default"),
    ("cores", "dynbench.runs.provenance.usable_cores", 2, ""),
    ("load", "os.getloadavg", (99.0, 0.0, 0.0), "load average 99.00"),
    ("load", "os.getloadavg", (0.1, 0.0, 0.0), ""),
    ("memory", "dynbench.runs.provenance.memory_mb", {**MEMORY, "available": 100.0}, "100 MB available"),
    ("memory", "dynbench.runs.provenance.memory_mb", FULL, "within the container's 8"),
    ("memory", "dynbench.runs.provenance.memory_mb", MEMORY, ""),
    ("packages", "dynbench.runs.provenance.package_versions", {"polars": None, "triton": None}, "missing: polars"),
    ("threads", "resource.getrlimit", (64, 64), "64 open files (ulimit -n), 1024 wanted"),
    ("threads", "resource.getrlimit", (resource.RLIM_INFINITY,) * 2, ""),
    ("threads", "dynbench.runs.provenance.tasks_limit", 100, "100 processes of the container"),
    ("disk", "shutil.disk_usage", Mock(free=10), "10 B free"),
    ("hub", "dynbench.workloads.hub.why_unreachable", "timed out", "not answer: timed out"),
    ("hub", "dynbench.workloads.hub.why_unreachable", "", ""),
]


@pytest.mark.parametrize(("check", "asked", "answer", "said"), PLANTED)
def test_what_the_system_lacks_is_seen(settings, monkeypatch, check, asked, answer, said):
    monkeypatch.setattr(asked, lambda *_: answer)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    found = health.run_checks({check: CHECKS[check]}, settings)[check]
    assert (found.ok, bool(found.hint)) == (not said, bool(said)) and said in found.seen


def test_a_hub_that_must_not_be_asked(settings, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", Mock(side_effect=HubError("not tried")))
    assert "forbids" in health.hub(settings)


BUILDS = {
    "570.86 2.13.0+cpu": "NVIDIA driver 570.86, torch 2.13.0+cpu built without CUDA",
    "570.86 2.14.0": "torch 2.14.0 built for CUDA 13.0, which needs driver 580 or newer",
    "590.1 2.14.0": "NVIDIA driver 590.1, torch 2.14.0 built for CUDA 13.0",
    " 2.14.0": "NVIDIA driver of unknown version",
}


@pytest.mark.parametrize("given", BUILDS)
def test_driver_and_build_are_named_where_they_do_not_fit(given, monkeypatch):
    driver, build = given.split(" ")
    known = Mock(return_value=driver, side_effect=None if driver else provenance.UnknownFactError("no driver"))
    monkeypatch.setattr(provenance, "nvidia_driver", known)
    assert driver or health.without_gpus("2.13.0+cpu", None, 0) == "no GPU: ranks run on the CPU with gloo"
    with pytest.raises(Trouble) as caught:
        health.without_gpus(build, *((None, 0) if "cpu" in build else ("13.0", 8)))
    assert BUILDS[given] in caught.value.message
    assert "TORCH_INDEX=" in caught.value.hint and "13.x from driver 580" in caught.value.hint


def test_ranks_that_cannot_communicate(settings, monkeypatch):
    assert "two ranks added up a tensor over gloo in" in health.communication(settings)
    over, silent = threading.Event(), Mock()
    silent.return_value.allreduce.return_value.wait.side_effect = lambda: over.wait(5)
    unconnected = Mock(side_effect=RuntimeError("connectFullMesh failed\nmore"))
    monkeypatch.setattr(health, "PATIENCE_S", 0.01)
    faults = {r"1 \+ 1 gives 1": Mock(), "connectFullMesh failed": unconnected, "no answer": silent}
    for said, group in faults.items():
        monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", group)
        with pytest.raises(Trouble, match=said):
            health.communication(settings)
    over.set()


Checks = Callable[..., dict[str, dict[str, Any]]]
TWO = ("launch.launcher=torchrun", "launch.nproc=2", "launch.threads=1", "launch.device=cpu")


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: Patch, cli: Cli) -> Checks:
    """Id to check of a recipe of five arms; of machine and network only what a test is about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(health, "CHECKS", {})
    monkeypatch.setattr(provenance, "usable_cores", lambda: 2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "a b\t0\nc\t1\n" * 40)

    def run(*settings: str, code: int = 0) -> dict[str, dict[str, Any]]:
        sets = [word for text in (*TWO, *settings) for word in ("--set", text)]
        said = cli("doctor quickstart --json" + " --strict" * (code > 0), *sets, code=code)
        return {check["id"]: check for check in said.json["recipe"]["checks"]}

    return run


def failing(found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, check in found.items() if not check["ok"]]


def test_a_recipe_that_can_begin(checks):
    found = checks()
    assert failing(found) == [] and not Path("results").exists()
    assert {name: check["seen"] for name, check in found.items() if name != "packages"} == {
        "recipe": f"{find_recipe('quickstart')}: 1 comparison, 5 arms, 4 launches of each",
        "weights": "none needed: weights are drawn, no tokenizer is loaded, no data are fetched",
        "ranks": "2 ranks on cpu",
        "start": "can begin; asks: schedule",
    }


TSV = ("workload.dataset=tsv", "workload.data_path=train.tsv", "workload.tokenizer=vocab.txt")
PRETRAINED = "workload.weights=pretrained"


@pytest.mark.parametrize(
    ("settings", "ids", "said"),
    [
        ((*TSV, "workload.data_path=trian.tsv"), ["recipe"], "Did you mean 'train.tsv'?"),
        (["workload.datset=embedded", "train.stepz=3"], ["recipe"], "stepz"),
        ([PRETRAINED, f"workload.model={'m' * 300}"], ["recipe"], ""),
        ([PRETRAINED, "workload.model=~nobody-of-this-name/model"], ["recipe"], ""),
        ((*TSV, "workload.data_path=other.tsv"), ["start"], "other.tsv:1: "),
        (["launch.nproc=4"], ["ranks"], "4 ranks compute in 4 threads on 2 cores: static, prefix, partition, window"),
        (["launch.device=cuda"], ["ranks", "start"], "torch sees no GPU"),
    ],
)
def test_what_a_recipe_lacks_is_named(checks, tmp_path, settings, ids, said):
    (tmp_path / "other.tsv").write_text("text,label\na,0\n")
    found = checks(*settings, code=6)
    assert failing(found) == ids and said in found[ids[0]]["seen"]
    assert list(found) == ["recipe"] or ids != ["recipe"], "what cannot be read is not checked further"


def test_a_missing_package(checks, monkeypatch):
    monkeypatch.setattr("dynbench.plugins.registry.find_spec", lambda name: None)
    monkeypatch.setattr(health_recipe, "find_spec", lambda name: None)
    found = checks("train.tensorboard=true", "schedule.mode=dynamic", "schedule.policy=karmarkar_karp")["packages"]
    assert not found["ok"] and "karmarkar_karp needs prtpy, which is not installed" in found["seen"]
    assert found["hint"] == "pip install 'dynbench[peers]' 'dynbench[tensorboard]'"


def test_weights_and_data_that_only_the_hub_has(checks, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("dynbench.workloads.hub.cached_revision", lambda *_: None)
    model = (PRETRAINED, "workload.model=some/model")
    needs = (*model, "workload.dataset=sst2")
    every = checks(*needs)
    assert failing(every) == ["weights", "start"]
    assert every["weights"]["seen"].startswith("some/model, nyu-mll/glue: neither a folder nor in the hub's cache")
    monkeypatch.setattr("dynbench.workloads.hub.cached_revision", lambda *_: "abc")
    (tmp_path / "hub" / "datasets--nyu-mll--glue").mkdir(parents=True)
    assert checks(*needs)["weights"]["seen"] == "here: some/model, nyu-mll/glue"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", lambda *_: "")
    monkeypatch.setattr("dynbench.workloads.hub.cached_revision", lambda *_: None)
    monkeypatch.setattr("dynbench.workloads.hub.load_from_hub", Mock(side_effect=HubError("not tried")))
    assert "will be fetched from" in checks(*model)["weights"]["seen"]
