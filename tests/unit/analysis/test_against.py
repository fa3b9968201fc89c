"""Runs against stored ones: exported, carried elsewhere, compared by the usual code with the same numbers."""

import json
import shutil
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from probes import make_probe

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.selection import label_of
from dynbench.config.schema import Analysis
from dynbench.experiment.reporting import FORMATS
from dynbench.report import LANGUAGES
from dynbench.runs.export import EXPORT_FILE
from dynbench.runs.row_writer import Call, CallWriter
from dynbench.runs.run_record import is_name
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.usefixtures("undrawn")
"""`monkeypatch.undo()` brings figures back."""


@pytest.fixture
def launches(make_run):
    """`launches("a", 4, policy=…)`: names of launches with seeds 0, 1, …"""

    def make(name, count=4, **fields):
        for seed in range(count):
            make_run(**{"name": f"{name}{seed}", "seed": seed, "noise": 0.002, **fields})
        return [f"{name}{seed}" for seed in range(count)]

    return make


@pytest.fixture
def stored(cli, store, launches, tmp_path):
    """A file with four launches of an arm; the runs themselves are gone."""

    def make(name="base.zip", **fields):
        path = tmp_path / name
        assert cli("runs", "export", *launches("ci-", **fields), "-o", path)[0] == 0
        shutil.rmtree(store.root)
        return path

    return make


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "partition", "window", "prefix"])
@pytest.mark.parametrize(
    ("slowdown", "verdict", "code"), [(1.3, "SLOWER", 6), (1 / 1.3, "FASTER", 0), (1.0, "SAME", 0)]
)
def test_the_same_arm_later_is_judged_and_is_no_noise(cli, stored, launches, policy, slowdown, verdict, code):
    """What changed lies in the code or the machine, not in the configuration: this is no A/A."""
    base = stored(policy=policy)
    arguments = ("analyze", *launches("ci-", policy=policy, slowdown=slowdown), "--against", base)
    found_code, out, err = cli(*arguments, "--fail-on", "slower,ambiguous", "--json")
    found = json.loads(out)
    assert found_code == code
    (comparison,) = found["comparisons"]
    label = "partition" if policy == "window" else policy
    assert (comparison["baseline"], comparison["candidate"]) == ("base", label)
    assert (comparison["verdict"], comparison["aa"], comparison["launches"]) == (verdict, False, 4)
    assert comparison["noise_threshold"] == 0.02
    assert [(arm["name"], arm["stored"]) for arm in found["arms"]] == [("base", True), (label, False)]
    assert ("--fail-on slower: " in err and "base" in err) == (code == 6)


@pytest.mark.slow
def test_stored_launches_give_the_numbers_that_they_gave(cli, store, launches, tmp_path):
    base, now = launches("a"), launches("b", policy="partition")
    known = json.loads(cli("analyze", *base, *now, "--json")[1])["comparison"]
    assert cli("runs", "export", *base, "-o", tmp_path / "base.zip")[0] == 0
    for name in base:
        shutil.rmtree(store.resolve(name).path)
    found = json.loads(cli("analyze", *now, "--against", tmp_path / "base.zip", "--json")[1])["comparison"]
    for key in ("speedup", "ci95", "verdict", "level", "loss_max_rel_diff", "improvement_percent", "compared"):
        assert found[key] == known[key], key


@pytest.mark.slow
def test_the_comparison_stays_when_file_and_folders_are_gone(cli, store, stored, launches, tmp_path):
    base = stored()
    out = json.loads(cli("analyze", *launches("new-", slowdown=1.3), "--against", base, "--json")[1])
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


@pytest.mark.slow
def test_a_report_is_made_of_it_in_every_language(cli, store, stored, launches, monkeypatch):
    monkeypatch.undo()
    base = stored()
    cli("analyze", *launches("new-", slowdown=1.3), "--against", base)
    for language, form in product(LANGUAGES, FORMATS):
        code, out, err = cli("report", "--lang", language, "--format", form, "-o", "-")
        assert (code, err) == (0, "")
        assert ("{{" not in out and "`base`" in out) or "<code>base</code>" in out
        assert "figures/timeline.png" in out or "data:image/png" in out


@pytest.mark.slow
def test_findings_tell_stored_launches_from_those_of_the_same_name(cli, stored, launches):
    base = stored(env={"host": "elsewhere"})
    out = cli("analyze", *launches("ci-"), "--against", base)[1]
    assert "warn: environment: base:ci-0 and ci-0: env.host (elsewhere and testhost)" in out


