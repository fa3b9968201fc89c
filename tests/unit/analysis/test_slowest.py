"""A slow machine is told from data that gives a rank more to do."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from dynbench.analysis.arms import named_arms
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence, Finding
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.pace import slowest_ranks
from dynbench.config.schema import Analysis
from dynbench.runs.run import Run

Make = Callable[..., Run]


def blamed(*launches: MergedRun) -> list[Finding]:
    found = run_checks(Evidence(named_arms({"arm": launches}), [], Analysis()))
    return [finding for finding in found if finding.id == "slowest_rank"]


def launches(make_run: Make, policy: str, count: int = 3, **fields: object) -> list[MergedRun]:
    return [merge_run(make_run(policy, **fields)) for _ in range(count)]


@pytest.mark.parametrize(
    ("policy", "ranks", "servers"),
    [("static", 2, 0), ("static", 4, 4), ("prefix", 2, 0), ("prefix", 4, 0), ("partition", 4, 0)],
)
def test_a_rank_that_is_always_slow_is_caught_and_named(make_run: Make, policy: str, ranks: int, servers: int) -> None:
    fields = {"world_size": ranks, "servers": servers, "slow": {1: 1.3}}
    (found,) = blamed(*launches(make_run, policy, **fields))

    assert (found.severity, found.values["rank"]) == ("warn", 1 + servers)
    assert found.values["pace"] == pytest.approx(1.3, rel=0.03)
    assert found.values["share"] > found.values["equal"] == 1 / ranks
    assert "check that rank's machine" in found.hint


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "partition"])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_equal_ranks_are_not_blamed(make_run: Make, policy: str, noise: float) -> None:
    """None of 60 launches, 240 ranks: at most 1.2 % of ranks at a confidence of 95 %, and far fewer by the limit."""
    for seed in range(15):
        assert blamed(merge_run(make_run(policy, world_size=4, noise=noise, seed=seed))) == []


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("attention_ms", [0.0, 0.002])
def test_a_rank_that_always_gets_the_longest_samples_is_not_blamed(
    make_run: Make, ranks: int, attention_ms: float
) -> None:
    runs = launches(make_run, "sorted_equal", world_size=ranks, attention_ms=attention_ms)

    assert slowest_ranks(runs[0])["shares"][0] > 0.9
    assert blamed(*runs) == []


@pytest.mark.slow
def test_where_no_rank_has_work_like_the_others_none_is_blamed_until_an_arm_tells(make_run: Make) -> None:
    """Of two ranks under `partition`, one always has few long samples, the other many short ones."""
    partition, static = (launches(make_run, policy, slow={1: 1.3}) for policy in ("partition", "static"))
    together = run_checks(Evidence(named_arms({"partition": partition, "static": static}), [], Analysis()))

    assert blamed(*partition) == []
    assert [item.values["arm"] for item in together if item.id == "slowest_rank"] == ["static"]


def test_a_rank_that_was_asked_to_be_slow_is_information(make_run: Make) -> None:
    asked = launches(make_run, "static", slow={1: 1.3}, overrides=("launch.slowdown={1: 1.3}",))
    (found,) = blamed(*asked)

    assert found.severity == "info"
    assert "launch.slowdown asks for it" in found.hint


@pytest.mark.slow
def test_a_rank_is_named_once_over_all_arms(make_run: Make) -> None:
    arms = {name: launches(make_run, name, slow={0: 1.4}) for name in ("static", "partition")}
    found = run_checks(Evidence(named_arms(arms), [], Analysis()))

    assert [finding.values["arm"] for finding in found if finding.id == "slowest_rank"] == ["static"]


def test_few_steps_and_missing_ranks_are_not_judged(make_run: Make) -> None:
    assert blamed(merge_run(make_run("partition", steps=10, slow={1: 2.0}))) == []
    assert blamed(merge_run(make_run("partition", world_size=4, ranks_written=3, slow={1: 2.0}))) == []


def test_shares_count_ties_in_part_and_know_no_rank_without_rows(make_run: Make) -> None:
    run = make_run("partition", world_size=3, ranks_written=2, steps=4, warmup_steps=0)
    busy = {0: [5.0, 5.0, 5.0, 5.0], 1: [5.0, 9.0, 1.0, 1.0]}
    for rank, compute in busy.items():
        rows = pl.read_csv(run.rank_file(rank))
        rows.with_columns(compute_ms=pl.Series(compute), plan_ms=0.5, data_ms=1.0).write_csv(run.rank_file(rank))

    assert slowest_ranks(merge_run(run)) == {"distinct": 2, "shares": [0.625, 0.375, None], "equal": 0.5}


def test_a_single_worker_waits_for_nobody(make_run: Make) -> None:
    assert slowest_ranks(merge_run(make_run("static", world_size=1))) is None
