"""`dynbench recipes`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynbench.cli.main import main
from dynbench.config.recipes import find_recipe, list_recipes


def test_ls_names_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "ls", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)["recipes"]
    arms = {row["name"]: row["arms"] for row in rows}
    assert list(arms) == list(list_recipes())
    assert arms["quickstart"] == ["static", "prefix", "partition", "window", "packed"]
    assert main(["recipes", "ls"]) == 0
    assert "sst2_cost_types" in capsys.readouterr().out


def test_show_prints_the_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "sst2"]) == 0

    assert capsys.readouterr().out == find_recipe("sst2").read_text(encoding="utf-8")


def test_cp_copies_and_does_not_overwrite_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.yaml"
    assert main(["recipes", "cp", "quickstart", str(target)]) == 0
    assert main(["recipes", "cp", "sst2", str(tmp_path)]) == 0
    assert target.read_bytes() == find_recipe("quickstart").read_bytes()
    assert (tmp_path / "sst2.yaml").is_file()
    capsys.readouterr()

    assert main(["recipes", "cp", "sst2", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["recipes", "cp", "sst2", str(target), "--force"]) == 0
    assert target.read_bytes() == find_recipe("sst2").read_bytes()


@pytest.mark.parametrize("arguments", [["show", "qickstart"], ["cp", "quickstart", "/nowhere/at/all.yaml"]])
def test_mistakes_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", *arguments]) == 2

    assert capsys.readouterr().err.startswith("error: ")
