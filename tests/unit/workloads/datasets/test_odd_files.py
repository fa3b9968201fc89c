"""Files as people really have them: each is read, or answered with one helpful line."""

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
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.registry import load_dataset

TEXT_FILES = ("tsv", "csv", "jsonl")
ROWS = [("a good film", "1"), ("", "0"), ('"quoted" and \\ more', "1"), ("a\0b\u2028c\x0b", "0")]


def written(dataset: str, rows: list[tuple[str, str]] = ROWS) -> list[str]:
    """Lines of a file, its header included."""
    if dataset == "jsonl":
        return [json.dumps({"sentence": text, "label": label}, ensure_ascii=False) for text, label in rows]
    if dataset == "tsv":
        return ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    doubled = [text.replace('"', '""') for text, _ in rows]
    return ["sentence,label", *(f'"{text}",{label}' for text, (_, label) in zip(doubled, rows, strict=True))]


def load(path: Path, dataset: str, content: bytes) -> Splits:
    path.write_bytes(content)
    return load_dataset(Workload(dataset=dataset, data_path=str(path)))  # type: ignore[arg-type]


def message(path: Path, dataset: str, content: bytes | str) -> DataError:
    with pytest.raises(DataError) as caught:
        load(path, dataset, content if isinstance(content, bytes) else content.encode())
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("gap", ["", "\n", "  \n\n"])
def test_marks_line_ends_and_empty_lines_change_nothing(tmp_path, dataset, end, mark, gap) -> None:
    content = mark + gap.replace("\n", end) + "".join(line + end + gap.replace("\n", end) for line in written(dataset))
    split = load(tmp_path / "file", dataset, content.encode()).train
    assert list(zip(split.texts, map(str, split.labels), strict=True)) == ROWS


@pytest.mark.parametrize("dataset", TEXT_FILES)
def test_the_line_of_a_mistake_counts_every_line(tmp_path, dataset) -> None:
    lines = written(dataset)
    broken = '{"sentence": "a"}' if dataset == "jsonl" else "a"
    said = message(tmp_path / "file", dataset, "\n".join([lines[0], "", lines[1], "", "", lines[2], broken])).message
    assert said.startswith(f"{tmp_path / 'file'}:7: ")


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b" \r\n "])
def test_an_empty_file(tmp_path, dataset, content) -> None:
    assert "file:1: the file is empty; expected" in message(tmp_path / "file", dataset, content).message


def as_parquet(path: Path) -> bytes:
    pl.DataFrame({"sentence": ["é" * 40], "label": [1]}).write_parquet(path)
    return path.read_bytes()


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (as_parquet, "It looks like Parquet: use --dataset parquet."),
        (lambda _: gzip.compress(b"sentence\tlabel\n"), "gunzip -k"),
        (lambda _: b"PK\x03\x04\xff\xfe", "export it as CSV (--dataset csv)"),
        (lambda _: "sentence\tlabel\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        (lambda _: "sentence\tlabel\ncafé\t1\n".encode("latin-1"), "Save it as UTF-8."),
    ],
)
def test_what_is_no_text_is_recognised(tmp_path, dataset, make, hint) -> None:
    error = message(tmp_path / "file", dataset, make(tmp_path / "made"))
    assert "is not UTF-8 text" in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("asked", "content", "seen", "hint"),
    [
        ("tsv", "sentence,label\na,1\n", "'sentence,label'", "comma-separated: use --dataset csv"),
        ("tsv", "sentence;label\na;1\n", "'sentence;label'", "semicolon-separated: use --dataset csv"),
        ("tsv", '{"sentence": "a", "label": 1}\n', '\'{"sentence"', "JSON Lines: use --dataset jsonl"),
        ("csv", '{"sentence": "a", "label": 1}\n', "sentence", "JSON Lines: use --dataset jsonl"),
        ("jsonl", "sentence\tlabel\na\t1\n", "'sentence\\tlabel'", "tab-separated: use --dataset tsv"),
        ("jsonl", "sentence,label\na,1\n", "'sentence,label'", "comma-separated: use --dataset csv"),
        ("jsonl", '[{"sentence": "a", "label": 1}]\n', "list", "one JSON document over all lines"),
        ("jsonl", '{\n"sentence": "a"\n}\n', "'{'", "one JSON document over all lines"),
        ("tsv", "text\ttarget\na\t1\n", "'text', 'target'", "Did you mean --text-column text --label-column target?"),
        ("csv", "text,label\na,1\n", "'text', 'label'", "Did you mean --text-column text?"),
        ("tsv", "a good film\t1\nbad\t0\n", "'a good film', '1'", "The first line must name the columns"),
    ],
)
def test_a_file_of_another_kind_says_what_was_seen_and_what_to_do(tmp_path, asked, content, seen, hint) -> None:
    error = message(tmp_path / "file", asked, content)
    assert error.message.startswith(f"{tmp_path / 'file'}:1: ")
    assert seen in error.message
    assert hint in error.hint


def test_a_page_of_text_as_header_is_not_quoted_whole(tmp_path) -> None:
    assert len(message(tmp_path / "file", "tsv", "word " * 100_000).message) < 400
    assert len(message(tmp_path / "file", "csv", "a," * 100_000).message) < 400


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
    except DataError as error:
        assert error.message.startswith(f"{path}:")
        assert error.message.isprintable() and error.hint.isprintable()
        return
    assert len(split.texts) == len(split.labels) > 0
    assert sorted(set(split.labels.tolist())) == list(range(split.labels.max() + 1))
