"""Traces of lengths: every format written and read, what is refused, and the distributions that are built in."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.errors import DataError
from dynbench.lengths import LONGEST_LENGTH, READERS, encode_trace
from dynbench.schedule.traces import Trace, built_in_trace, describe, load_trace

LENGTHS = np.array([12, 3, 448, 7], dtype=np.int64)


def written(path: Path, content: object) -> Path:
    """A file of text, bytes, one array, several arrays, or a table."""
    if isinstance(content, pl.DataFrame):
        writers = {".csv": content.write_csv, ".jsonl": content.write_ndjson, ".parquet": content.write_parquet}
        writers[path.suffix](path)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, dict):
        with path.open("wb") as file:
            np.savez(file, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@settings(max_examples=30)
@given(st.lists(st.integers(1, LONGEST_LENGTH), min_size=1, max_size=50))
def test_any_positive_lengths_survive_every_format(tmp_path_factory, lengths):
    folder = tmp_path_factory.mktemp("trace")
    for suffix in READERS:
        path = folder / f"some.lengths{suffix}"
        path.write_bytes(encode_trace(np.array(lengths), path))
        trace = load_trace(str(path))
        assert trace.lengths.tolist() == lengths
        assert (trace.name, trace.source) == ("some", str(path))


def test_text_holds_a_number_a_line_and_tables_one_column():
    assert encode_trace(LENGTHS, Path("trace.txt")) == b"12\n3\n448\n7\n"
    assert encode_trace(LENGTHS, Path("trace.CSV")) == b"length\n12\n3\n448\n7\n"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_columns_are_named_and_train_is_told_of_them(tmp_path, suffix):
    frame = pl.DataFrame({"tokens": [5, 6, 7], "patches": [0, 196, 64], "name": ["a", "b", "c"]})
    path = written(tmp_path / f"three{suffix}", frame)
    trace = load_trace(str(path), "tokens", "patches")
    assert (trace.lengths.tolist(), trace.second.tolist()) == ([5, 6, 7], [0, 196, 64])
    assert trace.cut(5).second.tolist() == [0, 196, 64]
    assert trace.workload == {
        "workload.dataset": "lengths",
        "workload.data_path": str(path),
        "workload.length_column": "tokens",
        "workload.second_column": "patches",
    }
    only = load_trace(str(written(tmp_path / f"one{suffix}", frame[["tokens"]])))
    assert (only.lengths.tolist(), only.second) == ([5, 6, 7], None)
    for columns, said in (
        ((), "no column 'length'; it has tokens, patches, name"),
        (("length",), "no (column|field) 'length'"),
        (("tokens", "patch"), "no (column|field) 'patch'"),
        (("tokens", "name"), "name|row 1"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            load_trace(str(path), *columns)
        assert caught.value.hint


@pytest.mark.parametrize("name", ["bare.csv", "bare.txt", "bare.jsonl"])
def test_bare_numbers_need_no_header(tmp_path, name):
    assert load_trace(str(written(tmp_path / name, "5\n6\n"))).lengths.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("frac.csv", "length\n3\n4\n4.5\n", "row 3: length 4.5,"),
        ("word.csv", "length\n3\nlong\n", "row 2: length 'long',"),
        ("flag.jsonl", '{"length": true}\n', "row 1: length True,"),
        ("text.jsonl", '{"length": "3"}\n', "row 1: length '3',"),
        ("huge.jsonl", '{"length": 3}\n{"length": 1' + "0" * 30 + "}\n", "row 2: length 1" + "0" * 30 + ","),
        ("inf.npy", np.array([1.0, np.inf]), "row 2: length inf,"),
        ("zero.npy", np.array([3, 0]), "row 2: length 0,"),
        ("huge.npy", np.array([2**63], dtype=np.uint64), "row 1: length 9223372036854775808,"),
        ("square.npy", np.ones((2, 2), dtype=int), "shape (2, 2)"),
        ("flag.npy", np.array([True]), "bool values"),
        ("text.npy", np.array(["5"]), "<U1 values"),
        ("complex.npy", np.array([1 + 2j]), "complex128 values"),
        ("empty.npy", np.array([], dtype=int), "the trace is empty"),
        ("many.npy", {"a": LENGTHS}, "holds several arrays"),
        ("null.parquet", pl.DataFrame({"length": [1, None]}), "row 2: length missing,"),
        ("list.parquet", pl.DataFrame({"length": [[1], [2]]}), "holds List"),
        ("empty.csv", "", "the trace is empty"),
        ("torn.jsonl", '{"length": 3}\n{"len', "row 2: not JSON"),
        ("other.jsonl", '{"length": 3}\n{"size": 4}\n', "row 2: no field 'length'; it has size"),
        ("binary.jsonl", b"\xff\xfe\n", "not a readable text file"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_with_file_and_row(tmp_path, name, content, message):
    path = written(tmp_path / name, content)
    with pytest.raises(DataError) as caught:
        load_trace(str(path))
    assert str(path) in caught.value.message and message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.csv", "length,patches\n5,1\n6,-2\n", "row 2: patches -2, expected a whole number from 0 to"),
        ("bad.csv", "length,patches\n5,\n6,2\n", "row 1: patches missing"),
        ("bad.jsonl", '{"length": 5, "patches": 1.5}\n', "row 1: patches 1.5"),
        ("bad.jsonl", "5\n6\n", "row 1: no field 'patches' of a bare number"),
        ("bad.txt", "5\n6\n", "no column 'patches'"),
        ("bad.npy", np.array([5, 6]), "an array has no column 'patches'"),
    ],
)
def test_a_bad_second_number_is_named(tmp_path, name, content, said):
    path = written(tmp_path / name, content)
    with pytest.raises(DataError, match=said):
        load_trace(str(path), "length" if "length" in str(content) else None, "patches")


def test_arrays_and_lines_are_read_without_polars(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    lines = "\n".join(json.dumps({"length": int(n)}) for n in LENGTHS)
    for path in (written(tmp_path / "t.npy", LENGTHS), written(tmp_path / "t.jsonl", lines)):
        assert load_trace(str(path)).lengths.tolist() == LENGTHS.tolist()


def test_statistics_and_samples_that_were_cut_over_all_cuts():
    trace = Trace("t", np.array([5, 10, 20, 40]), "here", train_max_length=10)
    found = describe(trace.lengths)
    assert (found.samples, found.min, found.max, found.sd) == (4, 5, 40, pytest.approx(179.6875**0.5))
    assert (trace.cut_samples, trace.longer_than_train, trace.cut(None)) == (0, 2, trace)
    twice = trace.cut(20).cut(10)
    assert (twice.lengths.tolist(), twice.cut_samples, twice.longer_than_train) == ([5, 10, 10, 10], 3, 0)


@pytest.mark.parametrize(
    ("name", "size", "tokens", "squares"),
    [("sst2", 67_349, 897_039, 18_084_855), ("gsm8k", 7_473, 1_182_423, 211_417_645)],
)
def test_built_in_histograms_are_those_of_the_data(name, size, tokens, squares):
    """Facts of the training splits, computed from their texts."""
    lengths = built_in_trace(name).lengths
    assert (len(lengths), lengths.sum(), (lengths**2).sum()) == (size, tokens, squares)


def test_a_distribution_says_what_train_draws_and_its_order_is_the_one_that_results_were_published_with():
    trace = load_trace("lognormal")
    assert (trace.source, trace.workload) == ("lognormal(5, 1) clamped to 16-1024", {"workload.dataset": "lognormal"})
    assert load_trace("gsm8k").lengths[:6].tolist() == [186, 123, 192, 109, 108, 96]