@pytest.mark.slow
def test_other_days_are_told_in_the_finding(cli, store, stored, launches):
    base = stored()
    names = launches("ci-")
    for name in names:
        run = store.resolve(name)
        started = datetime.fromisoformat(run.record().started) + timedelta(days=3)
        run.update(started=started.isoformat())
    out = cli("analyze", *names, "--against", base)[1]
    assert "warn: launch_order: base and static: all launches of one ran 72.0 h before" in out
    assert "--noise-threshold" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"env": {"cpu_model": "Other CPU"}}, "env.cpu_model (Test CPU and Other CPU)"),
        ({"fingerprint": "data-2"}, "env.data.fingerprint"),
        ({"global_batch": 32}, "train.global_batch (16 and 32)"),
    ],
)
def test_what_cannot_be_compared_exits_5(cli, stored, launches, fields, said):
    base = stored()
    code, _, err = cli("analyze", *launches("ci-", **fields), "--against", base, "--fail-on", "slower")
    assert (code, said in err) == (5, True)


@pytest.fixture
def compared(store, make_run):
    """An entry with two named arms of equal settings but the policy."""
    entry = store.create("compare", "recipe", name="cmp")
    arms = {name: [make_run(name, name=f"{name}-{seed}", seed=seed) for seed in (0, 1)] for name in ARMS}
    analyze_runs((), store, Analysis(), arms=arms, into=entry)
    return entry


ARMS = ("static", "partition")


@pytest.mark.slow
def test_a_comparison_is_exported_with_its_arms(cli, compared, tmp_path):
    path, elsewhere = tmp_path / "cmp.zip", tmp_path / "elsewhere"
    code, out, _ = cli("runs", "export", "cmp", "-o", path, "--json")
    assert (code, len(json.loads(out)["runs"]), json.loads(out)["path"]) == (0, 4, str(path))
    known = json.loads((compared.path / "comparison.json").read_text())
    found = json.loads(cli("analyze", path, "--json", results=elsewhere)[1])
    assert found["arms"] == known["arms"]
    for key in ("verdict", "speedup", "ci95", "aa"):
        assert found["comparison"][key] == known["comparison"][key]


@pytest.mark.slow
def test_an_exported_comparison_keeps_its_question(cli, store, make_run, tmp_path):
    entry, path = store.create("compare", "recipe", name="cmp"), tmp_path / "cmp.zip"
    settings = {"one": (), "both": ("train.precision=bf16", "sync.bucket_mb=1.0")}
    arms = {
        name: [make_run("static", name=f"{name}-{seed}", seed=seed, overrides=given) for seed in (0, 1)]
        for name, given in settings.items()
    }
    analyze_runs((), store, Analysis(), arms=arms, into=entry, question="levers")
    assert cli("runs", "export", "cmp", "-o", path)[0] == 0
    code, out, _ = cli("analyze", path, "--json", results=tmp_path / "elsewhere")
    assert (code, json.loads(out)["question"]) == (0, "levers")


@pytest.mark.slow
def test_the_first_stage_of_a_comparison_stays_when_it_is_analyzed_again_or_exported(cli, store, make_run, tmp_path):
    entry, path = store.create("compare", "recipe", name="cmp"), tmp_path / "cmp.zip"
    arms = {name: [make_run(name, name=f"{name}-{seed}", seed=seed) for seed in range(4)] for name in ARMS}
    report = analyze_runs((), store, Analysis(), arms=arms, into=entry, first=2)
    assert cli("runs", "export", "cmp", "-o", path)[0] == 0
    for source, results in ((entry.id, None), (path, tmp_path / "elsewhere")):
        (found,) = json.loads(cli("analyze", source, "--json", results=results)[1])["comparisons"]
        assert (found["first_stage"], found["launches"]) == (2, 4)
        assert tuple(found["ci95"]) == report.record().comparisons[0].ci95


