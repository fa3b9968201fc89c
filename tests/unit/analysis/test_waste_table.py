"""The table of where the step time goes: means over launches, an arm a row."""

from __future__ import annotations

import pytest

from dynbench.analysis.table_specs import TABLES, mean_waste
from dynbench.analysis.waste import PARTS

COLUMNS = [column for column in TABLES["waste"].columns if column.key != "arm"]  # type: ignore[union-attr]  # a list
waste_table = TABLES["waste"].table


def summary(
    s: float | None, waiting: float = 0.1, shares: tuple[float | None, ...] = (0.75, 0.25)
) -> dict[str, object]:
    known = dict.fromkeys(PARTS, 0.05) | {"waiting": waiting, "s": s}
    waste = known if s is not None else dict.fromkeys(("s", *PARTS))
    slowest = {"distinct": 2, "shares": list(shares), "equal": 1 / len(shares)}
    return {"waste": waste, "slowest_ranks": slowest, "world_size": len(shares) + 1, "workers": len(shares)}


def test_a_row_is_the_mean_over_the_launches() -> None:
    launches = [summary(1.5, 0.0833), summary(2.5, 0.35, (0.25, 0.75))]
    table = waste_table({"static": launches})

    assert table.columns == ["arm", *(column.heading for column in COLUMNS)]
    cells = dict(zip((column.key for column in COLUMNS), table.rows[0][1:], strict=True))
    assert (cells["s"], cells["waiting"], cells["padding"]) == ("1.88", "21.7 %", "5.0 %")
    assert 1 / mean_waste(launches)["s"] == pytest.approx((1 / 1.5 + 1 / 2.5) / 2), "as the parts have means"
    assert (cells["distinct"], cells["most"], cells["equal"]) == ("2 / 2", "rank 1: 50.0 %", "50.0 %")


def test_a_launch_that_does_not_know_leaves_the_arm_unknown() -> None:
    """A mean over fewer launches stood beside means over all of them, under one heading."""
    table = waste_table({"static": [summary(1.5), summary(None)], "other": [summary(2.0)]})
    assert not any(table.rows[0][1:9]) and table.rows[1][1] == "2.00"
    assert table.rows[0][9], "whom steps wait for needs no fit"


def test_what_is_not_known_is_empty_and_nothing_known_is_no_table() -> None:
    table = waste_table({"static": [summary(1.5)], "old": [{}], "partial": [summary(None, shares=(1.0, None))]})

    assert [row[0] for row in table.rows] == ["static", "old", "partial"]
    assert {*table.rows[1][1:], *table.rows[2][1:]} == {""}
    assert waste_table({"old": [{}]}) is None
    assert mean_waste([{}]) == {}
