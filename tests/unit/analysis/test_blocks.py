"""A run's time is the time that passed, not the sum of its steps' maxima."""

import csv

import numpy as np
import polars as pl
import pytest
from compared import compare_arms

from dynbench.analysis.arms import named_arms, seconds_per_unit
from dynbench.analysis.measure import lookup
from dynbench.analysis.merge import merge_run
from dynbench.analysis.steps import PHASES, block_times, number_blocks
from dynbench.analysis.summary import summary_of
from dynbench.analysis.waste import recovery
from dynbench.config.schema import Analysis


def rewrite(run, step_ms):
    """Gives every row the step time `step_ms(step, rank)`, ms."""
    for path in run.ranks_dir.glob("rank_*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row["step_time_ms"] = repr(float(step_ms(int(row["step"]), int(row["rank"]))))
        with path.open("w") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return run


def alternating(step, rank):
    """Two ranks that end their steps in turn 10 ms late: every step is 110 ms on one of them, 100 ms pass per step."""
    return 110.0 if step % 2 == rank else 90.0


def times(run):
    blocks = merge_run(run).blocks
    return blocks["first_step"].to_list(), blocks["steps"].to_list(), blocks["time_ms"].to_list()


@pytest.fixture
def quiet(make_run):
    """A run without evaluations: 10 measured steps after 2 of warm-up."""

    def make(*args, **fields):
        run = make_run(*args, **({"steps": 10, "warmup_steps": 2} | fields))
        (run.path / "eval.csv").unlink()
        return run

    return make


def test_the_total_of_alternating_ranks_is_the_time_that_passed(quiet):
    merged = merge_run(rewrite(quiet(), alternating))
    summary = summary_of(merged)
    assert lookup(summary, "step_time_ms.total") == merged.time_ms == pytest.approx(1000)
    assert lookup(summary, "step_time_ms.mean") == pytest.approx(110)
    tokens, samples, waited = (merged.measured[name].sum() for name in ("real_tokens", "global_batch", "wait_ms_mean"))
    assert lookup(summary, "throughput_tokens_per_s.mean") == pytest.approx(tokens)
    assert lookup(summary, "throughput_samples_per_s.mean") == pytest.approx(samples)
    assert lookup(summary, "wait_fraction") == pytest.approx(waited / 1000)
    assert lookup(summary, "plan_fraction") == pytest.approx(merged.measured["plan_ms_mean"].sum() / 1000)
    assert seconds_per_unit(merged) == pytest.approx(1 / tokens)


def test_verdict_and_recovery_do_not_see_how_ranks_take_turns(quiet):
    even = merge_run(rewrite(quiet(), lambda *_: 100.0))
    skewed = merge_run(rewrite(quiet("partition"), alternating))
    (found,) = compare_arms(named_arms({"even": [even], "skewed": [skewed]}), Analysis())
    assert found.speedup.estimate == pytest.approx(1)
    assert found.recovery.share == pytest.approx(0, abs=1e-9)
    assert recovery([(skewed, even)]).share == pytest.approx(0, abs=1e-9)


def test_the_phases_of_alternating_ranks_add_up_to_the_time_that_passed(quiet):
    merged = merge_run(rewrite(quiet(), alternating))
    assert merged.measured.select(pl.sum_horizontal(f"{phase}_mean" for phase in PHASES)).sum().item() == pytest.approx(
        merged.time_ms
    )


def test_the_slowest_rank_over_the_block_counts(quiet):
    run = rewrite(quiet(world_size=3, global_batch=18), lambda step, rank: 100 + rank * (1 if step < 7 else -1))
    assert times(run) == ([2], [10], [pytest.approx(1000)])
    run = rewrite(quiet(world_size=3, global_batch=18), lambda step, rank: 100 + rank)
    assert times(run) == ([2], [10], [pytest.approx(1020)])


def test_an_incomplete_step_parts_two_blocks(quiet):
    run = rewrite(quiet(), alternating)
    path = run.rank_file(1)
    lines = path.read_text().splitlines(keepends=True)
    lines[1 + 5] = "5,torn\n"
    path.write_text("".join(lines))
    assert times(run) == ([2, 6], [3, 6], [pytest.approx(110 + 90 + 110), pytest.approx(600)])


def test_a_rank_that_ended_early_ends_the_block(quiet):
    run = rewrite(quiet(), alternating)
    path = run.rank_file(0)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: 1 + 7]))
    assert times(run) == ([2], [5], [pytest.approx(3 * 110 + 2 * 90)])