def test_a_misspelt_question_is_refused_before_anything_is_merged(cli, launches, store):
    runs = launches("a", 2)
    code, _, err = cli("analyze", *runs, "--question", "sychn")
    assert (code, "Did you mean 'sync'?" in err) == (2, True)
    assert list(store.root.glob("*/merged_metrics.*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_one_arm_of_several_is_the_baseline(cli, compared, launches, tmp_path, arm):
    whole, part = tmp_path / "cmp.zip", tmp_path / "part.zip"
    assert (
        cli("runs", "export", "cmp", "-o", whole)[0] == cli("runs", "export", "cmp", "--arm", arm, "-o", part)[0] == 0
    )
    now = launches("now-", 2, policy="partition")
    code, _, err = cli("analyze", *now, "--against", whole)
    assert (code, "holds the arms static, partition" in err) == (2, True)
    code, _, err = cli("analyze", *now, "--against", whole, "--arm", "partitoin")
    assert (code, "Did you mean 'partition'?" in err) == (2, True)
    named = [
        json.loads(cli("analyze", *now, "--against", *options, "--json")[1])["comparison"]
        for options in ((whole, "--arm", arm), (part,))
    ]
    assert named[0]["speedup"] == named[1]["speedup"]


@pytest.mark.slow
def test_a_comparison_of_today_against_a_stored_arm(cli, store, compared, launches, tmp_path):
    base = tmp_path / "base.zip"
    assert cli("runs", "export", *launches("old-", 2), "-o", base)[0] == 0
    found = json.loads(cli("analyze", "cmp", "--against", base, "--json")[1])
    assert [(item["baseline"], item["candidate"]) for item in found["comparisons"]] == [("base", arm) for arm in ARMS]
    assert found["comparison"]["id"] != compared.id


@pytest.mark.slow
@pytest.mark.parametrize("label", ARMS)
def test_a_file_named_as_a_candidate_gets_another_label(cli, stored, launches, label):
    base = stored(f"{label}.zip", policy=label)
    found = json.loads(cli("analyze", *launches("ci-", policy=label), "--against", base, "--json")[1])
    assert [arm["name"] for arm in found["arms"]] == [f"{label} (stored)", label]


def test_a_run_against_itself_is_refused(cli, store, launches, tmp_path):
    names = launches("a", 2)
    assert cli("runs", "export", *names, "-o", tmp_path / "a.zip")[0] == 0
    code, _, err = cli("analyze", *names, "--against", tmp_path / "a.zip")
    assert (code, "which is to be compared with it" in err) == (2, True)


@pytest.mark.slow
def test_runs_of_several_arms_are_no_baseline(cli, store, launches, tmp_path):
    path, one = tmp_path / "both.zip", tmp_path / "one.zip"
    code, out, _ = cli("runs", "export", *launches("a", 2), *launches("b", 2, policy="partition"), "-o", path)
    assert (code, out.splitlines()[-1]) == (0, f"next  dynbench analyze {path}")
    assert cli("runs", "export", "a0", "a1", "-o", one)[1].endswith(f"next  dynbench analyze RUN... --against {one}\n")
    code, _, err = cli("analyze", *launches("c", 2), "--against", path)
    assert (code, "their configurations differ" in err) == (2, True)
    assert cli("analyze", path)[0] == 0
    code, _, err = cli("analyze", "c0", path)
    assert (code, "--against FILE" in err) == (2, True)


@pytest.mark.slow
def test_probes_go_along(cli, store, make_run, tmp_path):
    probe = make_probe(store, predicted_speedup={"partition": 1.5}, global_batch=16)
    plain = make_run("static", name="plain")
    probed = make_run("partition", name="probed-1", overrides=(f"probe.run={probe.id}",))
    known = json.loads(cli("analyze", plain.id, probed.id, "--json")[1])["comparison"]
    assert known["predicted_speedup"] == 1.5
    path = tmp_path / "all.zip"
    assert cli("runs", "export", plain.id, probed.id, "-o", path)[0] == 0
    found = json.loads(cli("analyze", path, "--json", results=tmp_path / "elsewhere")[1])["comparison"]
    assert found["predicted_speedup"] == 1.5


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


def test_waiting_is_told_from_transfer_of_exported_runs_too(cli, make_run, tmp_path):
    run = make_run("static", name="called", extra={"comm_ms": 3.0, "hidden_comm_ms": 0.0, "collectives": 1})
    for rank in range(2):
        with CallWriter(run.calls_file(rank)) as writer:
            for step in range(50):
                start = step * 10**9 + rank * 10**6
                writer.write(step, [Call("all_reduce", -1, step, 8, start, step * 10**9 + 3 * 10**6)])
    path = tmp_path / "called.zip"
    assert cli("runs", "export", run.id, "-o", path)[0] == 0
    there, here = (json.loads(cli("analyze", ref, "--json")[1])["runs"][0]["summary"] for ref in (path, run.id))
    assert there["by_operation"] == here["by_operation"] != []


@pytest.mark.parametrize("status", ["running", "completed"])
def test_what_is_not_over_or_has_no_rows_is_not_exported(cli, store, make_run, tmp_path, status):
    run = make_run("static", name="one", status=status)
    if status == "completed":
        shutil.rmtree(run.ranks_dir)
    code, _, err = cli("runs", "export", "one", "-o", tmp_path / "one.zip")
    assert (code, "one" in err) == (2, True)
    assert not (tmp_path / "one.zip").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../b.zip", "b.zip"])
def test_a_comparison_whose_runs_are_gone_says_what_is_left_to_do(cli, store, compared, name):
    shutil.rmtree(store.resolve("static-0").path)
    for arguments in (("analyze", "cmp"), ("runs", "export", "cmp", "-o", name)):
        code, _, err = cli(*arguments)
        assert (code, "dynbench report" in err, "is not here" in err) == (2, True, True)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("base.zip", "base"),
        ("last week (1).zip", "last-week-1"),
        ("..-.v1.2_rc.zip", "v1.2_rc"),
        ("基线.zip", "stored"),
        ("基线 b.zip", "b"),
        ("\x1b[31mred.zip", "31mred"),
        (f"{'x' * 99}.zip", "x" * 64),
    ],
)
def test_a_file_of_any_name_has_a_label_that_runs_may_have(name: str, label: str) -> None:
    assert label_of(Path("folder") / name) == label and is_name(label)
