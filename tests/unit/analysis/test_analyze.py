"""Which runs `analyze` is of, what it does and leaves behind, and what ends it with exit code 6."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from pathlib import Path

import pytest
from compared import compared
from probes import make_probe
from unit.analysis.conftest import Make

from dynbench.analysis import analyze, gate
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.gate import VERDICTS
from dynbench.analysis.rank_files import read_calls
from dynbench.analysis.record import COMPARISON_FILE, read_analysis
from dynbench.analysis.selection import Selection, export_runs, select_runs
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis
from dynbench.errors import DynbenchError, GateFailed, RecordError
from dynbench.experiment.reporting import FORMATS
from dynbench.report import LANGUAGES
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.slow
def test_a_copied_comparison_still_says_what_was_run(cli, store, make_run, tmp_path):
    probe = make_probe(store, predicted_speedup={"partition": 1.5}, global_batch=16)
    measured = ("schedule.cost_type=measured", f"probe.run={probe.id}", f"schedule.capacity={probe.id}")
    make_run("static", name="runA")
    make_run("partition", name="runB", overrides=measured)
    assert cli("analyze", "runA", "runB")[0] == 0
    here, copy = store.resolve("@latest").path, tmp_path / "copy"

    def reports(folder):
        for lang, form in itertools.product(LANGUAGES, FORMATS):
            assert cli("report", folder, "--lang", lang, "--format", form)[0] == 0
            yield (folder / f"report.{lang}.{form}").read_text().splitlines()

    original = list(reports(here))
    shutil.copytree(here, copy)
    shutil.rmtree(store.root)
    for before, after in zip(original, reports(copy), strict=True):
        differing = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert all(here.name in old and "copy" in new for old, new in differing)
        assert len(differing) <= 4  # the title, and commands that name the folder


REFERENCES = sorted((Path(__file__).parents[3] / "results" / "reference").glob(f"*/{COMPARISON_FILE}"))


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.parent.name)
def test_reference_results_read_with_every_fact(path):
    """What comparisons lack that were made by earlier versions is unknown, and their only question is `schedule`."""
    record, content = read_analysis(path.parent), json.loads(path.read_text())
    again = json.loads(json.dumps(record.as_dict()))
    for key in ("runs", "checks", "figures", "files", "schema_version", "command"):
        assert again[key] == content[key], key
    both = ([each["comparison"], *each["comparisons"], *each["arms"]] for each in (again, content))
    for mine, theirs in zip(*both, strict=True):
        theirs.pop("links", None)  # which versions recorded that had a model of links beside each arm
        assert {key: mine[key] for key in theirs} == theirs
        added = {key: mine[key] for key in mine.keys() - theirs.keys() if mine[key]}
        assert added in ({}, {"question": "schedule", "unit": "real token"})
    assert (len(REFERENCES), record.question) == (6, content.get("question"))


@pytest.fixture(scope="module")
def analyzed(make_shared_run):
    runs = [make_shared_run(policy) for policy in ("static", "partition")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analyze, "draw_figures", lambda *_: [])
        return analyze.analyze_runs(Selection(runs), RunStore(runs[0].path.parent), Analysis()).folder.path


@pytest.fixture
def folder(analyzed, store):
    return Path(shutil.copytree(analyzed, store.root / analyzed.name))


def test_what_is_written_is_what_is_read(folder):
    written = json.loads((folder / COMPARISON_FILE).read_text())
    assert json.loads(json.dumps(read_analysis(folder).as_dict())) == written
    assert (written["question"], written["comparison"]["question"]) == ("schedule", "schedule")


@pytest.mark.parametrize(
    ("named", "spoil"),
    [
        *(
            ("comparisons", lambda content, wrong=wrong: content["comparisons"][0].update(wrong))
            for wrong in ({"verdict": "FASTEST"}, {"speedup": None}, {"speedup": 0}, {"ci95": [1.0]})
        ),
        ("arms", lambda content: content["arms"].clear()),
        ("runs", lambda content: content["runs"][0].update(id=7)),
        ("checks", lambda content: content["checks"].append({"severity": "bad", "seen": "", "limit": "", "hint": ""})),
        ("schema version 99", lambda content: content.update(schema_version=99)),
    ],
)
def test_a_damaged_file_is_named_with_the_key(folder, named, spoil):
    path = folder / COMPARISON_FILE
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"(?s)comparison\.json: .*{named}") as caught:
        read_analysis(folder)
    assert caught.value.hint and caught.value.exit_code == 2


def failed(condition, verdicts, findings=()):
    """What the gate says of arms with these verdicts; None where it lets them pass."""
    items = [compared(verdict=verdict, question="schedule") for verdict in verdicts]
    try:
        gate.judge([condition], False, items, list(findings), {})
    except GateFailed as error:
        assert (error.exit_code, "\n" in error.message) == (6, False)
        return error.message
    return None


@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_meets_its_own_condition_and_no_other(verdict):
    for condition, own in VERDICTS.items():
        said = failed(condition, [verdict])
        assert said == failed(condition, [Verdict.INCOMPARABLE, verdict])
        assert (said is not None) == (own is verdict)
        assert said is None or said.startswith(f"--fail-on {condition}: partition is {verdict}: ")


@pytest.mark.parametrize(
    ("severity", "check", "met"),
    [("fail", "loss_parity", 2), ("fail", "nan_loss", 2), ("info", "loss_parity", 0), ("warn", "drift", 1)],
)
def test_findings_meet_the_conditions_about_them(severity, check, met):
    conditions = ("findings", "different-loss")
    said = {name: failed(name, ["SAME"], [Finding(severity, "s", "l", "h", id=check)]) for name in conditions}
    assert [name for name in conditions if said[name]] == [*conditions[:met]]
    assert all(said[name].startswith(f"--fail-on {name}: ") for name in conditions[:met])
    assert not any(failed(name, ["SAME"]) for name in conditions)


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
    base, everything, elsewhere = (tmp_path / name for name in ("base.zip", "everything.zip", "elsewhere"))
    earlier, later = (
        [make_run(name=f"{name}{seed}", seed=seed, noise=0.002, slowdown=slowdown).name for seed in range(4)]
        for name, slowdown in (("ci-", 1.0), ("new-", 1.3))
    )

    def analyzed(*asked, **where):
        return json.loads(cli("analyze", *asked, "--json", **where)[1])

    assert cli("runs", "export", *earlier, "-o", base)[0] == 0
    for name in earlier:
        shutil.rmtree(store.resolve(name).path)
    code, said, err = cli("analyze", *later, "--against", base, "--fail-on", "slower,ambiguous", "--json")
    out = json.loads(said)
    assert (code, "--fail-on slower: " in err, out["comparison"]["noise_threshold"]) == (6, True, 0.02)
    assert [(arm["name"], arm["stored"]) for arm in out["arms"]] == [("base", True), ("static", False)]
    base.unlink()
    entry = store.resolve(out["comparison"]["id"])
    assert all(Path(path).is_file() for path in out["files"])

    again = analyzed(entry.id, "--noise-threshold", "0.9")
    assert (again["comparison"]["verdict"], again["comparison"]["aa"]) == ("SAME", False)
    assert again["comparison"]["ci95"] == out["comparison"]["ci95"]
    assert [run["name"] for run in again["runs"]] == [run["name"] for run in out["runs"]]

    assert cli("runs", "export", entry.id, "-o", everything)[0] == 0
    there = analyzed(everything, results=elsewhere)["comparison"]
    assert (there["verdict"], there["ci95"]) == ("SLOWER", out["comparison"]["ci95"])
    for arm in ("base", "static"):
        assert cli("runs", "export", entry.id, "--arm", arm, "-o", everything)[0] == 0
        alone = analyzed(everything, results=elsewhere)["arms"]
        assert [(found["name"], found["stored"]) for found in alone] == [(arm, False)]


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
    analyze.analyze_runs(Selection(arms=arms, into=entry), store, Analysis())
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
