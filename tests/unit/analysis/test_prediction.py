import pytest

from dynbench.analysis.merge import merge_run
from dynbench.analysis.proxy import predicted_speedup
from dynbench.runs.atomic import write_json

RECORD = {
    "device": "cpu",
    "precision": "fp32",
    "memory_limit_mb": None,
    "world_size": 2,
    "global_batch": 16,
    "pad_to_multiple_of": 1,
    "workload": {},
    "capacity": [],
    "tables": [],
    "trials": [],
    "timings": [],
    "cost_model": None,
    "memory_model": None,
    "speeds": [1.0, 1.0],
    "allreduce": None,
    "soak": None,
    "predicted_speedup": {"partition": 1.5, "prefix": 1.2, "packed": None},
    "break_even_batch": None,
}


@pytest.fixture
def launches(store, make_run):
    """`launches(record, *policies, settings=())`: merged runs that used a probe with that record."""

    def make(record, *policies, settings=()):
        probe = store.create("probe", "probe")
        if record is not None:
            write_json(probe.path / "probe.json", {"schema_version": 1, **record})
        overrides = (f"probe.run={probe.id}", *settings)
        return [merge_run(make_run(policy, overrides=overrides)) for policy in policies]

    return make


def test_the_prediction_is_relative_to_the_baselines_policy(launches):
    static, partition, prefix = launches(RECORD, "static", "partition", "prefix")
    assert predicted_speedup(static, partition) == 1.5
    assert predicted_speedup(prefix, partition) == pytest.approx(1.25)
    assert predicted_speedup(partition, static) == pytest.approx(1 / 1.5)


@pytest.mark.parametrize("record", [None, RECORD | {"world_size": 4}, RECORD | {"global_batch": 64}])
def test_a_probe_that_does_not_fit_predicts_nothing(launches, record):
    assert predicted_speedup(*launches(record, "static", "partition")) is None


def test_runs_without_a_probe_have_no_prediction(make_run):
    assert predicted_speedup(merge_run(make_run("static")), merge_run(make_run("partition"))) is None


@pytest.mark.parametrize(
    ("window", "said", "predicted"), [(8, {}, 1.6), (4, {}, None), (4, {"predicted_window": 4}, 1.6)]
)
def test_another_window_than_the_predicted_one_has_no_prediction(launches, window, said, predicted):
    record = RECORD | {"predicted_speedup": {"window": 1.6}} | said
    settings = ("schedule.policy=window", "schedule.mode=dynamic", f"schedule.window={window}")
    (static,), (planned,) = launches(record, "static"), launches(record, "partition", settings=settings)
    assert predicted_speedup(static, planned) == predicted


@pytest.mark.parametrize("micro_batches", ["2", "auto"])
def test_several_micro_batches_have_no_prediction(launches, micro_batches):
    settings = (f"schedule.micro_batches={micro_batches}",)
    (static,), (partition,) = launches(RECORD, "static"), launches(RECORD, "partition")
    (split,), (dealt,) = launches(RECORD, "static", settings=settings), launches(RECORD, "partition", settings=settings)
    assert predicted_speedup(static, dealt) is None
    assert predicted_speedup(split, partition) is None
