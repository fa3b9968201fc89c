from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets import csv


def load(path: Path, content: str, **settings):
    path.write_bytes(content.encode())
    return csv.load(Workload(dataset="csv", data_path=str(path), **settings)).train


@pytest.mark.parametrize("separator", csv.DELIMITERS)
def test_the_separator_is_found_in_the_header(tmp_path, separator) -> None:
    rows = [["id", " sentence", "label "], ["1", '"a, b; c | d"', "0"], ["2", "e", " 1"]]
    split = load(tmp_path / "a.csv", "".join(separator.join(row) + "\r\n" for row in rows))
    assert list(split.texts) == ["a, b; c | d", "e"]
    assert split.labels.tolist() == [0, 1]


def test_quotes_hold_separators_quotes_and_line_breaks(tmp_path) -> None:
    split = load(tmp_path / "a.csv", 'sentence,label\n"a ""good"",\nlong film",1\n\n5" disk,0\n"",1\n')
    assert list(split.texts) == ['a "good",\nlong film', '5" disk', ""]


@pytest.mark.parametrize(
    ("content", "where", "said"),
    [
        ('sentence,label\n"a\nb",1\nc\n', "a.csv:4:", "1 field; expected 2"),
        ('sentence,label\na,1\n"b,1\nc,0\n', "a.csv:3:", "unexpected end of data"),
        ('sentence,label\na,1\n"b"c,1\n', "a.csv:3:", "',' expected after '\"'"),
        ("sentence,label\na,1\nb\rc,1\n", "a.csv:3:", "new-line character seen"),
        ('""\n', "a.csv:1:", "no column 'sentence'"),
        ("sentence\na\n", "a.csv:1:", "no column 'label'"),
        ("sentence,label\n", "a.csv:1:", "no rows"),
    ],
)
def test_bad_files_name_file_line_and_what_was_expected(tmp_path, content, where, said) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.csv", content)
    assert where in caught.value.message
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_a_field_without_end_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(csv, "LONGEST_FIELD", 1000)
    with pytest.raises(DataError, match=r"a.csv:3: field larger than field limit"):
        load(tmp_path / "a.csv", 'sentence,label\na,1\n"b,1\n' + "c,0\n" * 1000)
