"""The orders in which arms are built and take turns: balanced, drawn, the same everywhere."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.engine.turn_order import Turns, read_turns, williams_square
from dynbench.errors import RecordError

ARMS = st.integers(2, 9)


def rounds(arms: int, number: int, **drawn: int) -> list[list[int]]:
    return list(islice(Turns(tuple("abcdefghi"[:arms]), **drawn).rounds(), number))


def is_balanced(rows: list[list[int]]) -> bool:
    """Every arm follows every other equally often, and stands at each place equally often."""
    n = len(rows[0])
    follows = Counter(pair for row in rows for pair in pairwise(row))
    places = Counter((place, arm) for row in rows for place, arm in enumerate(row))
    return (len(follows), len(places)) == (n * (n - 1), n * n) and all(
        len(set(counts.values())) == 1 for counts in (follows, places)
    )


@given(ARMS)
def test_every_arm_follows_every_other_equally_often_and_stands_everywhere(n: int) -> None:
    square = williams_square(n)
    assert is_balanced(square)
    assert len(square) == (n if n % 2 == 0 else 2 * n)


@given(st.integers(3, 9))
def test_a_latin_square_is_not_enough(n: int) -> None:
    """Planted: arms in one order that begins elsewhere each time stand everywhere, and follow one arm only."""
    assert not is_balanced([[(first + place) % n for place in range(n)] for first in range(n)])


@given(st.integers(0, 99), st.integers(0, 9))
def test_two_arms_go_abba(seed: int, launch: int) -> None:
    first, second, *_ = found = rounds(2, 8, seed=seed, launch=launch)
    assert found == [first, second] * 4 and second == first[::-1]


@given(ARMS, st.integers(0, 99), st.integers(0, 9))
def test_every_round_has_every_arm_and_a_drift_meets_all_alike(n: int, seed: int, launch: int) -> None:
    whole = len(williams_square(n))
    found = rounds(n, 3 * whole, seed=seed, launch=launch)
    assert all(sorted(order) == list(range(n)) for order in found)
    for cycle in (found[:whole], found[whole : 2 * whole]):
        at = [sum(order.index(arm) for order in cycle) for arm in range(n)]
        assert len(set(at)) == 1
        assert is_balanced(cycle)


@given(ARMS, st.integers(0, 99), st.integers(0, 4))
def test_what_is_built_first_in_one_launch_is_built_last_in_the_next(n: int, seed: int, pair: int) -> None:
    names = tuple("abcdefghi"[:n])
    one, next_one = (Turns(names, seed=seed, launch=2 * pair + odd).building() for odd in (0, 1))
    assert sorted(one) == list(range(n)) and next_one == one[::-1]


def test_orders_are_drawn_anew_and_equal_for_equal_seeds() -> None:
    drawn = {tuple(map(tuple, rounds(4, 8, seed=seed, launch=launch))) for seed in range(6) for launch in range(6)}
    assert len(drawn) > 20
    assert rounds(5, 20, seed=3, launch=2) == rounds(5, 20, seed=3, launch=2)


def test_it_is_kept_for_the_ranks(tmp_path: Path) -> None:
    assert read_turns(tmp_path) is None
    turns = Turns(("a", "b"), 8, 5, 3)
    turns.write(tmp_path)
    assert read_turns(tmp_path) == turns
    (tmp_path / "turns.json").write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"turns\.json"):
        read_turns(tmp_path)
