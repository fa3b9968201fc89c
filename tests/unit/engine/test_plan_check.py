"""What cannot be planned is refused before the launch, for every policy: exactly what the ranks would refuse."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dynbench.config.layers import load_config
from dynbench.engine.plan_check import check_plan
from dynbench.engine.planning import build_problem
from dynbench.errors import DynbenchError, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.policy import Planner

RANKS, BATCH = 8, 64
NOWHERE = Path("nowhere")
LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 1000).astype(int), 2, 256)
UNEQUAL = [20] * (RANKS - 1) + [9]
SETTINGS = [
    dict(zip(("micro_batches", "capacity", "solver", "window"), values, strict=True))
    for values in product((1, 2, "auto"), (None, 20, UNEQUAL), ("exact", "enumerate"), (1, 2))
]


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.in_train])
def test_the_launcher_refuses_what_the_ranks_would_refuse(policy: str) -> None:
    if reason := POLICIES[policy].missing:
        pytest.skip(f"{policy} {reason}")
    refused = 0
    for schedule in SETTINGS:
        flags = {f"schedule.{key}": value for key, value in schedule.items()}
        multiple = {"workload.pad_to_multiple_of": 1, "schedule.policy": policy}
        config = load_config(flags={**flags, **multiple, "train.global_batch": BATCH})
        expected = None
        try:
            Planner(policy, build_problem(config, LENGTHS, RANKS, 1)).plan(0)
        except (UsageError, NothingFits) as error:
            expected = error
        try:
            check_plan(config, RANKS, NOWHERE)
        except DynbenchError as error:
            refused += 1
            uncapped = "obeys no capacities" in error.message
            assert uncapped or (expected is not None and type(error) is type(expected)), schedule
        else:
            assert not isinstance(expected, UsageError), schedule
    assert refused


def test_a_cost_that_a_probe_will_measure_is_not_asked_for_before_it() -> None:
    settings = ["schedule.policy=partition", "schedule.cost_type=measured", "workload.pad_to_multiple_of=1"]
    check_plan(load_config(None, [*settings, "probe.run=auto"]), 4, NOWHERE)
    with pytest.raises(DynbenchError, match="no-such-probe"):
        check_plan(load_config(None, [*settings, "probe.run=no-such-probe"]), 4, NOWHERE)
