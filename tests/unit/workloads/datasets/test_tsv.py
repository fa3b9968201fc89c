from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets import tsv


def load(path: Path, content: bytes | str, **settings):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return tsv.load(Workload(dataset="tsv", data_path=str(path), **settings))


def test_quotes_backslashes_and_other_line_separators_are_plain_text(tmp_path):
    split = load(tmp_path / "a.tsv", 'label\tsentence\r\n0\t"half \\n quoted\r\n12\ta\u2028b\x0bc\r\n\r\n').train
    assert list(split.texts) == ['"half \\n quoted', "a\u2028b\x0bc"]
    assert (split.labels.tolist(), split.classes) == ([0, 1], ("0", "12"))


def test_byte_order_mark_is_dropped_and_an_empty_text_is_a_text(tmp_path):
    split = load(tmp_path / "a.tsv", b"\xef\xbb\xbfsentence\tlabel\n\t1\n").train
    assert list(split.texts) == [""]


def test_other_columns_and_an_evaluation_file(tmp_path):
    (tmp_path / "dev.tsv").write_text("id\treview\tstars\n7\tfine\t3\n")
    splits = load(
        tmp_path / "a.tsv",
        "id\treview\tstars\n1\tgood\t4\n2\tfair\t3\n",
        text_column="review",
        label_column="stars",
        eval_path=str(tmp_path / "dev.tsv"),
    )
    assert splits.train.labels.tolist() == [1, 0]
    assert (list(splits.eval.texts), splits.eval.labels.tolist()) == (["fine"], [0])


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("", "a.tsv:", "empty; expected a header line"),
        ("\n\n", "a.tsv:", "empty"),
        ("sentence\tlabel\n", "a.tsv:1:", "no rows"),
        (
            "sentense\tlabel\nx\t1\n",
            "a.tsv:1:",
            "no column 'sentence' (workload.text_column); found 'sentense', 'label'",
        ),
        ("sentence\tgold\nx\t1\n", "a.tsv:1:", "no column 'label' (workload.label_column)"),
        ("sentence\tlabel\tlabel\nx\t1\t1\n", "a.tsv:1:", "'label' occurs 2 times"),
        ("sentence\tlabel\nx\t1\nx\t1\t1\n", "a.tsv:3:", "3 fields; expected 2"),
        ("sentence\tlabel\nx\t1\n\ny 1\n", "a.tsv:4:", "1 field; expected 2"),
        ("sentence\tlabel\nx\t1\ny\t\n", "a.tsv:3:", "no label; expected an integer or a word"),
        ("sentence\tlabel\nx\t" + "9" * 5000 + "\n", "a.tsv:2:", "..."),
        (b"sentence\tlabel\nx\t1\ncaf\xe9\t1\n", "a.tsv:3:", "byte 0xe9 is not UTF-8"),
    ],
)
def test_bad_files_name_file_line_and_what_was_expected(tmp_path, content, where, what):
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.tsv", content)
    assert f"{where}" in caught.value.message
    assert what in caught.value.message
    assert "\n" not in caught.value.message


def test_missing_file_folder_and_setting(tmp_path):
    with pytest.raises(DataError, match=r"workload.data_path: .*absent.tsv: No such file"):
        tsv.load(Workload(dataset="tsv", data_path=str(tmp_path / "absent.tsv")))
    with pytest.raises(DataError, match="Is a directory"):
        tsv.load(Workload(dataset="tsv", data_path=str(tmp_path)))


@pytest.mark.parametrize(
    ("header", "settings", "hint"),
    [
        ("text\tlabel", {}, "Did you mean --text-column text?"),
        ("text\tsentiment", {}, "Did you mean --text-column text --label-column sentiment?"),
        ("id\tReview\tClass", {}, "Did you mean --text-column Review --label-column Class?"),
        ("sentiment\tphrase", {}, "Did you mean --label-column sentiment? Name the other with --text-column."),
        ("sentense\tlabel", {}, "Did you mean --text-column sentense?"),
        ("my text\tlabel", {"text_column": "mytext"}, "Did you mean --text-column 'my text'?"),
        ("a\tb", {}, "Name them with --text-column and --label-column."),
        ("sentence\tb", {}, "Name it with --label-column."),
    ],
)
def test_columns_of_other_names_are_proposed_for_what_they_are_usual_for(tmp_path, header, settings, hint):
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.tsv", f"{header}\nx\t1\n", **settings)
    assert caught.value.hint == hint
