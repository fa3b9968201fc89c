from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.errors import RunLookupError
from dynbench.runs.names import check_spelling, make_slug, new_id, slug_of


def test_ids_are_time_slug_suffix() -> None:
    assert re.fullmatch(r"\d{8}-\d{6}-dynamic-[a-z2-9]{4}", new_id("dynamic"))


@given(st.text())
def test_any_slug_makes_an_id_that_gives_it_back(text: str) -> None:
    run_id = new_id(text)
    assert slug_of(run_id) == make_slug(text)
    assert "/" not in run_id
    assert run_id.isascii()


@pytest.mark.parametrize("name", ["runA", "a", "run.1_b-c", "7", "x" * 64])
def test_names_allowed(name: str) -> None:
    check_spelling(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a b", " a", "@x", "@latest", "-x", "a\n", "x" * 65, "é", "a*", "a\0b", "a:b", "~"],
)
def test_names_refused_with_the_rule(name: str) -> None:
    with pytest.raises(RunLookupError) as caught:
        check_spelling(name)
    assert "letters, digits" in caught.value.hint
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


def test_a_name_cannot_pose_as_an_id() -> None:
    with pytest.raises(RunLookupError, match="form of a run id"):
        check_spelling(new_id("static"))
