"""Which runs an analysis is of: files against which runs are compared, and the arm that leads."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from unit.analysis.conftest import Make

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.rank_files import read_calls
from dynbench.analysis.selection import Selection, export_runs, select_runs
from dynbench.config.schema import Analysis
from dynbench.errors import DynbenchError
from dynbench.experiment.reporting import FORMATS
from dynbench.runs.export import EXPORT_FILE
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def exported(store: RunStore, make_run: Make, tmp_path: Path) -> Path:
    """A file of one run, which is in the registry too, beside the run `now`."""
    make_run("static", name="then", steps=4)
    make_run("static", name="now", steps=4)
    path = tmp_path / "then.zip"
    export_runs(["then"], store, path)
    return path


def test_a_file_stands_for_all_that_is_analyzed(store: RunStore, exported: Path) -> None:
    file = str(exported)
    for refs, against in (((file, "now"), None), (("now", file), None), ((file,), exported)):
        with pytest.raises(DynbenchError) as caught, select_runs(refs, store, against=against):
            pass
        assert caught.value.message.startswith(f"{exported}: is a file") and "--against FILE" in caught.value.hint
    with select_runs([str(exported)], store) as chosen:
        assert [run.name for run in chosen.runs] == ["then"]
        assert (chosen.arms, chosen.baseline) == (None, None)
        assert chosen.runs[0].path.is_dir()
    assert not chosen.runs[0].path.exists()


def test_the_file_names_the_baseline(store: RunStore, exported: Path, tmp_path: Path) -> None:
    for name, label in (("a b+c", "a-b-c"), ("-", "stored"), ("x" * 80, "x" * 64)):
        path = tmp_path / f"{name}.zip"
        path.write_bytes(exported.read_bytes())
        with select_runs(["now"], store, against=path) as chosen:
            assert chosen.baseline is not None
            assert (chosen.baseline[0], [run.name for run in chosen.baseline[1]]) == (label, ["then"])
            assert [run.name for run in chosen.runs] == ["now"]


def test_a_run_without_rows_or_an_end_is_not_exported(store: RunStore, make_run: Make, tmp_path: Path) -> None:
    make_run("static", name="bare", steps=2, ranks_written=0)
    running = make_run("static", name="on", steps=2, status="running")
    for name, said in (("bare", "has no rank files"), ("on", "is running")):
        with pytest.raises(DynbenchError, match=f"run {name}: {said}"):
            export_runs([name], store, tmp_path / "a.zip")
    assert running.status == "running" and not (tmp_path / "a.zip").exists()


def test_calls_with_other_columns_are_left_out_and_named(make_run: Make, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run("static", steps=4)
    run.calls_file(0).write_text("step,operation,peer,number,bytes_wire,start_ns,end_ns\n1,all_reduce,-1,0,8,10,20\n")
    run.calls_file(1).write_bytes(b"")
    empty = read_calls([run], [0, 1])
    assert empty is not None and empty["entered_ns"].to_list() == [None], "a rank's calls are not known"
    run.calls_file(1).write_text("step,what\n1,2\n")
    with caplog.at_level(logging.WARNING):
        assert read_calls([run], [0, 1]) is None
    assert f"{run.calls_file(1)}: has other columns than step" in caplog.text
    assert read_calls([run], []) is None


@pytest.mark.slow
def test_the_comparison_stays_when_file_and_folders_are_gone(cli, store, make_run, tmp_path):
    """The same arm later is judged, and is no noise: what changed lies in the code or the machine."""
    base = tmp_path / "base.zip"
    earlier, later = (
        [make_run(name=f"{name}{seed}", seed=seed, noise=0.002, slowdown=slowdown).name for seed in range(4)]
        for name, slowdown in (("ci-", 1.0), ("new-", 1.3))
    )
    assert cli("runs", "export", *earlier, "-o", base)[0] == 0
    for name in earlier:
        shutil.rmtree(store.resolve(name).path)
    code, said, err = cli("analyze", *later, "--against", base, "--fail-on", "slower,ambiguous", "--json")
    out = json.loads(said)
    assert (code, "--fail-on slower: " in err, out["comparison"]["noise_threshold"]) == (6, True, 0.02)
    assert [(arm["name"], arm["stored"]) for arm in out["arms"]] == [("base", True), ("static", False)]
    base.unlink()
    entry = store.resolve(out["comparison"]["id"])
    assert (entry.status, (entry.path / EXPORT_FILE).is_file()) == ("completed", True)
    assert all(Path(path).is_file() for path in out["files"])

    again = json.loads(cli("analyze", entry.id, "--noise-threshold", "0.9", "--json")[1])
    assert (again["comparison"]["verdict"], again["comparison"]["aa"]) == ("SAME", False)
    assert again["comparison"]["ci95"] == out["comparison"]["ci95"]
    assert [run["name"] for run in again["runs"]] == [run["name"] for run in out["runs"]]

    everything = tmp_path / "everything.zip"
    assert cli("runs", "export", entry.id, "-o", everything)[0] == 0
    elsewhere = tmp_path / "elsewhere"
    there = json.loads(cli("analyze", everything, "--json", results=elsewhere)[1])["comparison"]
    assert (there["verdict"], there["ci95"]) == ("SLOWER", out["comparison"]["ci95"])

    for arm in ("base", "static"):
        assert cli("runs", "export", entry.id, "--arm", arm, "-o", everything)[0] == 0
        alone = json.loads(cli("analyze", everything, "--json", results=elsewhere)[1])
        assert [(found["name"], found["stored"]) for found in alone["arms"]] == [(arm, False)]


def test_ranks_in_several_folders_are_exported_as_one_run(cli, store, make_run, tmp_path):
    run = make_run("partition", name="split", world_size=4)
    there = RunStore(tmp_path / "node1").root / run.id
    shutil.copytree(run.path, there)
    for rank in (0, 1):
        (there / "ranks" / f"rank_{rank}.csv").unlink()
    for rank in (2, 3):
        run.rank_file(rank).unlink()
    path = tmp_path / "split.zip"
    assert cli("runs", "export", run.id, there, "-o", path)[0] == 0
    found = json.loads(cli("analyze", path, "--json")[1])
    assert found["runs"][0]["summary"]["partial"] is False


@pytest.mark.slow
def test_a_comparison_is_turned_in_its_own_folder_and_turned_back(cli, store, make_run):
    entry, policies = store.create("compare", "recipe", name="cmp"), ("static", "partition", "prefix")
    arms = {name: [make_run(name, name=f"{name}-{seed}", seed=seed) for seed in (0, 1)] for name in policies}
    analyze_runs(Selection(arms=arms, into=entry), store, Analysis())
    made = (("en", FORMATS[0]), ("zh", FORMATS[-1]))
    for lang, form in made:
        assert cli("report", "cmp", "--lang", lang, "--format", form)[0] == 0

    def led(*asked):
        """The comparisons as they are then, what is compared with what, and over which arms its reports say what."""
        assert cli("analyze", "cmp", *asked)[0] == 0
        reports = [(entry.path / f"report.{lang}.{form}").read_text() for lang, form in made]
        said = [["static / partition" in text, "partition / static" in text] for text in reports]
        found = json.loads((entry.path / "comparison.json").read_text())["comparisons"]
        return found, [(item["candidate"], item["baseline"]) for item in found], said

    entries = len(store.list())
    before = json.loads((entry.path / "comparison.json").read_text())["comparisons"]
    for asked in (("--baseline", "partition"), ()):
        _, turned, said = led(*asked)
        assert turned == [("static", "partition"), ("prefix", "partition")] and said == 2 * [[True, False]]
    restored, _, said = led("--baseline", "static")
    assert restored == before and said == 2 * [[False, True]]
    assert len(store.list()) == entries
