import json
import shutil

import pytest
from click.testing import CliRunner
from probes import make_probe

from dynbench.analysis import measures
from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.proxy import proxy_error
from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.config.schema import Analysis
from dynbench.errors import UsageError
from dynbench.experiment.report_input import read_report_input
from dynbench.experiment.reporting import FORMATS
from dynbench.report import LANGUAGES
from dynbench.runs.atomic import write_text
from dynbench.runs.store import RunStore

undrawn = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def pair(make_run):
    return make_run("static", name="runA"), make_run("partition", name="runB")


@pytest.mark.slow
def test_one_run_is_analyzed_in_its_own_folder(cli, store, pair):
    code, out, _ = cli("analyze", "runA", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["comparison"], report["comparisons"], report["checks"]) == (None, [], [])
    assert report["runs"][0]["name"] == "runA"
    assert (pair[0].figures_dir / "timeline.png").is_file()
    assert "No check found anything." in (pair[0].path / "summary.md").read_text()
    assert len(store.list()) == 2


@undrawn
@pytest.mark.parametrize("name", ["mine", None])
def test_a_single_run_has_one_name_in_its_analysis_and_its_report(make_run, store, name):
    """Checks and figures had it under its policy's, all else under its own."""
    run = make_run("static", name, transfer_ms=40.0)
    found = analyze_runs([run], store, Analysis())
    (finding,) = (finding for finding in found.findings if finding.id == "exposed_communication")
    assert found.arms[0].label == read_report_input(store, run).baseline == run.label
    assert finding.seen.count(run.label) == 1


@undrawn
@pytest.mark.slow
def test_each_run_is_summarised_once_however_many_comparisons(make_run, store, monkeypatch):
    found = []
    monkeypatch.setattr(measures, "proxy_error", lambda merged: found.append(merged.run.id) or proxy_error(merged))
    runs = [make_run(policy) for policy in ("static", "partition", "prefix")]

    report = analyze_runs(runs, store, Analysis())

    assert len(report.comparisons) == 2
    assert sorted(found) == sorted(run.id for run in runs)


@undrawn
@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("analyze", "runA"), ("analyze", "runA", "runB"), ("report", "runA")])
def test_the_checks_of_a_run_stay_in_its_summary(cli, pair, arguments):
    assert cli("analyze", "runA")[0] == 0
    assert cli(*arguments)[0] == 0
    assert (pair[0].path / "summary.md").read_text().count("## Checks\n\nNo check found anything.\n") == 1


@undrawn
@pytest.mark.slow
def test_every_table_of_virtual_ranks_says_so(cli, store, make_run):
    for seed in (0, 1):
        virtual = ("launch.launcher=virtual", "launch.world_size=2", "launch.comm_model=none")
        make_run("static", name=f"run{seed}", seed=seed, overrides=virtual)
    said = "Ranks are virtual: measured one after another on one device. Communication: none."
    assert cli("analyze", "run0")[1].count(said) == 1
    assert cli("analyze", "run0", "run1")[1].count(said) == 1
    assert (store.resolve("@latest").path / "summary.md").read_text().count(said) == 1


@pytest.mark.slow
def test_two_runs_are_compared_in_an_entry_of_their_own(cli, store, pair):
    code, out, _ = cli("analyze", "runA", "runB", "--json")
    report = json.loads(out)
    found = report["comparison"]
    assert code == 0
    assert (found["verdict"], found["level"], found["same_work"]) == ("ESTIMATE", "step", True)
    assert (found["baseline"], found["candidate"], found["launches"]) == ("static", "partition", 1)
    assert found["ci95"] is None
    assert found["improvement_percent"]["step_time_ms.mean"] > 0
    entry = store.resolve(found["id"])
    assert (entry.status, entry.record().command) == ("completed", "analyze")
    assert json.loads((entry.path / "comparison.json").read_text()) == report
    assert all((entry.figures_dir / name).is_file() for name in ("timeline.png", "timeline.csv"))
    assert "**ESTIMATE** (step)" in (entry.path / "summary.md").read_text()
    assert set(report) >= {"schema_version", "command", "runs", "arms", "comparisons", "checks", "figures", "files"}
    for check in report["checks"]:
        assert set(check) == {"id", "severity", "seen", "limit", "hint", "values", "cases"}


@undrawn
@pytest.mark.slow
def test_the_lines_work_a_second_time(cli, store, pair):
    assert [cli("analyze", "runA", "runB")[0] for _ in range(2)] == [0, 0]
    assert len(store.list()) == 4


