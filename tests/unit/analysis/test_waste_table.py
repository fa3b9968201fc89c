"""The table of where the step time goes: means over launches, an arm a row."""

from __future__ import annotations

from dynbench.analysis.waste import PARTS
from dynbench.analysis.waste_table import HEADINGS, mean_waste, waste_table


def summary(
    s: float | None, waiting: float = 0.1, shares: tuple[float | None, ...] = (0.75, 0.25)
) -> dict[str, object]:
    known = dict.fromkeys(PARTS, 0.05) | {"waiting": waiting, "s": s}
    waste = known if s is not None else dict.fromkeys(("s", *PARTS))
    slowest = {"distinct": 2, "shares": list(shares), "equal": 1 / len(shares)}
    return {"waste": waste, "slowest_ranks": slowest, "world_size": len(shares) + 1, "workers": len(shares)}


def test_a_row_is_the_mean_over_the_launches_that_know() -> None:
    launches = [summary(1.5, 0.1), summary(2.5, 0.3, (0.25, 0.75)), summary(None, shares=(0.25, 0.75))]
    table = waste_table({"static": launches})

    assert table.columns == ["arm", *HEADINGS.values()]
    cells = dict(zip(HEADINGS, table.rows[0][1:], strict=True))
    assert (cells["s"], cells["waiting"], cells["padding"]) == ("2.00", "20.0 %", "5.0 %"), "1 / (1 - 0.2 - 6 * 0.05)"
    assert (cells["distinct"], cells["most"], cells["equal"]) == ("2 / 2", "rank 2: 58.3 %", "50.0 %")


def test_what_is_not_known_is_empty_and_nothing_known_is_no_table() -> None:
    table = waste_table({"static": [summary(1.5)], "old": [{}], "partial": [summary(None, shares=(1.0, None))]})

    assert [row[0] for row in table.rows] == ["static", "old", "partial"]
    assert {*table.rows[1][1:], *table.rows[2][1:]} == {""}
    assert waste_table({"old": [{}]}) is None
    assert mean_waste([{}]) == {}
