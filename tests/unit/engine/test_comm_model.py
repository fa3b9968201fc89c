"""The all-reduce of virtual ranks: none, given coefficients, or measured points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from probes import make_probe

from dynbench.config.layers import load_config
from dynbench.engine.comm_model import build_comm_model, resolve_comm_model
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.errors import UsageError
from dynbench.runs.store import RunStore


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


def test_none(tmp_path: Path) -> None:
    for text in (None, "none"):
        model = build_comm_model(text, tmp_path)
        assert model.allreduce_ms(100, 64) == 0 and "none" in model.description


def test_alpha_beta(tmp_path: Path) -> None:
    model = build_comm_model("0.5,0.2", tmp_path)
    assert model.allreduce_ms(10, 8) == pytest.approx(2.5)
    assert "0.5 ms + 0.2 ms/MB" in model.description


def test_measured_points(tmp_path: Path) -> None:
    model = build_comm_model(comm_file(tmp_path), tmp_path)
    assert model.allreduce_ms(5.5, 2) == pytest.approx(2.5)
    assert model.allreduce_ms(20, 2) == pytest.approx(8)
    assert model.allreduce_ms(10, 64) == pytest.approx(4 * (2 * 63 / 64) / 1)


def test_one_point_is_proportional(tmp_path: Path) -> None:
    model = build_comm_model(comm_file(tmp_path, allreduce=[{"megabytes": 10, "ms": 4}]), tmp_path)
    assert model.allreduce_ms(5, 2) == pytest.approx(2)


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
def test_other_schemas_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"launch\.comm_model"):
        build_comm_model(comm_file(tmp_path, **changes), tmp_path)


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "-1", "1e999"])
@pytest.mark.parametrize("place", ["{},0.5", "0.5,{}"])
def test_numbers_that_are_no_time_are_refused(tmp_path: Path, place: str, bad: str) -> None:
    with pytest.raises(UsageError, match=r"launch\.comm_model: .* is negative or not finite"):
        build_comm_model(place.format(bad), tmp_path)


def test_not_json_negative_or_missing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[")
    for text in (str(broken), "-1,2", str(tmp_path / "absent.json"), "no-such-probe"):
        with pytest.raises(UsageError):
            build_comm_model(text, tmp_path)


@pytest.mark.parametrize("text", [None, "none", "0.5,0.2", "absent.json", "file"])
def test_what_names_no_run_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("{}")
    assert resolve_comm_model(text, RunStore(tmp_path)) == text


def test_a_model_that_cannot_be_built_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    config = load_config(
        None, ["launch.launcher=virtual", "launch.device=cpu", f"launch.comm_model={tmp_path / 'absent.json'}"]
    )
    with pytest.raises(UsageError, match=r"absent\.json: No such file"):
        resolve(config, Machine(cores=2, gpus=0, bf16=False), RunStore(tmp_path))


@pytest.mark.parametrize("reference", ["@latest:probe", "probed"])
def test_a_run_is_decided_by_its_id(tmp_path: Path, reference: str) -> None:
    store = RunStore(tmp_path)
    probe = make_probe(store)
    config = load_config(None, ["launch.launcher=virtual", "launch.device=cpu", f"launch.comm_model='{reference}'"])
    resolved = resolve(config, Machine(cores=2, gpus=0, bf16=False), store)
    assert resolved.config.launch.comm_model == probe.id
    assert resolved.decisions["launch.comm_model"] == {"value": probe.id, "reason": f"run meant by '{reference}'"}
