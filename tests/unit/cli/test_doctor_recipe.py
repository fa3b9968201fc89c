"""`dynbench doctor RECIPE`: every part of what a recipe needs, with a fault planted in each."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from dynbench.cli import health, health_recipe
from dynbench.cli.main import main
from dynbench.errors import HubError
from dynbench.runs import provenance

Output = pytest.CaptureFixture[str]
RECIPE = """\
# Goal: a test.
# Time: a minute on 2 cores.
# Expect: nothing.
description: two arms
settings:
  workload: {{dropout: 0.0, {workload}}}
  train: {{steps: 4, warmup_steps: 1, global_batch: 4, {train}}}
  launch: {{launcher: torchrun, device: cpu, threads: 1, nproc: {nproc}}}
arms:
  - name: static
  - name: other
    set: {{schedule.policy: {policy}}}
launches: 2
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder; nothing is asked of the network, and of the machine only what a test is about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(health, "CHECKS", {})
    monkeypatch.setattr(provenance, "usable_cores", lambda: 2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "a b\t0\nc\t1\n" * 20)
    return tmp_path


def checks(
    capsys: Output,
    workload: str = "dataset: embedded",
    train: str = "seed: 0",
    nproc: int = 2,
    policy: str = "partition",
) -> dict[str, dict[str, object]]:
    """Id to check of a recipe with these settings."""
    Path("own.yaml").write_text(RECIPE.format(workload=workload, train=train, nproc=nproc, policy=policy))
    assert main(["doctor", "own.yaml", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["recipe"]
    assert shown["name"] == "own.yaml"
    assert all(check["ok"] or check["hint"] for check in shown["checks"])
    return {check["id"]: check for check in shown["checks"]}


def failing(found: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, check in found.items() if not check["ok"]]


def test_one_that_can_begin(capsys: Output, here: Path) -> None:
    found = checks(capsys)
    assert failing(found) == []
    assert list(found) == ["recipe", "weights", "packages", "ranks", "start"]
    assert found["recipe"]["seen"] == "own.yaml: 1 comparison, 2 arms, 2 launches of each"
    assert found["ranks"]["seen"] == "2 ranks on cpu"
    assert found["start"]["seen"] == "can begin; asks: schedule"
    assert not (here / "results").exists()


TSV = "dataset: tsv, data_path: train.tsv, tokenizer: vocab.txt"


def test_a_missing_file_is_named_with_the_nearest(capsys: Output) -> None:
    found = checks(capsys, TSV.replace("train.tsv", "trian.tsv"))
    assert list(found) == ["recipe"] and "Did you mean 'train.tsv'?" in str(found["recipe"]["seen"])


def test_a_file_of_another_layout(capsys: Output, here: Path) -> None:
    (here / "train.tsv").write_text("text,label\na,0\n")
    found = checks(capsys, TSV)
    assert failing(found) == ["start"]
    assert str(found["start"]["seen"]).startswith("train.tsv:1: ")


def test_a_missing_package(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynbench.plugins.registry.find_spec", lambda name: None)
    monkeypatch.setattr(health_recipe, "find_spec", lambda name: None)
    found = checks(capsys, train="tensorboard: true", policy="karmarkar_karp")["packages"]
    assert not found["ok"] and "karmarkar_karp needs prtpy, which is not installed" in str(found["seen"])
    assert found["hint"] == "pip install 'dynbench[tensorboard]' 'dynbench[peers]'"


def test_more_ranks_than_cores(capsys: Output) -> None:
    found = checks(capsys, nproc=4)
    assert failing(found) == ["ranks"]
    assert found["ranks"]["seen"] == "4 ranks compute in 4 threads on 2 cores: static, other"
    assert "oversubscribed" in str(found["ranks"]["hint"])


def test_a_gpu_that_is_not_there(capsys: Output) -> None:
    Path("own.yaml").write_text(
        RECIPE.format(workload="dataset: embedded", train="seed: 0", nproc=2, policy="partition").replace("cpu", "cuda")
    )
    assert main(["doctor", "own.yaml", "--strict", "--json"]) == 6
    shown = json.loads(capsys.readouterr().out)
    assert "ranks of own.yaml, start of own.yaml" in shown["error"]["message"]
    assert "torch sees no GPU" in next(it["seen"] for it in shown["recipe"]["checks"] if it["id"] == "ranks")


def test_weights_and_data_that_only_the_hub_has(capsys: Output, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))
    monkeypatch.setattr("dynbench.workloads.hub.cached_revision", lambda *_: None)
    every = checks(capsys, "dataset: sst2, weights: pretrained, model: some/model")
    assert failing(every) == ["weights", "start"]
    assert every["weights"]["seen"] == (
        "some/model, nyu-mll/glue: neither a folder nor in the hub's cache, and HF_HUB_OFFLINE forbids the network"
    )
    monkeypatch.setattr("dynbench.workloads.hub.cached_revision", lambda *_: "abc")
    (here / "hub" / "datasets--nyu-mll--glue").mkdir(parents=True)
    assert checks(capsys, "dataset: sst2, weights: pretrained, model: some/model")["weights"]["seen"] == (
        "here: some/model, nyu-mll/glue"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dynbench.workloads.hub.why_unreachable", lambda *_: "")
    monkeypatch.setattr("dynbench.workloads.hub.cached_revision", lambda *_: None)
    monkeypatch.setattr("dynbench.workloads.hub.load_from_hub", Mock(side_effect=HubError("not tried")))
    assert "will be fetched from" in str(checks(capsys, "weights: pretrained, model: some/model")["weights"]["seen"])


@pytest.mark.parametrize("model", ["m" * 300, "~nobody-of-this-name/model"])
def test_weights_that_cannot_be_looked_at_are_named(capsys: Output, model: str) -> None:
    found = checks(capsys, f"dataset: embedded, weights: pretrained, model: {model}")
    assert failing(found) == list(found) == ["recipe"]


def test_a_recipe_with_mistakes_says_them_all(capsys: Output) -> None:
    found = checks(capsys, workload="datset: embedded", train="stepz: 3")
    assert list(found) == ["recipe"] and not found["recipe"]["ok"]
    assert "stepz" in str(found["recipe"]["seen"]) and "datset" in str(found["recipe"]["seen"])


def test_settings_over_it_and_no_recipe(capsys: Output) -> None:
    checks(capsys)
    assert main(["doctor", "own.yaml", "--set", "launch.nproc=4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["recipe"]["checks"]
    assert next(it["ok"] for it in shown if it["id"] == "ranks") is False
    assert main(["doctor", "--set", "launch.nproc=4"]) == 2
    assert main(["doctor", "quikstart"]) == 2
    assert "Did you mean 'quickstart'?" in capsys.readouterr().err
