"""The table of bad input in tests/README.md: each is planted again, and its row says what is answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_input import settled
from bad_input_table import CASES, Bad, given, rows

PRINTED = rows()


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.what)
def test_it_is_answered_as_the_table_says(bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(monkeypatch, tmp_path)
    row = given(bad, tmp_path)
    assert row in PRINTED, "python tests/bad_input_table.py writes the table anew"
    assert sorted(path.name for path in tmp_path.iterdir() if "results" not in path.name) == sorted(
        {"vocab.txt", *(path.name for path in tmp_path.glob("own.*")), *(path.name for path in tmp_path.glob("l*.*"))}
        | {path.name for path in tmp_path.glob("base.zip")}
    )


def test_the_table_has_a_row_of_each_and_no_other() -> None:
    assert len(PRINTED) == len(CASES) == len({bad.what for bad in CASES})
    assert [row.split(" | ")[0].removeprefix("| ") for row in PRINTED] == [bad.what for bad in CASES]
