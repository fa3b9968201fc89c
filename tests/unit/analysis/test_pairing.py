"""Pairs lie side by side in time, whatever launch of a comparison is missing."""

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from compared import compare_arms

from dynbench.analysis.arms import Arm, group_runs, pair_launches
from dynbench.analysis.merge import merge_run
from dynbench.analysis.stats import paired_ratio
from dynbench.analysis.verdict import Verdict, decide
from dynbench.config.schema import Analysis
from dynbench.experiment.launch_plan import LaunchState, apart, plan_state

BLOCKS = 4
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SEEDS = {
    "one seed": lambda block: 0,
    "as compare": lambda block: 5 + block,
    "two seeds in turn": lambda block: block % 2,
    "two seeds, one after the other": lambda block: block // 2,
}


def launch(arm, block, seed, at, *, partial=False, rows=True, together=None):
    """A launch as pairing sees it; `at` counts launches of the session."""
    return SimpleNamespace(
        run=SimpleNamespace(id=f"{arm}{block}@{at}"),
        label=f"{arm}{block}",
        arm=arm,
        block=block,
        at=at,
        partial=partial,
        lacks=("status is failed",) if partial else (),
        measured=SimpleNamespace(height=10 if rows else 0),
        facts=SimpleNamespace(
            seed=seed,
            started=(NOON + timedelta(minutes=at)).isoformat(timespec="microseconds"),
            together=together,
        ),
    )


def session(text, seed=0):
    """`"A0 B0x B0"`: launches in order, of one seed; x marks a partial one."""
    return [launch(word[0], int(word[1]), seed, at, partial=word.endswith("x")) for at, word in enumerate(text.split())]


def pair(launches, **options):
    arms = [Arm(arm, tuple(run for run in launches if run.arm == arm)) for arm in "AB"]
    return pair_launches(*arms, **options)


def names(pairing):
    return [base.label + other.label for base, other in pairing.pairs]


def abba_order(arms: str) -> tuple[LaunchState, ...]:
    return plan_state("r", "A", apart(arms, ""), BLOCKS, dict.fromkeys(arms, 0)).launches


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("arms", ["AB", "BA", "ACB"])
@pytest.mark.parametrize("fault", ["removed", "partial", "without a measured step"])
@pytest.mark.parametrize("position", range(2 * BLOCKS))
def test_a_launch_that_is_missing_takes_its_partner_along_and_shifts_no_pair(seeds, arms, fault, position):
    order = [(at, planned) for at, planned in enumerate(abba_order(arms)) if planned.arm in "AB"]
    lost = order[position][1]
    launches = [
        launch(
            each.arm,
            each.block,
            SEEDS[seeds](each.block),
            at,
            partial=each == lost,
            rows=each != lost or fault == "partial",
        )
        for at, each in order
        if each != lost or fault != "removed"
    ]
    pairing = pair(launches)
    kept = [block for block in range(BLOCKS) if block != lost.block]
    assert names(pairing) == [f"A{block}B{block}" for block in kept]
    assert len(pairing.left_out) == (1 if fault == "removed" else 2)
    drift = [math.exp(0.05 * at) for at in range(len(arms) * BLOCKS)]
    ratio = paired_ratio(*([drift[run.at] for run in side] for side in zip(*pairing.pairs, strict=True)))
    assert decide(ratio, 0.02) not in (Verdict.FASTER, Verdict.SLOWER)


def test_compare_gives_every_block_a_seed_so_that_a_launch_made_later_finds_its_partner():
    state = plan_state("r", "A", apart("AB", ""), BLOCKS, {"A": 3, "B": 3})
    launches = [launch(each.arm, each.block, each.seed, at) for at, each in enumerate(state.launches)]
    late = launches.pop(2)
    pairing = pair([*launches, launch(late.arm, late.block, late.facts.seed, at=50)])
    assert names(pairing) == [f"A{block}B{block}" for block in range(BLOCKS)]


@pytest.mark.parametrize(
    ("launched", "pairs"),
    [
        ("A0 B0 A1 B1 A2 B2", "A0B0 A1B1 A2B2"),
        ("A0 A1 B1 A2 B2", "A1B1 A2B2"),
        ("A0 A1 B0 B1 B2 B3 A2 A3", "A0B0 A1B1 A2B2 A3B3"),
        ("A0 A1 A2 A3 B0 B1 B2 B3", "A0B0 A1B1 A2B2 A3B3"),
        ("A0x B0 B1x A1 A2 B2 B3 A3", "A2B2 A3B3"),
        ("B0 B1 A1 A2 B2 A3", "A1B1 A2B2"),
        ("A0 B0x B0", "A0B0"),
        ("A0 B0x B0 B1 A1", "A0B0 A1B1"),
        ("A0 B0x B1 A1 A2 B2 B3 A3 B0", "A1B1 A2B2 A3B3"),
        ("A0x A0 B0 B1 A1x A1", "A0B0 A1B1"),
        ("A0 A1", ""),
        ("A0 B0x", ""),
    ],
)
def test_launches_by_hand(launched, pairs):
    assert " ".join(names(pair(session(launched)))) == pairs