def test_ranks_without_rows_leave_the_time_of_the_others(quiet):
    run = rewrite(quiet(world_size=3, global_batch=18, ranks_written=2), alternating)
    assert times(run) == ([2], [10], [pytest.approx(1000)])


def test_clocks_begin_anew_after_an_evaluation(quiet):
    run = rewrite(quiet(), alternating)
    (run.path / "eval.csv").write_text("step,loss,accuracy,samples\n1,0.6,0.7,64\n4,0.6,0.7,64\n11,0.6,0.7,64\n")
    assert times(run) == ([2, 5], [3, 7], [pytest.approx(310), pytest.approx(4 * 110 + 3 * 90)])


def test_clocks_begin_anew_wherever_the_evaluations_are_written(quiet):
    first, second = (rewrite(quiet(), alternating) for _ in range(2))
    (first.path / "eval.csv").write_text("step,loss,accuracy,samples\n4,0.6,0.7,64\n")
    for run, lost in ((first, 1), (second, 0)):
        run.rank_file(lost).unlink()
    for here, elsewhere in ((first, second), (second, first)):
        assert merge_run(here, [elsewhere]).blocks["first_step"].to_list() == [2, 5]


@pytest.mark.parametrize("text", ["", "step,loss\n", "epoch,loss\n1,0.5\n", "step,loss\nfirst,0.5\n"])
def test_an_evaluation_file_without_steps_parts_nothing(quiet, text):
    run = rewrite(quiet(), alternating)
    (run.path / "eval.csv").write_text(text)
    assert times(run)[:2] == ([2], [10])


def test_a_run_that_never_left_the_warm_up_has_no_time(quiet):
    merged = merge_run(quiet(steps_written=2))
    assert (merged.blocks.height, merged.time_ms) == (0, 0.0)
    assert lookup(summary_of(merged), "step_time_ms.total") is None


def test_virtual_ranks_have_steps_of_one_length_so_the_total_is_the_sum_of_the_maxima(quiet):
    run = rewrite(
        quiet(world_size=4, overrides=("launch.launcher=virtual", "launch.world_size=4")),
        lambda step, _: 90 + step * step,
    )
    merged = merge_run(run)
    assert merged.time_ms == pytest.approx(merged.measured["step_time_max_ms"].sum())


def test_any_runs_time_is_that_of_a_plain_computation():
    rng = np.random.default_rng(3)
    numbers = np.flatnonzero(rng.random(60) < 0.8)
    measured = numbers >= 6
    steps = number_blocks(pl.DataFrame({"step": numbers, "warmup": ~measured}), restarts=(20, 41))
    ranks = [pl.DataFrame({"step": np.arange(60), "step_time_ms": rng.gamma(9, 9, 60)}) for _ in range(3)]
    groups = [[]]
    for number in numbers[measured]:
        if groups[-1] and (number != groups[-1][-1] + 1 or groups[-1][-1] in (20, 41)):
            groups.append([])
        groups[-1].append(int(number))
    expected = [max(rows["step_time_ms"].gather(group).sum() for rows in ranks) for group in groups]
    found = block_times(ranks, steps)
    assert found["steps"].to_list() == [len(group) for group in groups]
    assert found["time_ms"].to_list() == pytest.approx(expected)
