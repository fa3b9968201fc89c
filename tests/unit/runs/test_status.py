from __future__ import annotations

import pytest

from dynbench.runs.status import TRANSITIONS, UNSUCCESSFUL, Status, check_transition


def test_every_state_has_its_ways_out_and_none_leads_to_lost() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert all(Status.LOST not in ways and Status.CREATED not in ways for ways in TRANSITIONS.values())


@pytest.mark.parametrize("old", list(Status))
@pytest.mark.parametrize("new", list(Status))
def test_only_the_table_is_allowed(old: Status, new: Status) -> None:
    if new == old or new in TRANSITIONS[old]:
        check_transition(old, new)
    else:
        with pytest.raises(ValueError, match=f"from {old} to {new}"):
            check_transition(old, new)


def test_unsuccessful_states_are_over() -> None:
    assert all(status.is_over for status in UNSUCCESSFUL)
    assert not Status.RUNNING.is_over
    assert not Status.CREATED.is_over