def test_a_break_between_two_pairs_does_not_lie_within_one():
    morning, noon = session("A0 B0 B1"), launch("A", 2, 0, at=90)
    assert names(pair([*morning, noon, launch("B", 2, 0, at=91)])) == ["A0B0", "A2B2"]


def test_left_out_launches_say_why():
    pairing = pair([*session("A0 B0x B1 A1"), launch("B", 9, 7, at=9)])
    assert names(pairing) == ["A1B1"]
    assert pairing.left_out == (
        "A0 ran beside B0, which is partial",
        "B0 is partial (status is failed)",
        "B9 has no partner with seed 7",
    )


def test_partial_launches_pair_when_forced():
    assert names(pair(session("A0 B0x"), partial=True)) == ["A0B0"]
    assert names(pair([launch("A", 0, 0, 0), launch("B", 0, 0, 1, partial=True, rows=False)], partial=True)) == []


@pytest.mark.slow
def test_drift_does_not_make_equal_arms_different_when_a_launch_is_partial(make_run):
    runs = []
    for at, each in enumerate(abba_order("AB")):
        broken = {"status": "failed", "steps_written": 20} if at == 1 else {}
        other = ("train.eval_every=5",) if each.arm == "B" else ()
        runs.append(merge_run(make_run("static", overrides=other, noise=0.0, slowdown=1 + 0.05 * at, **broken)))
    (found,) = compare_arms(group_runs(runs), Analysis())
    assert found.speedup.pairs == BLOCKS - 1
    assert found.verdict == Verdict.AMBIGUOUS
    assert found.speedup.low < 1 < found.speedup.high


def in_turns(blocks, *, lost=()):
    """Launches that A and B shared, block by block; of those in `lost` a run is gone, or partial with an x."""
    return [
        launch(arm, block, block, 2 * block, together=f"launch{block}", partial=f"{arm}{block}x" in lost)
        for block in range(blocks)
        for arm in "AB"
        if f"{arm}{block}" not in lost
    ]


def test_runs_of_one_launch_are_a_pair_whatever_their_seeds_and_order():
    launches = in_turns(3)
    assert names(pair(launches[::-1])) == ["A0B0", "A1B1", "A2B2"]


@pytest.mark.parametrize(
    ("lost", "pairs", "left_out"),
    [
        (("B1",), ["A0B0", "A2B2"], ("A1 has no partner with seed 1",)),
        (("A1",), ["A0B0", "A2B2"], ("B1 has no partner with seed 1",)),
        (("B1x",), ["A0B0", "A2B2"], ("A1 ran beside B1, which is partial", "B1 is partial (status is failed)")),
    ],
)
def test_a_run_that_is_missing_from_a_launch_shifts_no_pair(lost, pairs, left_out):
    found = pair(in_turns(3, lost=lost))
    assert names(found) == pairs
    assert found.left_out == left_out


def test_launches_apart_are_paired_beside_those_in_turns():
    """As after an arm had ended a launch that it shared."""
    later = [launch("A", 2, 0, at=20), launch("B", 2, 0, at=21)]
    other = launch("A", 0, 0, at=2, together="with C")
    found = pair([*in_turns(1), other, *later])
    assert names(found) == ["A0B0", "A2B2"]
    assert found.left_out == (), "the baseline's run beside another arm lacks nothing"


def test_arms_that_never_shared_a_launch_are_paired_in_time():
    apart = [
        launch(arm, block, 0, 2 * block + (arm == "B"), together=f"{arm}{block}") for block in (0, 1) for arm in "AB"
    ]
    assert names(pair(apart)) == ["A0B0", "A1B1"]


def test_arms_of_one_configuration_taken_for_one_use_every_run_once():
    """As where the runs of an A/A comparison are named one by one."""
    runs = in_turns(2)
    twins = [launch("A", block, block, 2 * block + 1, together=f"launch{block}") for block in (0, 1)]
    for found in (
        pair([*runs, *twins]),
        pair_launches(*(Arm(arm, tuple(r for r in [*runs, *twins] if r.arm == arm)) for arm in "BA")),
    ):
        used = [run.run.id for couple in found.pairs for run in couple]
        assert len(found.pairs) == 2 and len(set(used)) == 4
