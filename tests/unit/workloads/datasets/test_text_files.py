"""Texts in files as people have them, labelled or as a stream: read, or refused in one line that names the place."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.cache import contents_of, stem
from dynbench.workloads.datasets import text_files
from dynbench.workloads.datasets.base import MOST_CLASSES, Splits, load_dataset, numbered_as, read_label

TEXT_FILES = ("tsv", "csv", "jsonl")
HEADER = {"tsv": 1, "csv": 1, "jsonl": 0}
ROWS = [("a good film", "1"), ("", "0"), ('"quoted" and \\ more', "1"), ("a\0b\u2028c\x0b", "0")]


ALONE = {"name": "causal_lm"}
"""Texts without their labels are read."""


def written(dataset: str, rows: list[tuple[str, object]] = ROWS) -> list[str]:
    """Lines of a file, its header included."""
    if dataset == "jsonl":
        return [json.dumps({"sentence": text, "label": label}, ensure_ascii=False) for text, label in rows]
    if dataset == "tsv":
        return ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    doubled = [text.replace('"', '""') for text, _ in rows]
    return ["sentence,label", *(f'"{text}",{label}' for text, (_, label) in zip(doubled, rows, strict=True))]


def load(path: Path, dataset: str, content: bytes | str | None = None, **more: str) -> Splits:
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_dataset(Workload(dataset=dataset, data_path=str(path), **more))  # type: ignore[arg-type]


def labelled(folder: Path, dataset: str, labels: list[object], evaluation: list[object] = ()) -> Splits:
    for name, found in (("train", labels), ("dev", evaluation)):
        (folder / name).write_text("\n".join(written(dataset, [("a b", each) for each in found])))
    more = {"eval_path": str(folder / "dev")} if evaluation else {}
    return load(folder / "train", dataset, **more)


def error(path: Path, dataset: str, content: bytes | str, **more: str) -> str:
    """What is said of a file that cannot be used, after its path: the message, of one line, and what to do."""
    with pytest.raises(DataError) as caught:
        list(load(path, dataset, content, **more).train.read())
    found = caught.value
    assert "\n" not in found.message and found.message.startswith(f"{path}:")
    return f"{found.message.removeprefix(str(path))} {found.hint}"


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("gap", ["", "  \n\n"])
def test_marks_line_ends_and_empty_lines_change_nothing(tmp_path, dataset, end, mark, gap):
    content = mark + gap.replace("\n", end) + "".join(line + end + gap.replace("\n", end) for line in written(dataset))
    split = load(tmp_path / "file", dataset, content).train
    assert list(zip(split.texts, map(str, split.labels), strict=True)) == ROWS


@pytest.mark.parametrize("separator", text_files.DELIMITERS)
def test_the_separator_is_found_in_the_header(tmp_path, separator):
    rows = [["id", " review", "stars "], ["1", '"a, b; c | d\nlong"', "0"], ["2", "e", " 1"]]
    content = "".join(separator.join(row) + "\r\n" for row in rows)
    split = load(tmp_path / "a", "csv", content, text_column="review", label_column="stars").train
    assert (list(split.texts), split.labels.tolist()) == (["a, b; c | d\nlong", "e"], [0, 1])


def parquet(**columns: list[object]) -> bytes:
    content = io.BytesIO()
    pl.DataFrame(columns).write_parquet(content)
    return content.getvalue()


def test_parquet_with_classes_is_read_with_its_labels(tmp_path):
    split = load(tmp_path / "a", "parquet", parquet(sentence=["a", "b", "c"], label=["neg", "pos", "neg"])).train
    assert (split.texts, split.labels.tolist(), split.classes) == (["a", "b", "c"], [0, 1, 0], ("neg", "pos"))


def an(index: int = 0, **changes: object) -> str:
    """An article."""
    found = {"id": str(index), "title": "t", "text": "x"} | changes
    return json.dumps({key: value for key, value in found.items() if value is not ...})


JSON = '{"sentence": "a", "label": 1}'
MISTAKES: dict[str, list[str | bytes]] = {
    "tsv": ["x\t1\t1", "y 1", b"caf\xe9\t1"],
    "csv": ["c", '"b,1'],
    "jsonl": [
        *('{"sentence": "a", "label": 1', "[1, 2]", '{"sentence": "b"}', f'{{"sentence": "a", "label": {"9" * 5000}}}'),
        *('{"sentence": "\\ud800", "label": 1}', '{"sentence": null, "label": 1}', "[" * 100_000, b"\xe9"),
    ],
    "json": [
        *("{}", "5", an(1)[:-1], an(1).encode().replace(b"x", b"\xff"), an(1, text=...), an(1, text=["x"])),
        *(an(1, title=None), an(1, id=True), an(0), an(id=0)),
    ],
}
"""Lines, and items of an array."""


@pytest.mark.parametrize("dataset", MISTAKES)
def test_a_mistake_names_its_line_or_item(tmp_path, dataset):
    """Below others, one of which is empty, and one of CSV has a break in it."""
    if dataset == "json":
        begin, end, place, more = f"[{an(0)}, ".encode(), b"]", ": item 2: ", ALONE
    else:
        above = written(dataset, [("a\nb" if dataset == "csv" else "a", 1), ("c", 0)])
        begin, end, more = "\n\n".join(above).encode() + b"\n", b"", {}
        place = f":{begin.count(10) + 1}: "
    for mistake in MISTAKES[dataset]:
        content = begin + (mistake if isinstance(mistake, bytes) else mistake.encode()) + end
        assert error(tmp_path / "a", dataset, content, **more).startswith(place), mistake


@pytest.mark.parametrize(
    ("dataset", "content", "said"),
    [
        *((dataset, content, "") for dataset in TEXT_FILES for content in ("", "\n", "sentence\tlabel\n", '""\n')),
        ("tsv", "sentence\tlabel\tlabel\nx\t1\t1\n", "'label' occurs 2 times"),
        ("tsv", b"PAR1\x15\xff", "use --dataset parquet"),
        ("jsonl", gzip.compress(b"sentence\tlabel\n", mtime=0), "gunzip -k"),
        ("tsv", "café\n".encode("latin-1"), "Save it as UTF-8."),
        ("jsonl", "sentence\tlabel\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        ("tsv", "sentence,label\na,1\n", "use --dataset csv"),
        ("tsv", JSON, "use --dataset jsonl"),
        ("csv", JSON, "use --dataset jsonl"),
        ("jsonl", "sentence\tlabel\na\t1\n", "use --dataset tsv"),
        ("jsonl", f"[{JSON}]\n", "one JSON document over all lines"),
        ("tsv", "a good film\t1\nbad\t0\n", "The first line must name the columns"),
        ("tsv", "text\tsentiment\nx\t1", "Did you mean --text-column text --label-column sentiment?"),
        ("tsv", "sentiment\tphrase\n", "Did you mean --label-column sentiment? Name the other with --text-column."),
        ("tsv", "sentense\tmy label\nx\t1", "Did you mean --text-column sentense --label-column 'my label'?"),
        ("tsv", "a\tb\nx\t1", "Name them with --text-column and --label-column"),
    ],
)
def test_a_file_of_another_kind_or_of_other_columns_is_told_by_its_first_line(tmp_path, dataset, content, said):
    found = error(tmp_path / "a", dataset, content)
    assert found.startswith(":1: ") and said in found


def test_a_field_without_end_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_FIELD", 1000)
    found = error(tmp_path / "a", "csv", 'sentence,label\na,1\n"b,1\n' + "c,0\n" * 1000)
    assert found.startswith(":3: field larger than field limit")


def test_a_file_that_is_none_is_named_with_its_setting(tmp_path):
    with pytest.raises(DataError, match=f"workload.data_path: {tmp_path}: Is a directory"):
        load_dataset(Workload(dataset="tsv", data_path=str(tmp_path)))


PIECES = st.one_of(
    st.sampled_from(["sentence", "label", "sentence\tlabel\n", "sentence,label\n", '{"sentence": "a", "label": 1}']),
    st.sampled_from(list("\t,;|\n\r\"'\\01x \0\ufeff\u2028{}[]:é😀")),
    st.sampled_from(["\r\n", "-1", "0.5", "null", "true", "\\ud800", "NaN", "1e999"]),
)
CONTENT = st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()))


@pytest.mark.parametrize("dataset", TEXT_FILES)
@given(content=CONTENT)
def test_any_content_is_read_or_answered_in_one_line(tmp_path_factory, dataset, content):
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
def test_the_different_labels_in_order_are_the_classes(tmp_path, dataset, labels, classes, indices):
    splits = labelled(tmp_path, dataset, labels, labels[:1])
    assert (splits.train.labels.tolist(), splits.eval.labels.tolist()) == (indices, indices[:1])
    assert splits.train.classes == splits.eval.classes == classes


@pytest.mark.parametrize("value", [None, "", " ", [1], 1.5])
def test_what_is_no_label_is_refused(value):
    with pytest.raises(DataError, match=r"^here: "):
        read_label("here", value)


def test_json_values_mean_what_tables_write():
    same = [(1, "1"), (1.0, "1.0"), (True, "true"), (False, "false"), ("x", " x")]
    assert all(read_label("here", value) == read_label("here", text) for value, text in same)


@pytest.mark.parametrize("dataset", TEXT_FILES)
@pytest.mark.parametrize(
    ("labels", "line"),
    [
        ([0, 1, "good"], 3),
        (["good", 1], 2),
        ([0, "1e-3"], 2),
        (["a word of a text that goes on " * 10], 1),
        (list(range(MOST_CLASSES + 1)), MOST_CLASSES + 1),
        (["", "x"], 1),
    ],
    ids=lambda given: str(given)[:20],
)
def test_what_cannot_be_a_class_is_named_with_its_line(tmp_path, dataset, labels, line):
    with pytest.raises(DataError, match=rf"^{tmp_path / 'train'}:{line + HEADER[dataset]}: "):
        labelled(tmp_path, dataset, labels)


@pytest.mark.parametrize(("labels", "other"), [(["b", "a"], "c"), ([0, 2], 1), ([0, 1], "a")])
def test_a_label_that_training_never_shows_is_refused(tmp_path, labels, other):
    with pytest.raises(DataError, match=rf"^{tmp_path / 'dev'}:2: label {other!r}; expected one of"):
        labelled(tmp_path, "jsonl", labels, [labels[0], other])


def test_numbers_are_the_classes_of_a_model_that_names_them_otherwise(tmp_path):
    names = ("dog", "cat", "bee")
    known = numbered_as(labelled(tmp_path, "jsonl", [0, 2], [2]), names, "a model")
    assert (known.train.labels.tolist(), known.eval.labels.tolist()) == ([0, 2], [2])
    assert known.train.classes == known.eval.classes == names
    for label, others in ((3, names), (0, ("1", "2", "5"))):
        with pytest.raises(DataError, match=f"class '{label}'; expected one of a model: '{others[0]}', "):
            numbered_as(labelled(tmp_path, "jsonl", [1, label]), others, "a model")


ARTICLES = [
    {"id": "0", "title": "First", "text": "a line\nand another\u2028 one"},
    {"id": "1", "title": "", "text": 'café \U0001f600 \\ " \0'},
    {"id": "x", "title": "Third", "text": ""},
]
TEXTS = [f"{article['title']}\n{article['text']}" for article in ARTICLES]
STREAMED = ("json", "jsonl", "parquet")


def write_articles(path: Path, dataset: str, articles: list[dict[str, str]] = ARTICLES) -> Path:
    if dataset == "parquet":
        pl.DataFrame(articles).write_parquet(path, row_group_size=250, compression="uncompressed")
    elif dataset == "jsonl":
        path.write_text("".join(json.dumps(article) + "\n" for article in articles), encoding="utf-8")
    else:
        path.write_text(json.dumps(articles, indent=1), encoding="utf-8")
    return path


@pytest.mark.parametrize("dataset", STREAMED)
def test_every_format_gives_the_same_articles_as_often_as_asked(tmp_path, dataset):
    path = write_articles(tmp_path / "file", dataset)
    splits = load(path, dataset, **ALONE, eval_path=str(write_articles(tmp_path / "eval", dataset, ARTICLES[:1])))
    assert [*splits.train.read(), *splits.train.read()] == [*TEXTS, *TEXTS] and len(splits.train) == 3
    assert (len(splits.eval), splits.eval.source) == (1, str(tmp_path / "eval"))
    assert load(path, dataset, **ALONE).train.state == splits.train.state
    write_articles(path, dataset, ARTICLES[:2])
    assert load(path, dataset, **ALONE).train.state != splits.train.state, "the state follows the file"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("space", [b"", b" \r\n\t"])
def test_a_mark_and_space_around_the_array_change_nothing(tmp_path, mark, space):
    content = mark + space + json.dumps(ARTICLES).encode() + space
    assert list(load(tmp_path / "file", "json", content, **ALONE).train.read()) == TEXTS


def test_lines_of_another_column_and_null_titles_are_read(tmp_path):
    lines = '\ufeff{"body": "a", "title": null}\r\n  \n{"body": "b", "title": "t"}\r\n'
    found = load(tmp_path / "file", "jsonl", lines, **ALONE, text_column="body").train
    assert list(found.read()) == ["a", "t\nb"]
    assert "Did you mean --text-column body?" in error(tmp_path / "file", "jsonl", lines, **ALONE)


@pytest.mark.parametrize(
    ("dataset", "content", "place"),
    [
        ("json", b"\xef\xbb\xbf \n", ":1:"),
        ("json", "[ \n ]", ": the array is empty"),
        ("json", '"a text"', ": begins with"),
        ("json", f"[{an(0)}] [", ": item 2:"),
        ("jsonl", '{"text": "a"}\n\n{"body": "b"}\n', ":3: no column 'text'"),
        ("jsonl", '{"text": "a", "title": []}\n', ":1: 'title' is list"),
        ("parquet", b"PAR1 and more PAR1", ""),
        ("parquet", {"body": ["a"]}, ":1: no column 'sentence'"),
        ("parquet", {"text": ["a", None]}, ": row 2: 'text' is null"),
        ("parquet", {"text": []}, ": no rows"),
    ],
)
def test_a_mistake_in_a_stream_is_one_line_that_names_its_place(tmp_path, dataset, content, place):
    given = parquet(**content) if isinstance(content, dict) else content
    assert error(tmp_path / "file", dataset, given, **ALONE).startswith(place)


def test_damage_that_polars_panics_at_is_no_parquet(tmp_path, monkeypatch):
    def panics(*_, **__):
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(pl.LazyFrame, "collect", panics)
    assert "expected a Parquet file" in error(tmp_path / "file", "parquet", parquet(text=["a"]), **ALONE)


READ_WHOLE = """
import resource, sys
from dynbench.config.schema import Workload
from dynbench.workloads.datasets.base import load_dataset
def peak(path):
    split = load_dataset(Workload(name='causal_lm', dataset=sys.argv[1], data_path=path)).train
    return sum(map(len, split.read())), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(*peak(sys.argv[2]), *peak(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dataset", STREAMED)
def test_a_file_is_never_in_memory_whole(tmp_path, dataset):
    """48 MB are read within a sixth of them more than a file of 1 MB takes; the planted fault is a list of its rows."""
    rows = [{"id": str(i), "title": "t", "text": f"{i:08d} " * 1000} for i in range(5300)]
    paths = write_articles(tmp_path / "small", dataset, rows[:100]), write_articles(tmp_path / "large", dataset, rows)
    done = subprocess.run(
        [sys.executable, "-c", READ_WHOLE, dataset, *map(str, paths)], capture_output=True, text=True, check=True
    )
    _, before, characters, after = map(int, done.stdout.split())
    assert characters == 5300 * 9002
    assert after - before < characters * (0.6 if dataset == "parquet" else 1 / 6)


@pytest.mark.parametrize("dataset", ["jsonl", "parquet"])
def test_another_column_of_a_file_is_another_source(tmp_path, dataset):
    path = write_articles(tmp_path / "a", dataset, [{"one": "a word", "two": "another"}])
    one, two = (load(path, dataset, **ALONE, text_column=column).train for column in ("one", "two"))
    assert contents_of(tmp_path, one) != contents_of(tmp_path, two)
    assert stem(one) != stem(two), "neither overwrites what is cached of the other"
