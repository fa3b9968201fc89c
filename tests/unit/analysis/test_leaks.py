"""Arms whose samples see each other: their speed is told, their losses are held against those of nobody else."""

from __future__ import annotations

import pytest
from compared import compare_arms

from dynbench.analysis.arms import named_arms
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.levels import work_level
from dynbench.analysis.merge import merge_run
from dynbench.analysis.page import verdict_lines
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Analysis

SEEN = {"foreign_gradient": 0.0213, "output_difference": 0.1, "gradient_difference": 0.3, "tolerance": 1e-5}
LEAKS = {"packed_rows": {**SEEN, "leak": "in fp32, the gradient … is 0.0213, not 0"}}
SHIFTS = {"packed_rows": {**SEEN, "foreign_gradient": 0.0, "leak": "in fp32, outputs differ"}}
HOLDS = {"packed_rows": {**SEEN, "foreign_gradient": 0.0, "leak": None}}
FLATTENED = ("workload.layout=flattened",)


@pytest.fixture
def merged(make_run):
    return lambda *args, **kwargs: merge_run(make_run(*args, **kwargs))


def flattened(merged, env, policy="partition", **more):
    return merged(policy, env=env, overrides=FLATTENED, **more)


def compared(merged, env, **more):
    runs = {"static": [merged("static", seed=seed) for seed in range(2)]}
    runs["theirs"] = [flattened(merged, env, seed=seed, **more) for seed in range(2)]
    arms = named_arms(runs)
    (found,) = compare_arms(arms, Analysis())
    return found, run_checks(Evidence(arms, [found], Analysis()))


@pytest.mark.parametrize("env", [LEAKS, SHIFTS, {}], ids=["sees", "differs", "not looked at"])
def test_losses_are_not_held_against_each_other(merged, env):
    """Not even equal ones: nothing promises that they are."""
    found, findings = compared(merged, env)
    assert (found.level, found.loss_max_rel_diff, found.record().same_work) == ("tokens", None, False)
    assert found.recovery is None or not env
    assert ("eval.loss" in found.improvement_percent) == (not env), "its evaluations are of something else"
    assert "throughput_tokens_per_s.mean" in found.improvement_percent
    assert "loss_parity" not in {finding.id for finding in findings}
    assert found.verdict in (Verdict.FASTER, Verdict.AMBIGUOUS, Verdict.SLOWER, Verdict.SAME)


def test_what_was_seen_is_said_with_the_verdict_and_found_by_a_check(merged):
    found, findings = compared(merged, LEAKS)
    assert found.record().leak == "in theirs samples see each other (gradient 2e-02)"
    assert found.record().leak in found.reason and found.record().leak in verdict_lines([found])[0]
    (finding,) = (finding for finding in findings if finding.id == "samples_see_each_other")
    assert finding.severity == "warn" and "is 0.021" in finding.seen and "--layout packed" in finding.hint
    differing, _ = compared(merged, SHIFTS)
    assert differing.record().leak == "in theirs a row gives what padded samples do not (off by 3e-01)"


def test_where_attention_keeps_samples_apart_it_is_an_arm_like_any_other(merged):
    found, findings = compared(merged, HOLDS)
    assert (found.level, found.record().leak) == ("step", None) and found.loss_max_rel_diff is not None
    assert "samples_see_each_other" not in {finding.id for finding in findings}
    wrong, findings = compared(merged, HOLDS, loss_shift=0.05)
    assert wrong.loss_max_rel_diff > 0.01 and "loss_parity" in {finding.id for finding in findings}


def test_equal_arms_that_see_alike_are_compared_in_every_step(merged):
    one, other = (flattened(merged, LEAKS) for _ in range(2))
    (found,) = compare_arms(named_arms({"one": [one], "other": [other]}), Analysis())
    assert found.level == "step" and "eval.loss" in found.improvement_percent
    assert work_level(one, other) == "step"
    assert work_level(one, flattened(merged, LEAKS, "static")) == "tokens"
    assert work_level(one, merged("partition", overrides=("workload.layout=packed",))) == "tokens"
