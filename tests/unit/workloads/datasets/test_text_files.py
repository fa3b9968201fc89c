"""Labelled texts in files as people have them: each is read, or refused in one line that names its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets import text_files
from dynbench.workloads.datasets.base import MOST_CLASSES, Splits, load_dataset, numbered_as, read_label

TEXT_FILES = ("tsv", "csv", "jsonl")
HEADER = {"tsv": 1, "csv": 1, "jsonl": 0}
ROWS = [("a good film", "1"), ("", "0"), ('"quoted" and \\ more', "1"), ("a\0b\u2028c\x0b", "0")]


def written(dataset: str, rows: list[tuple[str, object]] = ROWS) -> list[str]:
    """Lines of a file, its header included."""
    if dataset == "jsonl":
        return [json.dumps({"sentence": text, "label": label}, ensure_ascii=False) for text, label in rows]
    if dataset == "tsv":
        return ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    doubled = [text.replace('"', '""') for text, _ in rows]
    return ["sentence,label", *(f'"{text}",{label}' for text, (_, label) in zip(doubled, rows, strict=True))]


def load(path: Path, dataset: str, content: bytes | str, **more: str) -> Splits:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_dataset(Workload(dataset=dataset, data_path=str(path), **more))  # type: ignore[arg-type]


def labelled(folder: Path, dataset: str, labels: list[object], evaluation: list[object] | None = None) -> Splits:
    train, dev = (
        "\n".join(written(dataset, [("a b", each) for each in found or []])) for found in (labels, evaluation)
    )
    (folder / "dev").write_text(dev)
    more = {} if evaluation is None else {"eval_path": str(folder / "dev")}
    return load(folder / "train", dataset, train, **more)


def error(path: Path, dataset: str, content: bytes | str, **more: str) -> DataError:
    with pytest.raises(DataError) as caught:
        load(path, dataset, content, **more)
    assert "\n" not in caught.value.message and caught.value.message.startswith(f"{path}:")
    return caught.value


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("gap", ["", "  \n\n"])
def test_marks_line_ends_and_empty_lines_change_nothing(tmp_path, dataset, end, mark, gap) -> None:
    content = mark + gap.replace("\n", end) + "".join(line + end + gap.replace("\n", end) for line in written(dataset))
    split = load(tmp_path / "file", dataset, content).train
    assert list(zip(split.texts, map(str, split.labels), strict=True)) == ROWS


@pytest.mark.parametrize("separator", text_files.DELIMITERS)
def test_the_separator_is_found_in_the_header(tmp_path, separator) -> None:
    rows = [["id", " sentence", "label "], ["1", '"a, b; c | d\nlong"', "0"], ["2", "e", " 1"]]
    split = load(tmp_path / "a", "csv", "".join(separator.join(row) + "\r\n" for row in rows)).train
    assert (list(split.texts), split.labels.tolist()) == (["a, b; c | d\nlong", "e"], [0, 1])


def test_other_columns_and_an_evaluation_file(tmp_path) -> None:
    (tmp_path / "dev").write_text("id\treview\tstars\n7\tfine\t3\n")
    settings = {"text_column": "review", "label_column": "stars", "eval_path": str(tmp_path / "dev")}
    splits = load(tmp_path / "a", "tsv", "id\treview\tstars\n1\tgood\t4\n2\tfair\t3\n", **settings)
    assert splits.train.labels.tolist() == [1, 0]
    assert (list(splits.eval.texts), splits.eval.labels.tolist()) == (["fine"], [0])


def test_parquet_with_classes_is_read_with_its_labels(tmp_path) -> None:
    pl.DataFrame({"sentence": ["a", "b", "c"], "label": ["neg", "pos", "neg"]}).write_parquet(tmp_path / "a")
    split = load(tmp_path / "a", "parquet", (tmp_path / "a").read_bytes()).train
    assert (split.texts, split.labels.tolist(), split.classes) == (["a", "b", "c"], [0, 1, 0], ("neg", "pos"))


JSON = '{"sentence": "a", "label": 1}\n'


@pytest.mark.parametrize(
    ("dataset", "content", "line", "said"),
    [
        ("tsv", "", 1, "empty; expected a header line"),
        ("tsv", "sentence\tlabel\n", 1, "no rows"),
        ("tsv", "sentense\tlabel\nx\t1\n", 1, "no column 'sentence' (workload.text_column); found 'sentense', 'label'"),
        ("tsv", "sentence\tlabel\tlabel\nx\t1\t1\n", 1, "'label' occurs 2 times"),
        ("tsv", "sentence\tlabel\nx\t1\nx\t1\t1\n", 3, "3 fields; expected 2"),
        ("tsv", "sentence\tlabel\n\nx\t1\n\ny 1\n", 5, "1 field; expected 2"),
        ("tsv", b"sentence\tlabel\nx\t1\ncaf\xe9\t1\n", 3, "byte 0xe9 is not UTF-8"),
        ("csv", 'sentence,label\n"a\nb",1\nc\n', 4, "1 field; expected 2"),
        ("csv", 'sentence,label\na,1\n"b,1\nc,0\n', 3, "unexpected end of data"),
        ("csv", 'sentence,label\na,1\n"b"c,1\n', 3, "',' expected after '\"'"),
        ("csv", "sentence,label\na,1\nb\rc,1\n", 3, "new-line character seen"),
        ("csv", '""\n', 1, "no column 'sentence'"),
        ("jsonl", "\n", 1, "the file is empty; expected one JSON object per line"),
        ("jsonl", f'{JSON}\n{{"sentence": "a", "label": 1\n', 3, "Expecting ',' delimiter at character"),
        ("jsonl", f"{JSON}[1, 2]\n", 2, "list; expected one JSON object per line"),
        ("jsonl", f'{JSON}{{"sentence": "\\ud800", "label": 1}}\n', 2, "half a surrogate pair; expected Unicode text"),
        ("jsonl", f'{JSON}{{"sentence": null, "label": 1}}\n', 2, "'sentence' is null; expected a string"),
        ("jsonl", f'{JSON}{{"sentence": "a", "label": [1]}}\n', 2, "label [1]; expected an integer or a word"),
        ("jsonl", f'{JSON}{{"sentence": "a", "label": NaN}}\n', 2, "label nan; expected an integer or a word"),
        ("jsonl", f'{JSON}{{"sentence": "a", "label": null}}\n', 2, "no label; expected an integer or a word"),
        ("jsonl", f'{JSON}{{"sentence": "a", "label": {"9" * 5000}}}\n', 2, "digits"),
        ("jsonl", f"{JSON}{'[' * 100_000}\n", 2, "recursion"),
    ],
)
def test_a_mistake_names_its_line_and_what_was_expected(tmp_path, dataset, content, line, said) -> None:
    found = error(tmp_path / "a", dataset, content).message
    assert found.startswith(f"{tmp_path / 'a'}:{line}: ") and said in found


def test_a_field_without_end_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST_FIELD", 1000)
    found = error(tmp_path / "a", "csv", 'sentence,label\na,1\n"b,1\n' + "c,0\n" * 1000)
    assert "a:3: field larger than field limit" in found.message


def test_a_file_that_is_none_is_named_with_its_setting(tmp_path) -> None:
    for path, said in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=f"workload.data_path: {path}: {said}"):
            load_dataset(Workload(dataset="tsv", data_path=str(path)))


@pytest.mark.parametrize(
    ("dataset", "content", "hint"),
    [
        ("tsv", b"PAR1\x15\xff", "It looks like Parquet: use --dataset parquet."),
        ("jsonl", gzip.compress(b"sentence\tlabel\n"), "gunzip -k"),
        ("tsv", b"PK\x03\x04\xff\xfe", "export it as CSV (--dataset csv)"),
        ("jsonl", "sentence\tlabel\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        ("tsv", "café\n".encode("latin-1"), "Save it as UTF-8."),
        ("tsv", "sentence,label\na,1\n", "comma-separated: use --dataset csv"),
        ("tsv", JSON, "JSON Lines: use --dataset jsonl"),
        ("csv", JSON, "JSON Lines: use --dataset jsonl"),
        ("jsonl", "sentence\tlabel\na\t1\n", "tab-separated: use --dataset tsv"),
        ("jsonl", f"[{JSON}]\n", "one JSON document over all lines"),
        ("jsonl", '{\n"sentence": "a"\n}\n', "one JSON document over all lines"),
        ("tsv", "a good film\t1\nbad\t0\n", "The first line must name the columns"),
        ("jsonl", f'{JSON}{{"sentence": "b"}}\n', "correct this line"),
        ("csv", "text,label\na,1\n", "Did you mean --text-column text?"),
        ("tsv", "text\tsentiment\nx\t1", "Did you mean --text-column text --label-column sentiment?"),
        ("tsv", "sentiment\tphrase\n", "Did you mean --label-column sentiment? Name the other with --text-column."),
        ("tsv", "sentense\tmy label\nx\t1", "Did you mean --text-column sentense --label-column 'my label'?"),
        ("tsv", "a\tb\nx\t1", "Name them with --text-column and --label-column."),
        ("tsv", "sentence\tb\nx\t1", "Name it with --label-column."),
    ],
)
def test_a_hint_says_what_to_do(tmp_path, dataset, content, hint) -> None:
    assert hint in error(tmp_path / "file", dataset, content).hint


PIECES = st.one_of(
    st.sampled_from(["sentence", "label", "sentence\tlabel\n", "sentence,label\n", '{"sentence": "a", "label": 1}']),
    st.sampled_from(list("\t,;|\n\r\"'\\01x \0\ufeff\u2028{}[]:é😀")),
    st.sampled_from(["\r\n", "-1", "0.5", "null", "true", "\\ud800", "NaN", "1e999"]),
)
CONTENT = st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()))


@pytest.mark.parametrize("dataset", TEXT_FILES)
@given(content=CONTENT)
def test_any_content_is_read_or_answered_in_one_line(tmp_path_factory, dataset, content) -> None:
    path = tmp_path_factory.getbasetemp() / f"any.{dataset}"
    try:
        split = load(path, dataset, content).train
    except DataError as refused:
        assert refused.message.startswith(f"{path}:")
        assert refused.message.isprintable() and refused.hint.isprintable()
        return
    assert len(split.texts) == len(split.labels) > 0
    assert sorted(set(split.labels.tolist())) == list(range(split.labels.max() + 1))


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        ([1, 0, 1, 2], (), [1, 0, 1, 2]),
        (["1.0", "0", " 1 "], (), [1, 0, 1]),
        ([4, 0, 4], ("0", "4"), [1, 0, 1]),
        ([1, -1, 10, 2], ("-1", "1", "2", "10"), [1, 0, 3, 2]),
        (["positive", "negative", "positive "], ("negative", "positive"), [1, 0, 1]),
        (["٣", "a"], ("a", "٣"), [1, 0]),
    ],
)
def test_the_different_labels_in_order_are_the_classes(tmp_path, dataset, labels, classes, indices) -> None:
    splits = labelled(tmp_path, dataset, labels, labels[:1])
    assert (splits.train.labels.tolist(), splits.eval.labels.tolist()) == (indices, indices[:1])
    assert splits.train.classes == splits.eval.classes == classes


def test_json_values_mean_what_tables_write() -> None:
    same = [(1, "1"), (1.0, "1.0"), (True, "true"), (False, "false"), ("x", " x")]
    assert all(read_label("here", value) == read_label("here", text) for value, text in same)


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize(
    ("labels", "line", "said"),
    [
        ([0, 1, "good"], 3, "label 'good' beside 0 of"),
        (["good", 1], 2, "label 1 beside 'good' of"),
        ([0, "1e-3"], 2, "label '1e-3'; expected an integer or a word"),
        (["a word of a text that goes on " * 10], 1, "...; expected an integer or a word"),
        (list(range(MOST_CLASSES + 1)), MOST_CLASSES + 1, "makes 1,001 different ones; expected at most 1,000 classes"),
        (["", "x"], 1, "no label"),
    ],
)
def test_what_cannot_be_a_class_is_named_with_its_line(tmp_path, dataset, labels, line, said) -> None:
    with pytest.raises(DataError) as caught:
        labelled(tmp_path, dataset, labels)
    assert caught.value.message.startswith(f"{tmp_path / 'train'}:{line + HEADER[dataset]}: ")
    assert said in caught.value.message


@pytest.mark.parametrize(("labels", "other"), [(["b", "a"], "c"), ([0, 2], 1), ([0, 1], "a")])
def test_a_label_that_training_never_shows_is_refused(tmp_path, labels, other) -> None:
    with pytest.raises(DataError) as caught:
        labelled(tmp_path, "jsonl", labels, [labels[0], other])
    known = ", ".join(map(repr, sorted(labels)))
    expected = f"{tmp_path / 'dev'}:2: label {other!r}; expected one of {tmp_path / 'train'}: {known}"
    assert caught.value.message == expected


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["c", "b"], ("a", "b", "c"), [2, 1]),
        ([5, 1], ("1", "2", "5"), [2, 0]),
        ([0, 1], ("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1]),
        (["b", "d"], ("a", "b", "c"), "class 'd'; expected one of a model: 'a', 'b', 'c'"),
        ([0, 1], ("1", "2", "5"), "class '0'"),
        ([1, 3], ("dog", "cat", "bee"), "class '3'"),
    ],
)
def test_labels_become_the_classes_of_a_model_by_name(tmp_path, labels, names, numbers) -> None:
    splits = labelled(tmp_path, "jsonl", labels, labels[:1])
    if isinstance(numbers, str):
        with pytest.raises(DataError, match=numbers):
            numbered_as(splits, names, "a model")
        return
    known = numbered_as(splits, names, "a model")
    assert (known.train.labels.tolist(), known.eval.labels.tolist()) == (numbers, numbers[:1])
    assert known.train.classes == known.eval.classes == names
