"""Any arm against any arm, as `dynbench analyze` shows it: on the terminal, in the folder, under --json."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("undrawn")
POLICIES = ("static", "partition", "prefix")


@pytest.fixture
def three(make_run):
    """Names of two launches of three arms each, in ABC CBA order."""
    runs = {
        (policy, seed): make_run(policy, name=f"{policy}-{seed}", seed=seed)
        for seed in (0, 1)
        for policy in (POLICIES if seed == 0 else POLICIES[::-1])
    }
    return [runs[policy, seed].name for policy in POLICIES for seed in (0, 1)]


@pytest.mark.slow
def test_three_arms_have_a_table_of_who_beats_whom(cli, three):
    code, out, _ = cli("analyze", *three)
    assert code == 0
    assert out.index("question:") < out.index("who beats whom") < out.index("figures  ")
    assert "hold jointly (Holm) for the 2 with static, and the 1 others" in out
    assert "intervals, on which verdicts rest, hold jointly for 2 arms" in out
    assert "who beats whom" not in cli("analyze", *three, "--quiet")[1]


@pytest.mark.slow
def test_two_arms_have_none(cli, three):
    assert "who beats whom" not in cli("analyze", *three[:4])[1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "md"])
def test_a_table_that_a_program_reads_has_stdout_for_itself(cli, three, form):
    _, plain, _ = cli("analyze", *three[:4], "--format", form)
    _, out, err = cli("analyze", *three, "--format", form)
    assert (out.count("told apart"), err.count("told apart")) == (0, 1)
    assert out.splitlines()[0].count("static") == plain.splitlines()[0].count("static")


@pytest.mark.slow
def test_the_folder_and_json_hold_every_pair(cli, store, three):
    found = json.loads(cli("analyze", *three, "--json")[1])
    named = [(pair["baseline"], pair["candidate"]) for pair in found["pairs"]]
    assert named == [("static", "partition"), ("static", "prefix"), ("partition", "prefix")]
    for pair, known in zip(found["pairs"], found["comparisons"], strict=False):
        assert {key: pair[key] for key in known} == known
    assert {pair["p_holm"] is None for pair in found["pairs"]} == {False}
    assert [pair["judged_together"] for pair in found["pairs"]] == [2, 2, 1]
    folder = store.resolve("@latest").path
    assert json.loads((folder / "comparison.json").read_text())["pairs"] == found["pairs"]
    page = (folder / "summary.md").read_text()
    assert page.index("**Who beats whom**") < page.index("## Checks")
