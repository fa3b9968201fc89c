"""Texts without labels: the same articles in every format, mistakes in one line each, little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.cache import Contents, contents_of, stem
from dynbench.workloads.datasets.base import CorpusSplit, load_dataset

ARTICLES = [
    {"id": "0", "title": "First", "text": "a line\nand another\u2028 one"},
    {"id": "1", "title": "", "text": 'café \U0001f600 \\ " \0'},
    {"id": "x", "title": "Third", "text": ""},
]
TEXTS = [f"{article['title']}\n{article['text']}" for article in ARTICLES]
STREAMED = ("json", "jsonl", "parquet")


def written(path: Path, dataset: str, articles: list[dict[str, str]] = ARTICLES) -> Path:
    if dataset == "parquet":
        pl.DataFrame(articles).write_parquet(path, row_group_size=250, compression="uncompressed")
    elif dataset == "jsonl":
        path.write_text("".join(json.dumps(article) + "\n" for article in articles), encoding="utf-8")
    else:
        path.write_text(json.dumps(articles, indent=1), encoding="utf-8")
    return path


def corpus(path: Path, dataset: str = "json", **settings: str) -> CorpusSplit:
    split = load_dataset(Workload(name="causal_lm", dataset=dataset, data_path=str(path), **settings)).train  # type: ignore[arg-type]
    assert isinstance(split, CorpusSplit)
    return split


def texts(path: Path, dataset: str = "json", **settings: str) -> list[str]:
    return list(corpus(path, dataset, **settings).read())


def error(path: Path, content: bytes | str, dataset: str = "json") -> DataError:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        texts(path, dataset)
    assert "\n" not in caught.value.message and caught.value.message.startswith(f"{path}:")
    return caught.value


@pytest.mark.parametrize("dataset", STREAMED)
def test_every_format_gives_the_same_articles_as_often_as_asked(tmp_path, dataset) -> None:
    path = written(tmp_path / "file", dataset)
    split = corpus(path, dataset, eval_path=str(written(tmp_path / "eval", dataset, ARTICLES[:1])))
    assert [list(split.read()), list(split.read()), len(split)] == [TEXTS, TEXTS, 3]
    settings = Workload(name="causal_lm", dataset=dataset, data_path=str(path), eval_path=str(tmp_path / "eval"))  # type: ignore[call-arg]
    held = load_dataset(settings).eval
    assert (len(held), held.source) == (1, str(tmp_path / "eval"))
    assert corpus(path, dataset).state == split.state
    written(path, dataset, ARTICLES[:2])
    assert corpus(path, dataset).state != split.state, "the state follows the file"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("space", [b"", b" \r\n\t"])
def test_a_mark_and_space_around_the_array_change_nothing(tmp_path, mark, space) -> None:
    path = tmp_path / "file"
    path.write_bytes(mark + space + json.dumps(ARTICLES).encode() + space)
    assert texts(path) == TEXTS


def test_lines_of_another_column_and_null_titles_are_read(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text('\ufeff{"body": "a", "title": null}\r\n  \n{"body": "b", "title": "t"}\r\n', encoding="utf-8")
    assert texts(path, "jsonl", text_column="body") == ["a", "t\nb"]
    assert "Did you mean --text-column body?" in error(path, path.read_bytes(), "jsonl").hint


def an(index: int = 0, **changes: object) -> str:
    found = {"id": str(index), "title": "t", "text": "x"} | changes
    return json.dumps({key: value for key, value in found.items() if value is not ...})


@pytest.mark.parametrize(
    ("dataset", "content", "said"),
    [
        ("json", b"\xef\xbb\xbf \n", ":1: the file is empty; expected an array"),
        ("json", "[ \n ]", "the array is empty; expected an array of objects"),
        ("json", '"a text"', "begins with"),
        ("json", f"[{an(0)}, {an(1, text=...)}]", "item 2: no 'text'; found 'id', 'title'"),
        ("json", "[{}]", "item 1: no 'id' and no 'title' and no 'text'; found no key"),
        ("json", f"[{an(0)}, 5]", "item 2: int; expected an array of objects"),
        ("json", "[null]", "item 1: null"),
        ("json", f"[{an(0)}, {an(1, text=['x'])}]", "item 2: 'text' is list; expected a string"),
        ("json", f"[{an(title=None)}]", "item 1: 'title' is null; expected a string"),
        ("json", f"[{an(id=True)}]", "item 1: 'id' is True; expected a string or an integer"),
        ("json", f"[{an(0)}, {an(1)}, {an(0)}]", "item 3: id '0' is that of item 1 too"),
        ("json", f"[{an(id=7)}, {an(id='7')}]", "item 2: id '7' is that of item 1 too"),
        ("json", f"[{an(0)}", "item 2: parse error: premature EOF"),
        ("json", f"[{an(0)},]", "item 2: parse error: unallowed token at this point in JSON text"),
        ("json", f"[{an(0)}] [", "item 2: parse error: trailing garbage"),
        ("json", f"[{an(0)}, {an(1, text='?')}]".encode().replace(b"?", b"\xff"), "item 2: lexical error: invalid"),
        ("jsonl", "\n\n", ":1: the file is empty"),
        ("jsonl", '{"text": "a"}\n\n{"body": "b"}\n', ":3: no column 'text' (workload.text_column); found 'body'"),
        ("jsonl", '{"text": "a", "title": []}\n', ":1: 'title' is list"),
        ("jsonl", '{"text": "\\ud800"}\n', ":1: 'text' holds half a surrogate pair"),
        ("jsonl", '{"text": "a"}\n{"text"\n', ":2: Expecting ':' delimiter"),
        ("jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', ":2: byte 0xff is not UTF-8 text"),
        ("parquet", b"no parquet", "expected a Parquet file"),
        ("parquet", b"PAR1 and more PAR1", "expected a Parquet file"),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(tmp_path, dataset, content, said) -> None:
    assert said in error(tmp_path / "file", content, dataset).message


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
    assert said in error(path, path.read_bytes(), "parquet").message


@pytest.mark.parametrize("where", ["collect_schema", "collect"])
def test_damage_that_polars_panics_at_is_no_parquet(tmp_path, monkeypatch, where) -> None:
    def panics(*_, **__):
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    path = tmp_path / "file"
    pl.DataFrame({"text": ["a"]}).write_parquet(path)
    monkeypatch.setattr(pl.LazyFrame, where, panics)
    assert "expected a Parquet file" in error(path, path.read_bytes(), "parquet").message


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
def test_a_file_is_never_in_memory_whole(tmp_path, dataset) -> None:
    """48 MB are read within a sixth of them more than a file of 1 MB takes; the planted fault is a list of its rows."""
    rows = [{"id": str(i), "title": "t", "text": f"{i:08d} " * 1000} for i in range(5300)]
    paths = written(tmp_path / "small", dataset, rows[:100]), written(tmp_path / "large", dataset, rows)
    done = subprocess.run(
        [sys.executable, "-c", READ_WHOLE, dataset, *map(str, paths)], capture_output=True, text=True, check=True
    )
    _, before, characters, after = map(int, done.stdout.split())
    assert characters == 5300 * 9002
    assert after - before < characters * (0.6 if dataset == "parquet" else 1 / 6)


@pytest.mark.parametrize("dataset", ["jsonl", "parquet"])
def test_another_column_of_a_file_is_another_source(tmp_path, dataset) -> None:
    path = written(tmp_path / "a", dataset, [{"one": "a word", "two": "another"}])
    one, two = (corpus(path, dataset, text_column=column) for column in ("one", "two"))
    found = contents_of(tmp_path, one)
    assert found != contents_of(tmp_path, two) and found == Contents(1, 6, found.digest)
    assert stem(one) != stem(two), "neither overwrites what is cached of the other"
