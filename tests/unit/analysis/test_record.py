"""`comparison.json`: written and read as one record, foreign and damaged files told as such."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.record import COMPARISON_FILE, AnalysisRecord, read_analysis
from dynbench.cli.main import main
from dynbench.config.schema import Analysis
from dynbench.errors import RecordError

REFERENCES = sorted((Path(__file__).parents[3] / "results" / "reference").glob(f"*/{COMPARISON_FILE}"))

OF_ONE_QUESTION = {"question": "schedule", "unit": "real token", "efficiency": None, "loss_drift": None}
"""What comparisons lack that were made when there was but one question."""
ADDED_LATER = ("first_stage", "leak", "weights_max_diff", "aa_noise", "ci_joint", "judged_together")
"""What comparisons of earlier versions lack."""

OF_LATER_ARMS = {"stored": False, "over_launches": {}, "links": None}
"""Likewise, and what their arms lack."""


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.parent.name)
def test_reference_results_read_with_every_fact(path):
    record, content = read_analysis(path.parent), json.loads(path.read_text())
    again = json.loads(json.dumps(record.as_dict()))
    assert again["arms"] == [{**OF_LATER_ARMS, **arm} for arm in content["arms"]]
    for key in ("runs", "checks", "figures", "files", "schema_version", "command"):
        assert again[key] == content[key], key
    both = ([each["comparison"], *each["comparisons"]] for each in (again, content))
    for mine, theirs in zip(*both, strict=True):
        assert {key: mine[key] for key in theirs} == theirs
        added = {key: mine[key] for key in mine.keys() - theirs.keys()}
        later = {key: None for key in ADDED_LATER if key not in theirs}
        assert added == later | ({} if "question" in theirs else OF_ONE_QUESTION)
    assert (len(REFERENCES), record.question) == (5, content.get("question"))


@pytest.fixture
def folder(make_run, store, undrawn):
    return analyze_runs([make_run("static"), make_run("partition")], store, Analysis()).folder.path


@pytest.mark.slow
def test_what_is_written_is_what_is_read(folder):
    written = json.loads((folder / COMPARISON_FILE).read_text())
    assert json.loads(json.dumps(read_analysis(folder).as_dict())) == written
    assert (written["question"], written["comparison"]["question"]) == ("schedule", "schedule")


@pytest.mark.slow
def test_keys_of_a_later_version_are_let_by(folder):
    content = json.loads((folder / COMPARISON_FILE).read_text()) | {"later": {"more": 1}}
    content["comparisons"][0]["later"] = 2
    (folder / COMPARISON_FILE).write_text(json.dumps(content))
    assert isinstance(read_analysis(folder), AnalysisRecord)


def changed(content, key, value):
    *place, last = key.split(".")
    node = content
    for part in place:
        node = node[int(part) if isinstance(node, list) else part]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("comparisons.0.verdict", "FASTEST"),
        ("comparisons.0.level", "almost"),
        ("comparisons.0.speedup", None),
        ("comparisons.0.speedup", 0),
        ("comparisons.0.ci95", [1.0]),
        ("comparisons.0.improvement_percent", {"step_time_ms.mean": "much"}),
        ("comparisons", {"a": 1}),
        ("arms", []),
        ("arms.0.runs", "a"),
        ("runs.0.id", 7),
        ("checks", [{"severity": "bad", "seen": "s", "limit": "l", "hint": "h"}]),
        ("schema_version", 99),
    ],
)
def test_a_damaged_file_is_named_with_the_key(folder, store, capsys, key, value):
    path = folder / COMPARISON_FILE
    path.write_text(json.dumps(changed(json.loads(path.read_text()), key, value)))
    with pytest.raises(RecordError, match=r"comparison\.json: ") as caught:
        read_analysis(folder)
    assert key.partition(".")[0] in caught.value.message or "schema version 99" in caught.value.message
    assert caught.value.hint
    for arguments in (("report", folder.name), ("analyze", folder.name)):
        assert main([*arguments, "--results", str(store.root)]) == 2
        assert "comparison.json: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"arms": []}', '{"hello": "world"}'])
def test_a_foreign_file_is_told(folder, text):
    (folder / COMPARISON_FILE).write_text(text)
    with pytest.raises(RecordError, match=r"comparison\.json: "):
        read_analysis(folder)


@pytest.mark.slow
def test_a_file_that_is_gone_is_told(folder):
    shutil.rmtree(folder)
    with pytest.raises(RecordError, match="cannot be read"):
        read_analysis(folder)
