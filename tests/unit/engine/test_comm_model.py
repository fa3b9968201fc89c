"""The all-reduce of virtual ranks: none, given coefficients, or measured points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from probes import make_probe, resolved

from dynbench.engine.comm_model import build_comm_model, resolve_comm_model
from dynbench.errors import UsageError
from dynbench.runs.store import RunStore

VIRTUAL = ("launch.launcher=virtual", "launch.device=cpu")


def comm_file(folder: Path, **changes: object) -> str:
    content = {
        "schema_version": 1,
        "world_size": 2,
        "allreduce": [{"megabytes": 10, "ms": 4}, {"megabytes": 1, "ms": 1}],
        **changes,
    }
    path = folder / "comm.json"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("text", "points", "megabytes", "ranks", "ms"),
    [
        (None, None, 100, 64, 0),
        ("none", None, 100, 64, 0),
        ("0.5,0.2", None, 10, 8, 2.5),
        ("file", {}, 5.5, 2, 2.5),
        ("file", {}, 20, 2, 8),
        ("file", {}, 10, 64, 4 * (2 * 63 / 64)),
        ("file", {"allreduce": [{"megabytes": 10, "ms": 4}]}, 5, 2, 2),
    ],
)
def test_what_an_all_reduce_takes(tmp_path, text, points, megabytes, ranks, ms):
    """None, given coefficients, measured points with any number of ranks, and one point, which is proportional."""
    given = text if points is None else comm_file(tmp_path, **points)
    assert build_comm_model(given, tmp_path).allreduce_ms(megabytes, ranks) == pytest.approx(ms)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"schema_version": None},
        {"allreduce": []},
        {"allreduce": [{"size": 3}]},
        {"allreduce": [{"megabytes": 1, "ms": -1}]},
        {"allreduce": [{"megabytes": 1, "ms": float("nan")}]},
        {"allreduce": [{"megabytes": 1, "ms": 1}, {"megabytes": float("nan"), "ms": 1}]},
        {"allreduce": [{"megabytes": 1, "ms": 1}, {"megabytes": float("inf"), "ms": 1}]},
        {"allreduce": [{"megabytes": 1, "ms": 1}, {"megabytes": 2, "ms": float("inf")}]},
        {"world_size": 1},
        {"allreduce": 7},
    ],
)
def test_other_schemas_are_refused(tmp_path, changes):
    with pytest.raises(UsageError, match=r"launch\.comm_model"):
        build_comm_model(comm_file(tmp_path, **changes), tmp_path)


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


@pytest.mark.parametrize("text", [None, "none", "0.5,0.2", "absent.json", "file"])
def test_what_names_no_run_stays_as_it_is(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("{}")
    assert resolve_comm_model(text, RunStore(tmp_path)) == text


def test_a_model_that_cannot_be_built_is_refused_before_a_rank_starts(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.json: No such file"):
        resolved(*VIRTUAL, f"launch.comm_model={tmp_path / 'absent.json'}")


@pytest.mark.parametrize("reference", ["@latest:probe", "probed"])
def test_a_run_is_decided_by_its_id(tmp_path, reference):
    store = RunStore(tmp_path)
    probe = make_probe(store)
    found = resolved(*VIRTUAL, f"launch.comm_model='{reference}'", store=store)
    assert found.config.launch.comm_model == probe.id
    assert found.decisions["launch.comm_model"] == {"value": probe.id, "reason": f"run meant by '{reference}'"}
