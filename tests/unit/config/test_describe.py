from __future__ import annotations

from dynbench.config import describe
from dynbench.config.schema import Config


def test_keys_are_found() -> None:
    assert describe.field_of("train.steps") is not None
    assert describe.field_of("launch.slowdown.3") is not None
    assert describe.field_of("train") is None
    assert describe.field_of("train.stps") is None


def test_every_field_is_described_in_words_and_in_the_schema() -> None:
    keys = describe.all_keys()
    assert len(keys) > 50
    for key in keys:
        found = describe.field_of(key)
        assert found is not None
        info, rest = found
        assert rest == ()
        assert info.description, f"{key} has no docstring"
        assert not any(sign in describe.describe(info) for sign in ("<class", "typing", "Annotated")), key


def test_sections_are_found() -> None:
    assert describe.section_of("") is Config
    assert describe.section_of("train") is not None
    assert describe.section_of("train.steps") is None
