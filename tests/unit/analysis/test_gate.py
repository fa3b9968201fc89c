"""`--fail-on`: which results end `analyze` with exit code 6, and what it says of those that it cannot judge."""

import json

import pytest
from compared import compared

from dynbench.analysis import gate
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.gate import CONDITIONS, VERDICTS, read_conditions
from dynbench.analysis.verdict import Verdict
from dynbench.cli.main import main
from dynbench.errors import GateFailed, UsageError

LOSS = Finding("fail", "partition: global loss differs by up to 0.05", "0.001", "h", id="loss_parity")
NAN = Finding("fail", "partition-1: the loss is not finite in 3 of 50 steps", "a finite loss", "h", id="nan_loss")
DROPOUT = Finding(
    "info", "partition: global loss differs by up to 0.05", "0.001 with dropout off", "h", id="loss_parity"
)
DRIFT = Finding("warn", "runA: step time changes", "10 %", "h", id="drift")


def judge(condition, items, findings):
    gate.judge([condition] if isinstance(condition, str) else condition, False, items, findings, {})


def item(verdict, level="step", question="schedule"):
    reason = "partition is 0.850 times as fast as static; 95 % interval of the speed-up [0.840, 0.860]"
    return compared(verdict=verdict, reason=reason, level=level, question=question)


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("condition", VERDICTS)
def test_a_verdict_meets_its_own_condition_and_no_other(condition, verdict):
    if VERDICTS[condition] is not verdict:
        judge(condition, [item(verdict)], [])
        return
    with pytest.raises(GateFailed) as failed:
        judge(condition, [item(Verdict.INCOMPARABLE), item(verdict)], [])
    assert failed.value.message.startswith(f"--fail-on {condition}: partition is {verdict}: ")
    assert "[0.840, 0.860]" in failed.value.message
    assert (failed.value.exit_code, "\n" in failed.value.message) == (6, False)


@pytest.mark.parametrize(
    ("findings", "met"),
    [
        ([], {}),
        ([LOSS], {"different-loss", "findings"}),
        ([NAN], {"different-loss", "findings"}),
        ([DROPOUT], {}),
        ([DRIFT], {"findings"}),
    ],
)
@pytest.mark.parametrize("condition", ["different-loss", "findings"])
def test_findings_meet_the_conditions_about_them(condition, findings, met, caplog):
    if condition in met:
        with pytest.raises(GateFailed, match=f"--fail-on {condition}: "):
            judge(condition, [item("SAME")], findings)
    else:
        judge(condition, [item("SAME")], findings)
    assert ("not met by partition: global loss differs" in caplog.text) == (
        condition == "different-loss" and DROPOUT in findings
    )


def test_several_conditions_are_all_named():
    with pytest.raises(GateFailed) as failed:
        judge(CONDITIONS, [item("SLOWER"), item("AMBIGUOUS")], [LOSS])
    for condition in ("slower", "ambiguous", "different-loss", "findings"):
        assert f"--fail-on {condition}: " in failed.value.message


@pytest.mark.parametrize("condition", [name for name in CONDITIONS if name not in ("estimate", "findings")])
def test_what_cannot_be_judged_is_told(condition, caplog):
    judge(condition, [item("ESTIMATE", level="stream")], [])
    said = "losses are compared at level step only" if condition == "different-loss" else "is an ESTIMATE"
    assert f"--fail-on {condition}: partition against static" in caplog.text
    assert said in caplog.text


def test_losses_that_depend_on_the_plan_are_told_to_be_unjudged(caplog):
    judge("different-loss", [compared(verdict="SAME", loss_max_rel_diff=None)], [])
    assert "partition against static, its losses depend on who runs which samples (batch norm" in caplog.text
    caplog.clear()
    judge("different-loss", [compared(verdict="SAME", loss_max_rel_diff=1e-7)], [])
    assert caplog.text == ""


@pytest.mark.parametrize("condition", CONDITIONS)
def test_without_a_comparison_only_findings_can_be_judged(condition):
    if condition == "findings":
        judge(condition, [], [])
        return
    with pytest.raises(UsageError, match="nothing was compared"):
        judge(condition, [], [])


def test_conditions_are_repeated_or_listed():
    assert read_conditions(["different_loss, slower", "AMBIGUOUS"]) == ("slower", "ambiguous", "different-loss")
    assert read_conditions([]) == ()


@pytest.mark.parametrize("typed", ["slow", "slower,,same", "incomparable", ""])
def test_unknown_conditions_are_refused_before_anything_is_read(typed, tmp_path, capsys):
    for command in ("analyze", "compare"):
        assert main([command, "nothing", "--fail-on", typed, "--results", str(tmp_path / "none")]) == 2
        err = capsys.readouterr().err
        assert "--fail-on '" in err and "no such condition" in err and "There are: faster, slower, same" in err


@pytest.fixture
def arms(make_run, monkeypatch):
    """Four launches of two arms, the second one slower by the factor."""

    monkeypatch.setattr("dynbench.analysis.analyze.draw_figures", lambda *_: [])

    def make(factor, **fields):
        for seed in range(4):
            make_run("static", name=f"a{seed}", seed=seed, noise=0.002)
            make_run("partition", name=f"b{seed}", seed=seed, noise=0.002, slowdown=factor, **fields)
        return [f"{arm}{seed}" for seed in range(4) for arm in "ab"]

    return make


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("factor", "fields", "conditions", "met"),
    [
        (3.0, {}, "slower", "slower: partition is SLOWER"),
        (3.0, {}, "ambiguous,different-loss,faster", None),
        (1.0, {}, "faster", "faster: partition is FASTER"),
        (1.0, {}, "slower,ambiguous,same", None),
        (1.0, {"loss_shift": 0.05}, "slower,different-loss", "different-loss: partition: global loss differs"),
        (1.0, {"loss_shift": float("nan")}, "different-loss", "different-loss: b0: the loss is not finite"),
    ],
)
def test_the_gate_of_analyze(arms, store, capsys, factor, fields, conditions, met):
    arguments = ["analyze", *arms(factor, **fields), "--fail-on", conditions, "--results", str(store.root)]
    code = main(arguments)
    shown = capsys.readouterr()
    assert code == (6 if met else 0)
    assert "real tokens per second" in shown.out
    assert f"error: --fail-on {met}" in shown.err if met else "error" not in shown.err

    assert main([*arguments, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == "analyze"
    assert len(found["comparisons"]) == 1 and len(found["runs"]) == 8 and "checks" in found
    assert found.get("error", {}).get("kind") == ("gate" if met else None)


def test_a_forced_comparison_has_no_verdict_to_fail_on(store, capsys):
    assert main(["analyze", "a", "b", "--force", "--fail-on", "slower", "--results", str(store.root)]) == 2
    assert "Leave one of them out" in capsys.readouterr().err
