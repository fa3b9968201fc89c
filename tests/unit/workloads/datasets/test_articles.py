"""Texts without labels: the same articles in every format, mistakes in one line each, little memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.contents import Contents, contents_of, stem
from dynbench.workloads.datasets.base import CorpusSplit
from dynbench.workloads.datasets.json import CHUNK
from dynbench.workloads.datasets.registry import load_dataset

ARTICLES = [
    {"id": "0", "title": "First", "text": "a line\nand another\u2028 one"},
    {"id": "1", "title": "", "text": 'café \U0001f600 \\ " \0'},
    {"id": "x", "title": "Third", "text": ""},
]
TEXTS = [f"{article['title']}\n{article['text']}" for article in ARTICLES]
LM = "causal_lm"
STREAMED = ("json", "jsonl", "parquet")


def written(path: Path, dataset: str, articles: list[dict[str, str]] = ARTICLES) -> Path:
    if dataset == "parquet":
        pl.DataFrame(articles).write_parquet(path, row_group_size=2)
    elif dataset == "jsonl":
        path.write_text("".join(json.dumps(article) + "\n" for article in articles), encoding="utf-8")
    else:
        path.write_text(json.dumps(articles, indent=1), encoding="utf-8")
    return path


def corpus(path: Path, dataset: str = "json", **settings: str) -> CorpusSplit:
    split = load_dataset(Workload(name=LM, dataset=dataset, data_path=str(path), **settings)).train  # type: ignore[arg-type]
    assert isinstance(split, CorpusSplit)
    return split


def texts(path: Path, dataset: str = "json", **settings: str) -> list[str]:
    return list(corpus(path, dataset, **settings).read())


def message(path: Path, content: bytes | str, dataset: str = "json", **settings: str) -> DataError:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        texts(path, dataset, **settings)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(f"{path}:")
    return caught.value


@pytest.mark.parametrize("dataset", STREAMED)
def test_every_format_gives_the_same_articles_as_often_as_asked(tmp_path, dataset) -> None:
    split = corpus(written(tmp_path / "file", dataset), dataset)
    assert [list(split.read()), list(split.read()), len(split)] == [TEXTS, TEXTS, 3]


@pytest.mark.parametrize("dataset", STREAMED)
def test_an_evaluation_file_is_read_apart(tmp_path, dataset) -> None:
    paths = [written(tmp_path / "train", dataset), written(tmp_path / "eval", dataset, ARTICLES[:1])]
    settings = Workload(name=LM, dataset=dataset, data_path=str(paths[0]), eval_path=str(paths[1]))  # type: ignore[call-arg]
    splits = load_dataset(settings)
    assert [len(splits.train), len(splits.eval)] == [3, 1]
    assert splits.eval.source == str(paths[1])


@pytest.mark.parametrize("dataset", STREAMED)
def test_the_state_follows_the_file(tmp_path, dataset) -> None:
    path = written(tmp_path / "file", dataset)
    before = corpus(path, dataset).state
    assert corpus(path, dataset).state == before
    written(path, dataset, ARTICLES[:2])
    assert corpus(path, dataset).state != before


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("space", [b"", b" \r\n\t"])
def test_a_mark_and_space_around_the_array_change_nothing(tmp_path, mark, space) -> None:
    path = tmp_path / "file"
    path.write_bytes(mark + space + json.dumps(ARTICLES).encode() + space)
    assert texts(path) == TEXTS


def an(index: int = 0, **changes: object) -> str:
    found = {"id": str(index), "title": "t", "text": "x"} | changes
    return json.dumps({key: value for key, value in found.items() if value is not ...})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ":1: the file is empty; expected an array"),
        (b"\xef\xbb\xbf \n", ":1: the file is empty"),
        ("[]", "the array is empty; expected an array of objects"),
        ("[ \n ]", "the array is empty"),
        ("null", "begins with 'null'; expected an array"),
        ('"a text"', "begins with"),
        (f"[{an(0)}, {an(1, text=...)}]", "item 2: no 'text'; found 'id', 'title'"),
        (f"[{an(id=..., title=...)}]", "item 1: no 'id' and no 'title'; found 'text'"),
        ("[{}]", "found no key"),
        (f"[{an(0)}, 5]", "item 2: int; expected an array of objects"),
        (f"[[{an(0)}]]", "item 1: list"),
        ("[null]", "item 1: null"),
        (f"[{an(0)}, {an(1, text=['x'])}]", "item 2: 'text' is list; expected a string"),
        (f"[{an(text=None)}]", "item 1: 'text' is null; expected a string"),
        (f"[{an(title=None)}]", "item 1: 'title' is null; expected a string"),
        (f"[{an(title=3)}]", "item 1: 'title' is int; expected a string"),
        (f"[{an(id=None)}]", "item 1: 'id' is None; expected a string or an integer"),
        (f"[{an(id=True)}]", "item 1: 'id' is True"),
        (f"[{an(0)}, {an(1)}, {an(0)}]", "item 3: id '0' is that of item 1 too"),
        (f"[{an(id=7)}, {an(id='7')}]", "item 2: id '7' is that of item 1 too"),
        (f"[{an(0)}", "item 2, byte 39: parse error: premature EOF"),
        (f'[{an(0)}, {{"id": "1"', "item 2, byte 51: parse error: premature EOF"),
        (f"[{an(0)},]", "item 2, byte 40: parse error: unallowed token at this point in JSON text"),
        (f"[{an(0)}, nul]", "item 2, byte"),
        (f"[{an(0)}] [", "item 2, byte 41: parse error: trailing garbage"),
        (
            f"[{an(0)}, {an(1, text='?')}]".encode().replace(b"?", b"\xff"),
            "byte 76: lexical error: invalid bytes in UTF8",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(tmp_path, content, said) -> None:
    assert said in message(tmp_path / "file", content).message


@pytest.mark.parametrize("gap", [1, CHUNK - 30, CHUNK, 3 * CHUNK])
def test_the_byte_is_that_of_the_file_wherever_chunks_end(tmp_path, gap) -> None:
    content = f"[{an(0)},{' ' * gap}{an(1)} ?]"
    assert f"item 3, byte {content.index('?'):,}: " in message(tmp_path / "file", content).message


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (f"{an(0)}\n{an(1)}\n", "use --dataset jsonl"),
        ("id,title,text\n", "use --dataset csv"),
        (gzip.compress(b"[]", mtime=0), "gunzip -k"),
        ("[]".encode("utf-16"), "iconv -f UTF-16"),
        (b"PAR1....", "use --dataset parquet"),
    ],
)
def test_a_file_of_another_kind_says_what_to_do(tmp_path, content, hint) -> None:
    assert hint in message(tmp_path / "file", content).hint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ":1: the file is empty"),
        ("\n\n", ":1: the file is empty"),
        ('{"text": "a"}\n{"text": 1}\n', ":2: 'text' is int; expected a string"),
        ('{"text": "a"}\n\n{"body": "b"}\n', ":3: no column 'text' (workload.text_column); found 'body'"),
        ('{"text": "a", "title": []}\n', ":1: 'title' is list"),
        ('{"text": "\\ud800"}\n', ":1: 'text' holds half a surrogate pair"),
        ('{"text": "a"}\n[1]\n', ":2: list; expected one JSON object per line"),
        ('{"text": "a"}\n{"text"\n', ":2: Expecting ':' delimiter"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', ":2: byte 0xff is not UTF-8 text"),
    ],
)
def test_a_mistake_in_lines_names_the_line(tmp_path, content, said) -> None:
    assert said in message(tmp_path / "file", content, "jsonl").message


def test_lines_of_another_column_and_null_titles_are_read(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text('\ufeff{"body": "a", "title": null}\r\n  \n{"body": "b", "title": "t"}\r\n', encoding="utf-8")
    assert texts(path, "jsonl", text_column="body") == ["a", "t\nb"]
    assert "Did you mean --text-column body?" in message(path, path.read_bytes(), "jsonl").hint


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"body": ["a"]}, "no column 'sentence' (workload.text_column); found 'body'"),
        ({"text": ["a", None]}, "row 2: 'text' is null; expected a string"),
        ({"text": [1]}, "row 1: 'text' is int; expected a string"),
        ({"text": []}, "no rows; expected a Parquet file"),
    ],
)
def test_a_mistake_in_parquet_names_the_row(tmp_path, rows, said) -> None:
    path = tmp_path / "file"
    pl.DataFrame(rows).write_parquet(path)
    assert said in message(path, path.read_bytes(), "parquet").message


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1 and more PAR1"])
def test_what_is_no_parquet_is_said(tmp_path, content) -> None:
    assert "expected a Parquet file" in message(tmp_path / "file", content, "parquet").message


@pytest.mark.parametrize("where", ["collect_schema", "collect"])
def test_damage_that_polars_panics_at_is_no_parquet(tmp_path, monkeypatch, where) -> None:
    def panics(*_, **__):
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    path = tmp_path / "file"
    pl.DataFrame({"text": ["a"]}).write_parquet(path)
    monkeypatch.setattr(pl.LazyFrame, where, panics)
    assert "expected a Parquet file" in message(path, path.read_bytes(), "parquet").message


def test_parquet_with_classes_is_read_with_its_labels(tmp_path) -> None:
    path = tmp_path / "file"
    pl.DataFrame({"sentence": ["a", "b", "c"], "label": ["neg", "pos", "neg"]}).write_parquet(path)
    split = load_dataset(Workload(dataset="parquet", data_path=str(path))).train
    assert (split.texts, split.labels.tolist(), split.classes) == (["a", "b", "c"], [0, 1, 0], ("neg", "pos"))


READ_WHOLE = """
import resource, sys
from dynbench.config.schema import Workload
from dynbench.workloads.datasets import {dataset}
from pathlib import Path
small, large = Path(sys.argv[1]), Path(sys.argv[2])
def peak(path):
    characters = sum(map(len, {dataset}.read(path, Workload(name='causal_lm'))))
    return characters, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(*peak(small), *peak(large))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dataset", STREAMED)
