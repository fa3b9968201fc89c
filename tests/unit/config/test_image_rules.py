"""What images are trained under is allowed, and the rest is refused by name."""

from __future__ import annotations

import pytest

from dynbench.config.image_rules import image_warnings
from dynbench.config.layers import load_config
from dynbench.errors import ConfigError
from dynbench.plugins import DATASETS, POLICIES, WORKLOADS

IMAGES = "workload.name=image_classification"


def problems(*given: str) -> tuple[str, ...]:
    try:
        load_config(None, given)
    except ConfigError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_data_sets_of_another_kind_are_refused_by_name(workload: str, dataset: str) -> None:
    path = ("workload.data_path=x",) if DATASETS[dataset].of_files else ()
    said = problems(f"workload.name={workload}", f"workload.dataset={dataset}", *path)
    refused = [line for line in said if f"{workload} learns from" in line]
    assert bool(refused) == (WORKLOADS[workload].samples not in DATASETS[dataset].samples)
    for line in refused:
        assert "embedded" in line and repr(dataset) in line


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.in_train])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_policies_that_live_on_lengths_are_refused_where_there_are_none(workload: str, policy: str) -> None:
    more = ("schedule.window=4",) if policy == "window" else ()
    said = problems(f"workload.name={workload}", f"schedule.policy={policy}", *more)
    useless = WORKLOADS[workload].lengths is None and not POLICIES[policy].without_lengths
    assert [f"{policy!r} deals samples by their lengths" in line for line in said] == [True] * useless


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("launch.launcher=virtual",), "virtual ranks are measured one after another"),
        (("schedule.policy=partition", "schedule.speeds=auto"), "schedule.speeds 'auto' plans a step when"),
        (("schedule.policy=prefix", "schedule.exchange=gather"), "with schedule.exchange 'gather'"),
    ],
)
def test_images_are_not_decoded_in_the_time_of_others(given: tuple[str, ...], said: str) -> None:
    assert not [line for line in problems(IMAGES, *given) if "workers" in line]
    (line,) = problems(IMAGES, "workload.workers=2", *given)
    assert line.startswith("--set workload.workers: 2") and said in line


def test_batch_normalisation_is_warned_of_where_counts_may_differ() -> None:
    (line,) = image_warnings(load_config(None, [IMAGES, "schedule.policy=partition"]))
    assert line.startswith("schedule.policy: under 'partition'") and "are not compared" in line
    for given in ([IMAGES], ["workload.name=mlp", "schedule.policy=partition"], ["schedule.policy=partition"]):
        assert image_warnings(load_config(None, given)) == []
