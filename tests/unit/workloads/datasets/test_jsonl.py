from __future__ import annotations

import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets import jsonl


def load(tmp_path, content: str):
    path = tmp_path / "a.jsonl"
    path.write_text(content, encoding="utf-8")
    return jsonl.load(Workload(dataset="jsonl", data_path=str(path)))


def test_one_object_per_line(tmp_path):
    split = load(tmp_path, '{"sentence": "a\\tb", "label": 1, "id": 3}\n{"label": 0, "sentence": ""}\n\n').train
    assert list(split.texts) == ["a\tb", ""]
    assert split.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"sentence": "a", "label": 1', "Expecting ',' delimiter at character"),
        ("[1, 2]", "list; expected one JSON object per line"),
        ('{"sentence": "a", "lable": 1}', "no column 'label' (workload.label_column); found 'sentence', 'lable'"),
        ('{"sentence": "a', "Unterminated string starting at character 14"),
        (r'{"sentence": "\ud800", "label": 1}', "'sentence' holds half a surrogate pair; expected Unicode text"),
        ('{"sentence": 5, "label": 1}', "'sentence' is int; expected a string"),
        ('{"sentence": null, "label": 1}', "'sentence' is null; expected a string"),
        ('{"sentence": "a", "label": [1]}', "label [1]; expected an integer or a word"),
        ('{"sentence": "a", "label": 0.5}', "label 0.5; expected an integer or a word"),
        ('{"sentence": "a", "label": NaN}', "label nan; expected an integer or a word"),
        ('{"sentence": "a", "label": null}', "no label; expected an integer or a word"),
        ('{"sentence": "a", "label": "\\ud800"}', "label '\\ud800'; expected an integer or a word"),
        ('{"sentence": "a", "label": ' + "9" * 5000 + "}", "digits"),
        ("[" * 100_000, "recursion"),
        ("\t", "Expecting value"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, what):
    good = '{"sentence": "a", "label": 1}'
    with pytest.raises(DataError) as caught:
        load(tmp_path, f"{good}\n{line}\n{good}\n")
    assert "a.jsonl:2:" in caught.value.message
    assert what in caught.value.message


def test_empty_file(tmp_path):
    with pytest.raises(DataError, match=":1: the file is empty; expected one JSON object per line"):
        load(tmp_path, "")


def test_a_single_line_without_a_column_is_not_a_matter_of_its_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"sentence": "a", "label": 1}\n{"sentence": "b"}\n')
    with pytest.raises(DataError, match=r"a.jsonl:2: no column 'label'") as caught:
        jsonl.load(Workload(dataset="jsonl", data_path=str(path)))
    assert "correct this line" in caught.value.hint and "--label-column" not in caught.value.hint
