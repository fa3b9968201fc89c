"""What `analyze` does and leaves behind, and what ends it with exit code 6."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from compared import compared
from probes import make_probe

from dynbench.analysis import analyze, gate
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.gate import VERDICTS
from dynbench.analysis.record import COMPARISON_FILE, read_analysis
from dynbench.analysis.selection import Selection
from dynbench.analysis.verdict import Verdict
from dynbench.cli.main import main
from dynbench.config.schema import Analysis
from dynbench.errors import GateFailed, RecordError
from dynbench.experiment.reporting import FORMATS
from dynbench.report import LANGUAGES
from dynbench.runs.store import RunStore


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
def test_a_damaged_file_is_named_with_the_key(folder, store, capsys, named, spoil):
    path = folder / COMPARISON_FILE
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"(?s)comparison\.json: .*{named}") as caught:
        read_analysis(folder)
    assert caught.value.hint
    for arguments in (("report", folder.name), ("analyze", folder.name)):
        assert main([*arguments, "--results", str(store.root)]) == 2
        assert "comparison.json: " in capsys.readouterr().err


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
