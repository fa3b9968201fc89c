import json

import pytest

from dynbench.analysis.arms import group_runs, named_arms, pair_launches
from dynbench.analysis.merge import merge_run
from dynbench.errors import UsageError


@pytest.fixture
def merged(make_run):
    return lambda *args, **kwargs: merge_run(make_run(*args, **kwargs))


def ids(runs):
    return [run.run.id for run in runs]


def test_runs_that_differ_in_seed_only_are_launches_of_one_arm(merged):
    a0, b0, b1, a1 = merged("static"), merged("partition"), merged("partition", seed=1), merged("static", seed=1)
    arms = group_runs([b1, a0, b0, a1])
    assert [arm.label for arm in arms] == ["partition", "static"]
    assert ids(arms[0].runs) == ids([b0, b1])
    assert ids(arms[1].runs) == ids([a0, a1])


def test_the_analysis_settings_do_not_make_another_arm(merged):
    assert len(group_runs([merged("static"), merged("static", overrides=("analysis.noise_threshold=0.1",))])) == 1


def test_arms_of_one_policy_are_told_apart_by_what_differs(merged):
    runs = [merged("partition", overrides=(f"schedule.cost_type={cost}",)) for cost in ("tokens", "attention")]
    assert [arm.label for arm in group_runs(runs)] == [
        "partition (cost_type=tokens)",
        "partition (cost_type=attention)",
    ]


def test_layouts_of_one_policy_have_names_of_their_own(merged):
    runs = [merged("partition"), merged("partition", overrides=("workload.layout=packed",))]
    runs.append(merged("static", overrides=("workload.layout=packed",)))
    assert [arm.label for arm in group_runs(runs)] == ["partition", "packed", "static packed"]


def test_a_single_named_run_lends_its_name_to_the_arm(merged):
    runs = [merged("partition", "one"), merged("partition", "two", overrides=("schedule.cost_type=attention",))]
    assert [arm.label for arm in group_runs(runs)] == ["one", "two"]


def test_launches_in_abba_order_pair_neighbours(merged):
    a0, b0, b1, a1 = merged("static"), merged("partition"), merged("partition"), merged("static")
    base, candidate = group_runs([a0, a1, b1, b0])
    pairs = pair_launches(base, candidate).pairs
    assert [ids(pair) for pair in pairs] == [ids((a0, b0)), ids((a1, b1))]


def test_launches_pair_within_their_seed(merged):
    a0, a1 = merged("static", seed=0), merged("static", seed=1)
    b1, b0 = merged("partition", seed=1), merged("partition", seed=0)
    pairs = pair_launches(*group_runs([a0, a1, b0, b1])).pairs
    assert [ids(pair) for pair in pairs] == [ids((a0, b0)), ids((a1, b1))]


def test_named_arms_keep_equal_configurations_apart(merged):
    a, b = merged("static"), merged("static")
    arms = named_arms({"first": [a], "second": [b]})
    assert [arm.label for arm in arms] == ["first", "second"]


def test_an_arm_without_a_run_is_refused(merged):
    with pytest.raises(UsageError, match="arm 'empty' has no run"):
        named_arms({"full": [merged("static")], "empty": []})


def test_tables_show_whole_launches_where_there_are_some(merged):
    whole, broken = merged("static"), merged("static", status="oom", steps_written=20)
    (arm,) = group_runs([whole, broken])
    assert ids(arm.whole) == ids([whole])
    (arm,) = group_runs([broken])
    assert ids(arm.whole) == ids([broken])


def test_a_data_file_that_changed_between_runs_makes_two_arms(merged):
    def of(data, seed=0):
        run = merged("static", seed=seed).run
        run.env_file.write_text(json.dumps({**run.env(), "data": {"fingerprint": data}}))
        return merge_run(run)

    before, again, after, other_subset = of("one"), of("one"), of("two"), of("three", seed=1)
    arms = group_runs([before, after, again, other_subset])
    assert [ids(arm.runs) for arm in arms] == [ids([before, again, other_subset]), ids([after])]
