"""Comparisons that are stopped and resumed, share a folder or are moved, or whose data change."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from multiproc.faults import (
    Command,
    check_rows,
    own_texts,
    printed_by,
    recipe_of,
    settled,
)
from multiproc.launches import wait_until
from pixel import UNRENDERED

from dynbench.experiment.launch_plan import read_state
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]


def test_terminated_and_resumed(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "{count: 2, mode: apart}", "tiny")
    command = Command(tmp_path)
    store = command.store

    process = command.begin("compare", recipe, "--name", "demo", first=UNRENDERED)
    wait_until(lambda: len(store.list()) == 3 and store.list()[2].rank_file(0).exists(), "the second launch")
    process.send_signal(signal.SIGTERM)
    command.end()

    comparison = store.resolve("demo")
    settled(command, comparison, 143, Status.INTERRUPTED, "stopped by SIGTERM")
    assert "dynbench compare --resume demo" in command.error["hint"]
    first = read_state(comparison.path).launches[0]
    assert first.done and first.run is not None
    check_rows(store.resolve(first.run), 8)

    command.ran("compare", "--resume", "demo", first=UNRENDERED)

    settled(command, comparison, 0, Status.COMPLETED)
    assert "launch 1/4" not in command.stderr
    result = command.said
    assert (result["command"], result["recipe"], result["run"]["status"]) == ("compare", "tiny", "completed")
    runs = {arm["name"]: arm["runs"] for arm in result["arms"]}
    assert list(runs) == ["static", "partition"] and runs["static"][0] == first.run
    launched = [store.resolve(run_id) for run_id in runs["static"] + runs["partition"]]
    assert all(run.status is Status.COMPLETED for run in launched)
    assert [run.config().train.seed for run in launched] == [0, 1, 0, 1]
    found = result["comparison"]
    assert (found["level"], found["launches"], found["same_work"]) == ("step", 2, True)
    assert found["loss_max_rel_diff"] < 1e-4
    assert len(result["figures"]) >= 6
    assert all(Path(path).is_file() for path in (*result["figures"], *result["reports"]))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Command, Command]:
    """Two comparisons at once in one results folder."""
    folder = tmp_path_factory.mktemp("compared")
    recipe = recipe_of(folder, "{count: 1, mode: interleaved}")
    one, two = Command(folder / "one"), Command(folder / "two")
    two.store = one.store
    for command in (one, two):
        command.begin("compare", recipe, "--name", command.folder.name, first=UNRENDERED)
    return one.end(), two.end()


def test_two_comparisons_at_once(compared: tuple[Command, Command]) -> None:
    assert [command.code for command in compared] == [0, 0], compared[0].stderr + compared[1].stderr
    said = [command.said for command in compared]
    ids = [{run for arm in each["arms"] for run in arm["runs"]} for each in said]
    assert len(ids[0]) == len(ids[1]) == 2 and not ids[0] & ids[1]
    store = compared[0].store
    for each, own in zip(said, ids, strict=True):
        comparison = store.resolve(each["run"]["name"])
        assert comparison.status is Status.COMPLETED
        assert {run.record().group for run in map(store.resolve, own)} == {comparison.id}
        assert all(Path(report).is_file() for report in each["reports"])


def test_a_moved_comparison(compared: tuple[Command, Command], tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    shutil.copytree(compared[0].store.root, root)
    code, said = printed_by(root, "report", "one")
    assert code == 0, said
    texts = [
        path.read_text(encoding="utf-8") for path in (root / compared[0].store.resolve("one").id).glob("report*.md")
    ]
    assert texts and not any(str(compared[0].store.root) in text for text in texts)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["apart", "interleaved"])
def test_data_that_change_in_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Launched apart, a pair had other data each; interleaved, the pairs of one launch had others than the next."""
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    data, recipe = tmp_path / "texts.tsv", recipe_of(tmp_path, f"{{count: 2, mode: {mode}}}")
    changes = f"; import planted; planted.data_that_change({str(data)!r}, 'kind3', 'kind4 kind5', 1)"
    command = Command(tmp_path)
    words = ("compare", recipe, "--name", "demo", *own_texts(data, tmp_path / "vocab.txt"))
    ended = command.ran(*words, "--set", "workload.subset=null", first=UNRENDERED + changes)
    comparison, *launched = ended.runs
    for run in launched:
        assert run.status is Status.COMPLETED
        check_rows(run, 8)
    if mode == "apart":
        settled(ended, comparison, 5, Status.FAILED, "data.fingerprint")
        assert "start anew" in ended.error["hint"] and "--resume" not in ended.error["hint"]
        return
    settled(ended, comparison, 0, Status.COMPLETED)
    (found,) = [each for each in ended.said["checks"] if "data.fingerprint" in each["seen"]]
    assert found["severity"] == "warn"
