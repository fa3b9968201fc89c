"""Comparisons that are stopped and resumed, share a folder or are moved, or whose data change."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from multiproc.faults import (
    Command,
    check_rows,
    recipe_of,
    settled,
)
from multiproc.launches import VIRTUAL, sets, wait_until
from pixel import UNRENDERED

from dynbench.experiment.launch_plan import read_state
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]


def test_terminated_and_resumed(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "{count: 2, mode: apart}")
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
    runs = {arm["name"]: arm["runs"] for arm in result["arms"]}
    assert list(runs) == ["static", "partition"] and runs["static"][0] == first.run
    launched = [store.resolve(run_id) for run_id in runs["static"] + runs["partition"]]
    assert all(run.status is Status.COMPLETED for run in launched)
    assert [run.config().train.seed for run in launched] == [0, 1, 0, 1]
    assert (result["comparison"]["level"], result["comparison"]["launches"]) == ("step", 2)
    assert result["figures"] and all(Path(path).is_file() for path in (*result["figures"], *result["reports"]))


def test_two_comparisons_at_once_in_one_folder(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "{count: 1, mode: interleaved}")
    commands = [Command(tmp_path / name) for name in ("one", "two")]
    store = commands[1].store = commands[0].store
    for command in commands:
        command.begin("compare", recipe, "--name", command.folder.name, *sets(*VIRTUAL), first=UNRENDERED)
    assert [command.end().code for command in commands] == [0, 0], commands[0].stderr + commands[1].stderr
    said = [command.said for command in commands]
    ids = [{run for arm in each["arms"] for run in arm["runs"]} for each in said]
    assert len(ids[0]) == len(ids[1]) == 2 and not ids[0] & ids[1]
    for each, own in zip(said, ids, strict=True):
        comparison = store.resolve(each["run"]["name"])
        assert comparison.status is Status.COMPLETED
        assert {run.record().group for run in map(store.resolve, own)} == {comparison.id}
        assert all(Path(report).is_file() for report in each["reports"])


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["apart", "interleaved"])
def test_data_that_change_in_a_comparison(tmp_path: Path, mode: str) -> None:
    """Launched apart, a pair had other data each; interleaved, the pairs of one launch had others than the next."""
    data, recipe = tmp_path / "lengths.txt", recipe_of(tmp_path, f"{{count: 2, mode: {mode}}}")
    data.write_text("\n".join(str(10 + each % 7) for each in range(96)))
    changes = f"; import planted; planted.data_that_change({str(data)!r}, '13', '14', 1)"
    words = ("compare", recipe, "--name", "demo", "--dataset", "lengths", "--data-path", str(data))
    ended = Command(tmp_path).ran(*words, "--set", "workload.subset=null", first=UNRENDERED + changes)
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
