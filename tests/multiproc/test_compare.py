"""A comparison of real launches, stopped in the middle and gone on with."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from multiproc.faults import Command, rows_kept, settled
from multiproc.launches import wait_until
from pixel import UNRENDERED

from dynbench.experiment.launch_plan import read_state
from dynbench.runs.run_record import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

RECIPE = """\
description: two arms of a few seconds
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic}
launches: {count: 2, mode: apart}
"""


@pytest.mark.fault
def test_terminated_and_resumed(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    command = Command(tmp_path)
    store = command.store

    process = command.begin("compare", str(recipe), "--name", "demo", "--json", first=UNRENDERED)
    wait_until(lambda: len(store.list()) == 3 and store.list()[2].rank_file(0).exists(), "the second launch")
    process.send_signal(signal.SIGTERM)
    stopped = command.end()

    comparison = store.resolve("demo")
    settled(stopped, comparison, 143, Status.INTERRUPTED, "stopped by SIGTERM")
    assert "dynbench compare --resume demo" in stopped.error["hint"]
    first = read_state(comparison.path).launches[0]
    assert first.done and first.run is not None
    rows_kept(store.resolve(first.run), 8)

    resumed = command.ran("compare", "--resume", "demo", "--json", bare=True, first=UNRENDERED)

    settled(resumed, comparison, 0, Status.COMPLETED)
    stdout, stderr = resumed.stdout, resumed.stderr
    assert "launch 1/4" not in stderr
    result = json.loads(stdout)
    assert (result["command"], result["recipe"], result["run"]["status"]) == ("compare", "tiny", "completed")
    runs = {arm["name"]: arm["runs"] for arm in result["arms"]}
    assert list(runs) == ["static", "partition"]
    assert runs["static"][0] == first.run
    assert all(store.resolve(run_id).status is Status.COMPLETED for ids in runs.values() for run_id in ids)
    assert [store.resolve(run_id).config().train.seed for run_id in runs["static"] + runs["partition"]] == [0, 1, 0, 1]
    found = result["comparison"]
    assert (found["level"], found["launches"], found["same_work"]) == ("step", 2, True)
    assert found["loss_max_rel_diff"] < 1e-4
    page = Path(result["reports"][1]).read_text(encoding="utf-8")
    images = re.findall(r'<img src="([^"]+)"', page)
    assert len(images) == len(result["figures"]) >= 6
    assert all(Path(figure).is_file() for figure in result["figures"])
    assert all(image.startswith("data:image/png;base64,") for image in images)
