"""`analyze --baseline ARM`: the same launches compared with another arm, in the folder that they have, and back."""

import json

import pytest

from dynbench.analysis.analyze import analyze_runs
from dynbench.config.schema import Analysis
from dynbench.experiment.reporting import FORMATS
from dynbench.report import LANGUAGES

pytestmark = pytest.mark.usefixtures("undrawn")
POLICIES = ("static", "partition", "prefix")


@pytest.fixture
def launches(make_run):
    """`launches("static", …)`: arm to two launches, in ABC CBA order."""

    def make(*policies, **changed):
        runs = {policy: [] for policy in policies}
        for seed in (0, 1):
            for policy in policies if seed == 0 else policies[::-1]:
                fields = {"seed": seed, **changed.get(policy, {})}
                runs[policy].append(make_run(policy, name=f"{policy}-{seed}", **fields))
        return runs

    return make


@pytest.fixture
def compared(store, launches):
    """An entry with three named arms, compared with `static`, of which there are reports."""
    entry = store.create("compare", "recipe", name="cmp")
    analyze_runs((), store, Analysis(), arms=launches(*POLICIES), into=entry)
    return entry


def against(found):
    """The arms compared, in order."""
    assert {item["baseline"] for item in found["comparisons"]} == {found["arms"][0]["name"]}
    return [found["arms"][0]["name"], *(item["candidate"] for item in found["comparisons"])]


@pytest.mark.slow
def test_runs_are_compared_with_any_of_their_arms(cli, launches):
    names = [run.name for runs in launches(*POLICIES).values() for run in runs]
    usual = json.loads(cli("analyze", *names, "--json")[1])
    code, out, _ = cli("analyze", *names, "--baseline", "prefix", "--json")
    other = json.loads(out)
    assert (code, against(usual), against(other)) == (0, [*POLICIES], ["prefix", "static", "partition"])
    assert other["comparisons"][0]["speedup"] == pytest.approx(1 / usual["comparisons"][1]["speedup"])
    assert other["comparisons"][0]["ci95"] == pytest.approx([1 / end for end in usual["comparisons"][1]["ci95"][::-1]])


@pytest.mark.slow
def test_pairs_are_the_same_under_another_baseline_and_only_what_is_judged_together_differs(cli, compared):
    def told(*options):
        found = json.loads(cli("analyze", "cmp", *options, "--json")[1])["pairs"]
        return {
            frozenset((pair["baseline"], pair["candidate"])): max(pair["speedup"], 1 / pair["speedup"])
            for pair in found
        }

    usual, other = told(), told("--baseline", "prefix")
    assert usual.keys() == other.keys()
    assert other == pytest.approx(usual)


@pytest.mark.slow
def test_a_comparison_is_turned_in_its_own_folder_and_turned_back(cli, store, compared):
    made = [(lang, form) for lang in LANGUAGES for form in FORMATS]
    for lang, form in made:
        assert cli("report", "cmp", "--lang", lang, "--format", form)[0] == 0
    entries = len(store.list())
    before = json.loads((compared.path / "comparison.json").read_text())

    def kept():
        reports = [(compared.path / f"report.{lang}.{form}").read_text() for lang, form in made]
        return json.loads((compared.path / "comparison.json").read_text()), reports

    assert cli("analyze", "cmp", "--baseline", "partition")[0] == 0
    turned, reports = kept()
    assert against(turned) == ["partition", "static", "prefix"]
    for text in reports:
        assert "static / partition" in text
        assert "partition / static" not in text
    assert cli("analyze", "cmp")[0] == 0
    assert against(kept()[0]) == ["partition", "static", "prefix"]

    assert cli("analyze", "cmp", "--baseline", "static")[0] == 0
    restored, reports = kept()
    assert against(restored) == [*POLICIES]
    assert restored["comparisons"] == before["comparisons"]
    assert all("partition / static" in text for text in reports)
    assert len(store.list()) == entries


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True], ids=["runs", "comparison"])
def test_an_arm_that_there_is_not_is_refused_with_the_nearest(cli, store, launches, named):
    runs = launches(*POLICIES)
    entry = store.create("compare", "recipe", name="cmp")
    analyze_runs((), store, Analysis(), arms=runs, into=entry)
    before = (entry.path / "comparison.json").read_bytes()
    refs = ["cmp"] if named else [run.name for arm in runs.values() for run in arm]
    code, out, err = cli("analyze", *refs, "--baseline", "partitoin")
    assert (code, out) == (2, "")
    assert "--baseline partitoin: no such arm. Did you mean 'partition'?" in err
    assert f"There are: {', '.join(POLICIES)}." in err
    assert (entry.path / "comparison.json").read_bytes() == before


@pytest.mark.slow
def test_a_file_and_a_baseline_are_refused_together(cli, compared, tmp_path):
    path = tmp_path / "base.zip"
    assert cli("runs", "export", "cmp", "--arm", "static", "-o", path)[0] == 0
    code, _, err = cli("analyze", "partition-0", "--against", path, "--baseline", "partition")
    assert (code, f"--baseline partition and --against {path} both say" in err) == (2, True)


@pytest.mark.slow
def test_what_is_compared_with_a_stored_arm_stays_so(cli, store, compared, tmp_path):
    path = tmp_path / "base.zip"
    assert cli("runs", "export", "cmp", "--arm", "static", "-o", path)[0] == 0
    assert cli("analyze", "partition-0", "partition-1", "prefix-0", "prefix-1", "--against", path)[0] == 0
    stored = store.resolve("@latest").id
    code, _, err = cli("analyze", stored, "--baseline", "prefix")
    assert (code, "the arms are compared with base, which comes from an exported file" in err) == (2, True)
    code, out, _ = cli("analyze", stored, "--baseline", "base", "--json")
    assert (code, against(json.loads(out))) == (0, ["base", "partition", "prefix"])


@pytest.mark.slow
def test_the_arms_of_an_exported_comparison_may_be_turned(cli, compared, tmp_path):
    path = tmp_path / "cmp.zip"
    assert cli("runs", "export", "cmp", "-o", path)[0] == 0
    code, out, _ = cli("analyze", path, "--baseline", "prefix", "--json")
    assert (code, against(json.loads(out))) == (0, ["prefix", "static", "partition"])


@pytest.mark.slow
def test_a_question_and_force_hold_for_the_other_baseline(cli, launches):
    runs = launches("static", "partition", partition={"fingerprint": "data-2"})
    names = [run.name for arm in runs.values() for run in arm]
    given = ("--baseline", "partition", "--question", "levers")
    assert cli("analyze", *names, *given)[0] == 5
    code, out, _ = cli("analyze", *names, *given, "--force", "--json")
    found = json.loads(out)
    assert (code, found["question"], against(found)) == (0, "levers", ["partition", "static"])
    assert found["comparison"]["verdict"] == "INCOMPARABLE"
    assert (found["pairs"][0]["p_holm"], found["pairs"][0]["faster"]) == (None, None)


def test_a_single_arm_is_its_own_baseline(cli, launches):
    names = [run.name for run in launches("static")["static"]]
    assert cli("analyze", *names, "--baseline", "static")[0] == 0
