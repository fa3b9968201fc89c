"""What references mean, and what cannot be asked together."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dynbench.analysis.arms import Pair
from dynbench.analysis.levels import LAST, weights_difference
from dynbench.analysis.merge import merge_run
from dynbench.analysis.profile import profile_of
from dynbench.analysis.proxy import predicted_speedup
from dynbench.analysis.rank_files import read_calls
from dynbench.analysis.selection import export_runs, select_runs
from dynbench.errors import DynbenchError, RecordError, RunLookupError, UsageError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.usefixtures("undrawn")
Make = Callable[..., Run]
COMPARE = "To compare runs with it: dynbench analyze RUN... --against FILE."


@pytest.fixture
def exported(store: RunStore, make_run: Make, tmp_path: Path) -> Path:
    """A file of one run, which is in the registry too, beside the run `now`."""
    make_run("static", name="then", steps=4)
    make_run("static", name="now", steps=4)
    path = tmp_path / "then.zip"
    export_runs(["then"], store, path)
    return path


def refused(store: RunStore, *refs: str, **asked: object) -> DynbenchError:
    with pytest.raises(DynbenchError) as caught, select_runs(refs, store, **asked):  # type: ignore[arg-type]  # as asked
        pass
    return caught.value


def test_an_arm_without_its_file_is_refused(store: RunStore, exported: Path) -> None:
    error = refused(store, "now", arm="static")
    assert error.message == "--arm static: names an arm of --against FILE, which is not given"
    assert error.hint == "Add it, or leave --arm out."


def test_a_file_stands_for_all_that_is_analyzed(store: RunStore, exported: Path) -> None:
    for refs, asked in (
        ((str(exported), "now"), {}),
        (("now", str(exported)), {}),
        ((str(exported),), {"against": exported}),
    ):
        error = refused(store, *refs, **asked)
        assert error.message == f"{exported}: is a file, and stands for all runs that are analyzed"
        assert error.hint == COMPARE
    with select_runs([str(exported)], store) as chosen:
        assert [run.name for run in chosen.runs] == ["then"]
        assert (chosen.arms, chosen.baseline) == (None, None)
        assert chosen.runs[0].path.is_dir()
    assert not chosen.runs[0].path.exists()


def test_a_file_that_names_no_arms_has_none_to_choose(store: RunStore, exported: Path, tmp_path: Path) -> None:
    error = refused(store, "now", against=exported, arm="static")
    assert (error.message, error.hint) == (f"--arm static: {exported} names no arms", "Leave --arm out.")
    with pytest.raises(UsageError, match="--arm one: now names no arms"):
        export_runs(["now"], store, tmp_path / "other.zip", arm="one")
    assert not (tmp_path / "other.zip").exists()


def test_the_file_names_the_baseline(store: RunStore, exported: Path, tmp_path: Path) -> None:
    for name, label in (
        ("then.zip", "then"),
        ("a b+c.zip", "a-b-c"),
        ("-.zip", "stored"),
        ("x" * 80 + ".zip", "x" * 64),
    ):
        path = tmp_path / name
        if not path.exists():
            path.write_bytes(exported.read_bytes())
        with select_runs(["now"], store, against=path) as chosen:
            assert chosen.baseline is not None
            assert (chosen.baseline[0], [run.name for run in chosen.baseline[1]]) == (label, ["then"])
            assert [run.name for run in chosen.runs] == ["now"]


def test_a_run_is_not_compared_with_itself(store: RunStore, exported: Path) -> None:
    error = refused(store, "then", "now", against=exported)
    assert error.message.startswith(f"--against {exported}: holds run ")
    assert error.hint == "Name other runs."


def test_what_was_made_of_a_file_is_compared_with_no_other(
    cli: Callable[..., tuple[int, str, str]], store: RunStore, exported: Path
) -> None:
    code, out, _ = cli("analyze", "now", "--against", exported, "--json")
    entry = json.loads(out)["comparison"]["id"]
    assert code == 0
    error = refused(store, entry, against=exported)
    assert error.message == f"{entry}: was made of an exported file itself"
    assert error.hint == "Name the runs to compare with FILE."


def test_a_run_without_rows_or_an_end_is_not_exported(store: RunStore, make_run: Make, tmp_path: Path) -> None:
    bare, running = make_run("static", name="bare", steps=2), make_run("static", name="on", steps=2, status="running")
    for file in bare.ranks_dir.iterdir():
        file.unlink()
    with pytest.raises(RecordError) as caught:
        export_runs(["bare"], store, tmp_path / "a.zip")
    assert caught.value.message == "run bare: has no rank files"
    assert caught.value.hint == "Only runs that wrote rows can be compared."
    with pytest.raises(RunLookupError) as told:
        export_runs(["on"], store, tmp_path / "a.zip")
    assert (told.value.message, told.value.hint) == ("run on: is running", "Export it when it has ended.")
    assert running.status == "running"
    assert not (tmp_path / "a.zip").exists()


def test_a_torn_probe_predicts_nothing_and_is_named(
    store: RunStore, make_run: Make, caplog: pytest.LogCaptureFixture
) -> None:
    probe = store.create("probe", "probe")
    (probe.path / "probe.json").write_text('{"device"')
    static, partition = (
        merge_run(make_run(policy, steps=4, overrides=(f"probe.run={probe.id}",))) for policy in ("static", "partition")
    )
    with caplog.at_level(logging.WARNING):
        assert predicted_speedup(static, partition) is None
    assert "predicted gains are left out" in caplog.text
    assert probe.id in caplog.text


def test_a_torn_profile_is_left_out_and_named(make_run: Make, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run("static", steps=4)
    run.profiler_dir.mkdir()
    run.profile_file(0).write_text("{")
    with caplog.at_level(logging.WARNING):
        assert profile_of(merge_run(run)) is None
    assert "profile_0.json" in caplog.text
    assert "the profile goes without it" in caplog.text


def test_calls_with_other_columns_are_left_out_and_named(make_run: Make, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run("static", steps=4)
    header = "step,operation,peer,number,bytes_wire,start_ns,end_ns\n"
    for rank in range(2):
        run.calls_file(rank).write_text(header + "1,all_reduce,-1,0,8,10,20\n2,all_re")
    calls = read_calls([run], [0, 1])
    assert calls is not None
    assert calls.height == 2, "a torn line is dropped"
    run.calls_file(1).write_bytes(b"")
    empty = read_calls([run], [0, 1])
    assert empty is not None
    assert (empty.height, empty["entered_ns"].to_list()) == (1, [None]), "a rank's calls are not known"
    run.calls_file(1).write_text("step,what\n1,2\n")
    with caplog.at_level(logging.WARNING):
        assert read_calls([run], [0, 1]) is None
    assert f"{run.calls_file(1)}: has other columns than step" in caplog.text
    run.calls_file(1).unlink()
    assert read_calls([run], [0, 1]) is None
    assert read_calls([run], []) is None


def kept(run: Run, weights: dict[str, np.ndarray] | bytes) -> Run:
    from safetensors.numpy import save_file

    path = run.path / LAST
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(weights, bytes):
        path.write_bytes(weights)
    else:
        save_file(weights, path)
    return run


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ({"w": np.array([1.0, -4.0])}, {"w": np.array([1.5, -4.0])}, 0.5 / 4),
        ({"w": np.array([1.0]), "n": np.array([3])}, {"w": np.array([1.0]), "n": np.array([9])}, 0.0),
        ({"w": np.array([0.0])}, {"w": np.array([0.25])}, 0.25),
        ({"w": np.array([1.0])}, {"v": np.array([1.0])}, None),
        ({"w": np.array([1.0])}, {"w": np.array([[1.0]])}, None),
        ({"w": np.array([1.0])}, {"w": np.array([np.nan])}, None),
        ({"w": np.array([1.0])}, b"torn", None),
    ],
)
def test_weights_differ_relative_to_the_largest(
    make_run: Make,
    one: dict[str, np.ndarray],
    other: dict[str, np.ndarray] | bytes,
    difference: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [kept(make_run("static", steps=2), weights) for weights in (one, other)]
    pair: Pair = (merge_run(runs[0]), merge_run(runs[1]))
    found = weights_difference([pair])
    assert found == difference
    assert ("its weights are not compared" in caplog.text) is isinstance(other, bytes)
    assert weights_difference([]) is None
    bare = merge_run(make_run("static", steps=2))
    assert weights_difference([pair, (pair[0], bare)]) is None, "a launch kept no model"