@undrawn
@pytest.mark.slow
def test_the_terminal_shows_table_verdict_checks_and_the_next_command(cli, pair):
    _, out, _ = cli("analyze", "runA", "runB")
    assert "partition gains" in out
    assert "ESTIMATE  partition 1." in out and "x static, no interval, level step, 1 launch\n" in out
    assert "warn: few_launches: static and partition: 1 paired launch (limit: at least 4)" in out
    assert "next     dynbench report" in out


@undrawn
@pytest.mark.slow
def test_strict_shows_the_report_and_exits_6(cli, pair):
    code, out, err = cli("analyze", "runA", "runB", "--strict")
    assert code == 6
    assert "ESTIMATE" in out
    assert "few_launches" in err
    code, out, _ = cli("analyze", "runA", "runB", "--strict", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (6, "checks")
    assert cli("analyze", "runA", "--strict")[0] == 0


@undrawn
@pytest.mark.slow
def test_runs_that_cannot_be_compared_exit_5_and_leave_no_entry(cli, store, pair, make_run):
    make_run("partition", name="other", seed=1)
    code, out, err = cli("analyze", "runA", "other", "--json")
    assert code == 5
    assert json.loads(out)["error"]["kind"] == "incomparable"
    assert "train.seed (0 and 1)" in err
    assert len(store.list()) == 3


@undrawn
@pytest.mark.slow
def test_force_shows_the_numbers(cli, pair, make_run):
    make_run("partition", name="other", fingerprint="data-2")
    code, out, _ = cli("analyze", "runA", "other", "--force")
    assert code == 0
    assert "INCOMPARABLE" in out
    assert "fail: forced_comparison" in out


@undrawn
@pytest.mark.slow
def test_launches_of_one_arm_make_no_comparison(cli, make_run):
    make_run("static", name="one")
    make_run("static", name="two", seed=1)
    code, out, _ = cli("analyze", "one", "two", "--json")
    report = json.loads(out)
    assert (code, report["comparison"], len(report["arms"][0]["runs"])) == (0, None, 2)
    assert "all runs are launches of one arm, static" in cli("analyze", "one", "two")[1]


@undrawn
@pytest.mark.slow
def test_options_reach_the_verdict(cli, make_run):
    for index in range(4):
        make_run("static", name=f"a{index}")
        make_run("partition", name=f"b{index}")
    names = [f"{arm}{index}" for index in range(4) for arm in "ab"]
    report = json.loads(cli("analyze", *names, "--json")[1])
    assert report["comparison"]["verdict"] == "FASTER"
    wide = json.loads(cli("analyze", *names, "--json", "--noise-threshold", "0.9")[1])
    assert (wide["comparison"]["verdict"], wide["comparison"]["noise_threshold"]) == ("SAME", 0.9)
    narrow = json.loads(cli("analyze", *names, "--json", "--confidence", "0.5")[1])
    assert narrow["comparison"]["ci95"][0] > report["comparison"]["ci95"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "run 'nope'"),
        (("runA", "runA"), "run runA is named twice"),
        ((), "Missing argument"),
    ],
)
def test_bad_references_exit_2(cli, pair, arguments, message):
    code, _, err = cli("analyze", *arguments)
    assert code == 2
    assert message in err


def test_a_run_without_a_row_exits_2(cli, make_run):
    make_run("static", name="bare", steps_written=0, status="failed")
    code, out, err = cli("analyze", "bare", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "record")
    assert "run bare (failed) has no row that can be read" in err


@undrawn
@pytest.mark.slow
def test_a_partial_run_is_analyzed_and_named(cli, make_run):
    make_run("static", name="short", status="interrupted", steps_written=25)
    code, out, _ = cli("analyze", "short")
    assert code == 0
    assert "partial: short: status is interrupted; 15 of 40 measured steps" in out


@undrawn
@pytest.mark.slow
def test_a_comparison_is_analyzed_again_in_its_own_folder(cli, store, pair):
    first = json.loads(cli("analyze", "runA", "runB", "--json")[1])
    code, out, _ = cli("analyze", first["comparison"]["id"], "--json")
    again = json.loads(out)
    assert (code, len(store.list())) == (0, 3)
    assert (again["comparison"], again["arms"]) == (first["comparison"], first["arms"])


@undrawn
@pytest.mark.slow
def test_a_comparison_keeps_the_settings_it_was_made_with(cli, store, pair):
    first = json.loads(cli("analyze", "runA", "runB", "--json")[1])
    entry = store.resolve(first["comparison"]["id"])
    write_text(entry.config_file, dump_config(load_config(None, ["analysis.noise_threshold=0.3"])))
    again = json.loads(cli("analyze", entry.id, "--json")[1])
    assert again["comparison"]["noise_threshold"] == 0.3
    given = json.loads(cli("analyze", entry.id, "--json", "--noise-threshold", "0.1")[1])
    assert given["comparison"]["noise_threshold"] == 0.1


