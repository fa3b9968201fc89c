"""A path or file that cannot be used is found by every command that would read it, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

SETTINGS = {
    "workload.dataset": "tsv",
    "workload.data_path": "train.tsv",
    "workload.tokenizer": "vocab.txt",
    "train.global_batch": "2",
    "launch.nproc": "2",
    "launch.device": "cpu",
}
RECIPE = "description: d\narms:\n  - name: static\n  - name: partition\n    set: {schedule.policy: partition}\n"
COMMANDS = (
    "train --name n",
    "train --dry-run",
    "probe --name n",
    "compare own.yaml --name n",
    "compare own.yaml --name n --dry-run",
)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with usable files in it; whatever would be launched fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    for name in ("dynbench.engine.launching.torchrun.run_torchrun", "dynbench.probe.prober.probe"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("it was launched"))
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na b\t0\nc\t1\n")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (tmp_path / "poor.txt").write_text("[PAD]\n[CLS]\n[SEP]\na\n")
    (tmp_path / "bad.tsv").write_text("sentence\tlabel\na b\t0\nc\n")
    (tmp_path / "own.yaml").write_text(RECIPE)
    return tmp_path / "results"


def sets(**changes: str) -> list[str]:
    given = SETTINGS | {f"workload.{key}": value for key, value in changes.items()}
    return [word for key, value in given.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_path": "trian.tsv", "weights": "pretrained", "model": "./nowhere"}, ["trian.tsv", "./nowhere"]),
        ({"tokenizer": "poor.txt"}, ["poor.txt: no [UNK]"]),
        ({"eval_path": "bad.tsv"}, ["bad.tsv:3:"]),
    ],
)
def test_it_is_refused_before_anything_is_made(results, cli, command, change, said):
    error = cli(command, "--json", *sets(**change), code=2).json["error"]
    assert all(text in error["message"] for text in said) and "--resume" not in error["hint"]
    assert not results.exists()


@pytest.mark.parametrize("command", [command for command in COMMANDS if "probe" not in command])
def test_a_batch_beyond_what_is_left_to_train_on_tells_what_is_held_out(results, cli, command):
    Path("train.tsv").write_text("sentence\tlabel\n" + "a b\t0\n" * 5 + "c\t1\n" * 5)
    ten = ("--set", "train.global_batch=10")
    mistake = cli(command, "--json", *sets(), *ten, code=2).mistake
    assert "train.tsv has 10 samples, 1 of which are held out for evaluation" in mistake
    assert "at most 9 over all workers or name an evaluation file" in mistake
    assert not results.exists()
    cli(command, "--dry-run", *sets(eval_path="train.tsv"), *ten)


@pytest.mark.parametrize("command", ["train", "probe", "solve", "data lengths"])
def test_a_recipe_given_as_configuration_is_told_from_one(command, tmp_path, cli):
    recipe = tmp_path / "my recipe.yaml"
    recipe.write_text(RECIPE)
    error = cli(command, "-c", recipe, "--json", code=2).json["error"]
    assert error["message"].startswith(f"{recipe}:2: arms: a recipe") and "unknown key" not in error["message"]
    assert f"dynbench compare '{recipe}'" in error["hint"] and "--set" in error["hint"]
