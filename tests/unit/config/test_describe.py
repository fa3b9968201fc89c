from __future__ import annotations

from dynbench.config import describe


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