def test_a_file_is_never_in_memory_whole(tmp_path, dataset) -> None:
    """48 MB are read within a sixth of them more than a file of 1 MB takes; the planted fault is a list of its rows."""
    rows = [{"id": str(i), "title": "t", "text": f"{i:08d} " * 1000} for i in range(5300)]
    small, large = written(tmp_path / "small", dataset, rows[:100]), written(tmp_path / "large", dataset, rows)
    if dataset == "parquet":
        pl.DataFrame(rows).write_parquet(large, row_group_size=250, compression="uncompressed")
    source = READ_WHOLE.format(dataset=dataset)
    done = subprocess.run(
        [sys.executable, "-c", source, str(small), str(large)], capture_output=True, text=True, check=True
    )
    _, before, characters, after = map(int, done.stdout.split())
    assert characters == 5300 * 9002
    assert after - before < characters * (0.6 if dataset == "parquet" else 1 / 6)


@pytest.mark.parametrize("dataset", ["jsonl", "parquet"])
def test_another_column_of_a_file_is_another_source(tmp_path, dataset) -> None:
    path = written(tmp_path / "a", dataset, [{"one": "a word", "two": "another"}])
    one, two = (corpus(path, dataset, text_column=column) for column in ("one", "two"))
    assert [*one.read()] != [*two.read()]
    assert contents_of(tmp_path, one) != contents_of(tmp_path, two)
    assert contents_of(tmp_path, one) == Contents(1, 6, contents_of(tmp_path, one).digest)
    assert stem(one) != stem(two), "neither writes over what is kept of the other"