def test_entries_without_rows_are_refused(cli, store, pair):
    store.create("solve", "trace", name="offline")
    code, _, err = cli("analyze", "runA", "offline")
    assert code == 2
    assert "run offline is an entry of `solve`" in err


@undrawn
@pytest.mark.slow
def test_a_run_in_two_roots_is_one_run(store, make_run, tmp_path):
    """Two nodes without a shared folder: each holds its own ranks' files."""
    run = make_run("partition", world_size=4)
    other = RunStore(tmp_path / "node1")
    shutil.copytree(run.path, other.root / run.id)
    there = other.resolve(run.id)
    for rank in (0, 1):
        there.rank_file(rank).unlink()
    for rank in (2, 3):
        run.rank_file(rank).unlink()
    report = analyze_runs([run, there], store, Analysis())
    assert [merged.ranks for merged in report.runs] == [(0, 1, 2, 3)]
    assert not report.runs[0].partial
    assert report.folder == run


@pytest.mark.slow
def test_named_arms_and_a_given_entry(store, make_run):
    entry = store.create("compare", "recipe")
    arms = {"one": [make_run("static")], "two": [make_run("static")]}
    seen = []
    report = analyze_runs([], store, Analysis(), arms=arms, into=entry, on_progress=seen.append)
    assert report.folder == entry
    assert (entry.status, (entry.path / "comparison.json").is_file()) == ("created", True)
    assert [arm["name"] for arm in report.record().as_dict()["arms"]] == ["one", "two"]
    assert seen[-1] == "drawing figures"


def test_a_run_named_twice_over_arms_is_refused(store, make_run):
    run = make_run("static")
    with pytest.raises(UsageError, match="named twice"):
        analyze_runs([], RunStore(store.root), Analysis(), arms={"one": [run], "two": [run]})


def test_help_needs_no_heavy_import():
    from dynbench.cli.analyze import command

    assert "dynbench analyze runA runB" in CliRunner().invoke(command, ["--help"]).output


@pytest.mark.slow
def test_a_copied_comparison_still_says_what_was_run(cli, store, make_run, tmp_path):
    probe = make_probe(store, predicted_speedup={"partition": 1.5}, global_batch=16)
    measured = ("schedule.cost_type=measured", f"probe.run={probe.id}", f"schedule.capacity={probe.id}")
    make_run("static", name="runA")
    make_run("partition", name="runB", overrides=measured)
    assert cli("analyze", "runA", "runB")[0] == 0
    here, copy = store.resolve("@latest").path, tmp_path / "copy"
    reports = [f"report.{lang}.{form}" for lang in LANGUAGES for form in FORMATS]
    for name in reports:
        _, lang, form = name.split(".")
        assert cli("report", here.name, "--lang", lang, "--format", form)[0] == 0
    original = {name: (here / name).read_text().splitlines() for name in reports}
    shutil.copytree(here, copy)
    shutil.rmtree(store.root)

    for name in reports:
        _, lang, form = name.split(".")
        assert cli("report", str(copy), "--lang", lang, "--format", form)[0] == 0
        again = (copy / name).read_text().splitlines()
        differing = [(old, new) for old, new in zip(original[name], again, strict=True) if old != new]
        assert all(here.name in old and "copy" in new for old, new in differing)
        assert len(differing) <= 4  # the title, and commands that name the folder


@pytest.mark.slow
@pytest.mark.parametrize("made", [[], [("en", "md")], [("en", "html"), ("zh", "md")]])
def test_analyzing_again_makes_the_reports_there_are_anew(cli, store, pair, made):
    cli("analyze", "runA", "runB")
    entry = store.resolve("@latest")
    for lang, form in made:
        assert cli("report", entry.id, "--lang", lang, "--format", form)[0] == 0
    wanted = {f"report.{lang}.{form}" for lang, form in made}
    before = {name: (entry.path / name).read_text() for name in wanted}

    out = cli("analyze", entry.id, "--confidence", "0.8")[1]

    assert {path.name for path in entry.path.glob("report.*")} == wanted
    for name in wanted:
        assert f"report   {entry.path / name}" in out
        text = (entry.path / name).read_text()
        assert text != before[name]
        assert "80\N{NO-BREAK SPACE}%" in text or "80 %" in text
