"""The names that the schema takes are those of the registries: a misspelt one is found with all other mistakes."""

from __future__ import annotations

import pytest

from dynbench.config.values import allowed_words, field_of
from dynbench.plugins import KINDS
from dynbench.plugins.policies import ROWS, plan_names

CHOSEN = {kind: registry for kind, (_, registry) in KINDS.items() if registry.key}
ENTRIES = [(kind, name) for kind, (_, registry) in KINDS.items() for name in registry]


@pytest.mark.parametrize("kind", CHOSEN)
def test_the_schema_takes_what_is_registered(kind):
    registry = CHOSEN[kind]
    found = field_of(registry.key)
    assert found is not None
    trainable = {name for name, entry in registry.items() if getattr(entry, "in_train", True)}
    packed = set(plan_names(*ROWS, in_train=True)) if kind == "policies" else set()
    assert set(allowed_words(found[0])) == trainable | packed
    for option in registry.options():
        described = field_of(f"{registry.section}.{option}")
        assert described is not None
        assert described[0].description, f"{option} says what it is"


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_what_is_registered_is_there(kind, name):
    entry = KINDS[kind][1][name]
    assert entry.name == name
    assert entry.missing or callable(entry.load())
