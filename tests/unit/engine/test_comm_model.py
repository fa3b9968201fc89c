"""The all-reduce of virtual ranks: none, given coefficients, or measured points."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from probes import resolved

from dynbench.engine.comm_model import build_comm_model, resolve_comm_model
from dynbench.errors import UsageError
from dynbench.runs.store import RunStore

VIRTUAL = ("launch.launcher=virtual", "launch.device=cpu")


def comm_file(folder: Path, *points: tuple[float, float], **changes: object) -> str:
    """Of these sizes and times, and of two ranks."""
    allreduce = [{"megabytes": megabytes, "ms": ms} for megabytes, ms in points]
    path = folder / "comm.json"
    path.write_text(json.dumps({"schema_version": 1, "world_size": 2, "allreduce": allreduce} | changes))
    return str(path)


TWO = ((10.0, 4.0), (1.0, 1.0))


@pytest.mark.parametrize(
    ("text", "points", "megabytes", "ranks", "ms"),
    [
        (None, (), 100, 64, 0),
        ("none", (), 100, 64, 0),
        ("0.5,0.2", (), 10, 8, 2.5),
        ("file", TWO, 5.5, 2, 2.5),
        ("file", TWO, 20, 2, 8),
        ("file", TWO, 10, 64, 4 * (2 * 63 / 64)),
        ("file", TWO[:1], 5, 2, 2),
    ],
)
def test_what_an_all_reduce_takes(tmp_path, text, points, megabytes, ranks, ms):
    """None, given coefficients, measured points with any number of ranks, and one point, which is proportional."""
    given = comm_file(tmp_path, *points) if points else text
    assert build_comm_model(given, tmp_path).allreduce_ms(megabytes, ranks) == pytest.approx(ms)


@pytest.mark.parametrize(
    "text",
    [
        *(place.format(bad) for place in ("{},0.5", "0.5,{}") for bad in ("nan", "inf", "-inf", "-1", "1e999")),
        *("{folder}/broken.json", "{folder}/absent.json", "no-such-probe"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, text):
    (tmp_path / "broken.json").write_text("[")
    said = "is negative or not finite" if "," in text else ""
    with pytest.raises(UsageError, match=rf"launch\.comm_model: .*{said}"):
        build_comm_model(text.format(folder=tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("points", "changes"),
    [
        *((TWO, {"schema_version": version}) for version in (2, None)),
        (TWO, {"world_size": 1}),
        *((TWO, {"allreduce": points}) for points in (7, [], [{"size": 3}])),
        *(((*TWO, point), {}) for bad in (-1, math.nan, math.inf) for point in ((bad, 20), (20, bad))),
    ],
)
def test_a_file_of_another_schema_or_of_no_sizes_and_times_is_refused(tmp_path, points, changes):
    with pytest.raises(UsageError, match=r"launch\.comm_model"):
        build_comm_model(comm_file(tmp_path, *points, **changes), tmp_path)


@pytest.mark.parametrize("text", [None, "none", "0.5,0.2", "absent.json", "file"])
def test_what_names_no_run_stays_as_it_is(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("{}")
    assert resolve_comm_model(text, RunStore(tmp_path)) == text


def test_a_model_that_cannot_be_built_is_refused_before_a_rank_starts(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.json: No such file"):
        resolved(*VIRTUAL, f"launch.comm_model={tmp_path / 'absent.json'}")
