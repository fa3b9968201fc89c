"""The names that the schema takes are those of the registries: a misspelt one is found with all other mistakes."""

from __future__ import annotations

import pytest

from dynbench.compress import registry as compress
from dynbench.config.describe import allowed_words, field_of
from dynbench.schedule import policy
from dynbench.sync import registry as sync
from dynbench.workloads import registry as workloads
from dynbench.workloads.datasets import registry as datasets

REGISTERED = {
    "workload.name": set(workloads.REGISTRY),
    "workload.dataset": set(datasets.REGISTRY),
    "schedule.policy": {name for name, entry in policy.REGISTRY.items() if entry.in_train},
    "sync.name": set(sync.REGISTRY),
    "compress.name": set(compress.REGISTRY),
}


@pytest.mark.parametrize("key", REGISTERED)
def test_the_schema_takes_what_is_registered(key):
    found = field_of(key)
    assert found is not None
    assert set(allowed_words(found[0])) == REGISTERED[key], f"{key}: add the name in config/schema.py"
