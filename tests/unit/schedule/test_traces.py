import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.errors import DataError, UsageError
from dynbench.lengths import LONGEST_LENGTH, READERS, encode_trace
from dynbench.schedule.traces import BUILT_IN, built_in_trace, describe, load_trace

LENGTHS = np.array([12, 3, 448, 7], dtype=np.int64)


@pytest.mark.parametrize("suffix", READERS)
def test_what_is_written_is_read_again(tmp_path, suffix):
    path = tmp_path / f"some.lengths{suffix}"
    path.write_bytes(encode_trace(LENGTHS, path))
    trace = load_trace(str(path))
    assert trace.lengths.tolist() == LENGTHS.tolist()
    assert (trace.name, trace.source) == ("some", str(path))


@pytest.mark.slow
@given(st.lists(st.integers(1, LONGEST_LENGTH), min_size=1, max_size=50))
def test_any_positive_lengths_survive_every_format(tmp_path_factory, lengths):
    folder = tmp_path_factory.mktemp("trace")
    for suffix in READERS:
        path = folder / f"trace{suffix}"
        path.write_bytes(encode_trace(np.array(lengths), path))
        assert load_trace(str(path)).lengths.tolist() == lengths


def test_a_column_is_found_or_named(tmp_path):
    frame = pl.DataFrame({"id": [1, 2], "tokens": [5, 6]})
    frame.write_csv(tmp_path / "two.csv")
    frame.write_ndjson(tmp_path / "two.jsonl")
    frame.select("tokens").write_parquet(tmp_path / "one.parquet")
    for name in ("two.csv", "two.jsonl"):
        with pytest.raises(DataError, match=r"no column 'length'; it has id, tokens"):
            load_trace(str(tmp_path / name))
        assert load_trace(str(tmp_path / name), "tokens").lengths.tolist() == [5, 6]
    assert load_trace(str(tmp_path / "one.parquet")).lengths.tolist() == [5, 6]
    with pytest.raises(DataError, match="no column 'length'"):
        load_trace(str(tmp_path / "one.parquet"), "length")


@pytest.mark.parametrize("name", ["bare.csv", "bare.txt", "bare.jsonl"])
def test_bare_numbers_need_no_header(tmp_path, name):
    (tmp_path / name).write_text("5\n6\n")
    assert load_trace(str(tmp_path / name)).lengths.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("name", "text", "row", "value"),
    [
        ("neg.csv", "length\n3\n-5\n", 2, "-5"),
        ("zero.csv", "length\n0\n", 1, "0"),
        ("frac.csv", "length\n3\n4\n4.5\n", 3, "4.5"),
        ("word.csv", "length\n3\nlong\n", 2, "'long'"),
        ("hole.csv", "length\n3\n\n5\n", 2, "missing"),
        ("nan.csv", "length\n3\nnan\n", 2, "missing"),
        ("huge.csv", "length\n99999999999\n", 1, "99999999999"),
        ("null.jsonl", '{"length": 3}\n{"length": null}\n', 2, "missing"),
        ("flag.jsonl", '{"length": true}\n', 1, "True"),
        ("text.jsonl", '{"length": "3"}\n', 1, "'3'"),
        ("huge.jsonl", '{"length": 3}\n{"length": 1' + "0" * 30 + "}\n", 2, "1" + "0" * 30),
    ],
)
def test_a_bad_value_is_named_with_file_and_row(tmp_path, name, text, row, value):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        load_trace(str(path))
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"{path}: row {row}: length {value},")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1.0, np.nan]), "row 2: length missing"),
        (np.array([1.0, np.inf]), "row 2: length inf"),
        (np.array([3, 0]), "row 2: length 0"),
        (np.array([2**63], dtype=np.uint64), "row 1: length 9223372036854775808"),
        (np.ones((2, 2), dtype=int), r"shape \(2, 2\)"),
        (np.array([True]), "bool values"),
        (np.array(["5"]), "<U1 values"),
        (np.array([1 + 2j]), "complex128 values"),
        (np.array([], dtype=int), "the trace is empty"),
    ],
)
def test_a_bad_array_is_refused(tmp_path, values, message):
    np.save(tmp_path / "bad.npy", values)
    with pytest.raises(DataError, match=message):
        load_trace(str(tmp_path / "bad.npy"))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.DataFrame({"length": [1, None]}), "row 2: length missing"),
        (pl.DataFrame({"length": [1.5]}), r"row 1: length 1\.5"),
        (pl.DataFrame({"length": ["1", "x"]}), "row 2: length 'x'"),
        (pl.DataFrame({"length": [[1], [2]]}), "holds List"),
        (pl.DataFrame({"length": []}, schema={"length": pl.Int64}), "the trace is empty"),
    ],
)
def test_a_bad_parquet_column_is_refused(tmp_path, frame, message):
    frame.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=message):
        load_trace(str(tmp_path / "bad.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "the trace is empty"),
        ("header.csv", b"length\n", "the trace is empty"),
        ("empty.jsonl", b"\n", "the trace is empty"),
        ("torn.jsonl", b'{"length": 3}\n{"len', "row 2: not JSON"),
        ("other.jsonl", b'{"length": 3}\n{"size": 4}\n', "row 2: no field 'length'; it has size"),
        ("binary.jsonl", b"\xff\xfe\n", "not a readable text file"),
        ("not.parquet", b"text", "not a readable parquet file"),
        ("not.npy", b"text", "not a readable .npy array"),
        ("trace.xls", b"3\n", "unknown trace format '.xls'"),
    ],
)
def test_an_unreadable_file_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_trace(str(tmp_path / name))
    assert str(tmp_path / name) in caught.value.message
    assert "\n" not in caught.value.message


def test_several_arrays_in_one_file_are_refused(tmp_path):
    with (tmp_path / "many.npy").open("wb") as file:
        np.savez(file, a=LENGTHS)
    with pytest.raises(DataError, match="holds several arrays"):
        load_trace(str(tmp_path / "many.npy"))


def test_a_file_says_with_which_settings_train_loads_it(tmp_path):
    path = tmp_path / "two.csv"
    pl.DataFrame({"id": [1, 2], "tokens": [5, 6]}).write_csv(path)
    assert load_trace(str(path), "tokens").workload == {
        "workload.dataset": "lengths",
        "workload.data_path": str(path),
        "workload.length_column": "tokens",
    }


def test_text_holds_a_number_a_line_and_tables_one_column():
    assert encode_trace(LENGTHS, Path("trace.txt")) == b"12\n3\n448\n7\n"
    assert encode_trace(LENGTHS, Path("trace.CSV")) == b"length\n12\n3\n448\n7\n"


def test_statistics_of_a_known_trace():
    found = describe(np.arange(1, 101))
    assert (found.samples, found.mean, found.min, found.p50, found.max) == (100, 50.5, 1, 50.5, 100)
    assert found.sd == pytest.approx(np.sqrt((100**2 - 1) / 12))


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_traces_are_fixed_and_in_no_order(name):
    trace = built_in_trace(name)
    assert trace.lengths.tolist() == built_in_trace(name).lengths.tolist()
    assert trace.lengths.min() >= 1
    assert abs(np.corrcoef(trace.lengths[:-1], trace.lengths[1:])[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("name", "source", "workload"),
    [
        ("sst2", "GLUE SST-2, training split, WordPiece tokens (histogram)", {"workload.dataset": "embedded"}),
        ("gsm8k", "GSM8K, training split, WordPiece tokens (histogram)", None),
        ("lognormal", "lognormal(5, 1) clamped to 16-1024", {"workload.dataset": "lognormal"}),
    ],
)
def test_a_built_in_trace_says_where_it_is_from_and_what_train_draws_from_it(name, source, workload):
    trace = load_trace(name)
    assert (trace.name, trace.source, trace.workload) == (name, source, workload)


def test_the_order_of_a_distribution_is_the_one_that_results_were_published_with():
    assert built_in_trace("gsm8k").lengths[:6].tolist() == [186, 123, 192, 109, 108, 96]


@pytest.mark.parametrize(
    ("name", "size", "tokens", "squares", "percentiles"),
    [
        ("sst2", 67_349, 897_039, 18_084_855, (10, 27, 33, 44, 66)),
        ("gsm8k", 7_473, 1_182_423, 211_417_645, (148, 236, 267, 328, 448)),
    ],
)
def test_built_in_histograms_are_those_of_the_data(name, size, tokens, squares, percentiles):
    """Facts of the training splits, computed from their texts."""
    lengths = built_in_trace(name).lengths
    assert (len(lengths), lengths.sum(), (lengths**2).sum()) == (size, tokens, squares)
    assert tuple(np.percentile(lengths, (50, 90, 95, 99, 100))) == percentiles


def test_arrays_and_lines_are_read_without_polars(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    np.save(tmp_path / "t.npy", LENGTHS)
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"length": int(n)}) for n in LENGTHS))
    for name in ("t.npy", "t.jsonl"):
        assert load_trace(str(tmp_path / name)).lengths.tolist() == LENGTHS.tolist()


def two_columns(folder: Path, suffix: str) -> Path:
    path = folder / f"two{suffix}"
    frame = pl.DataFrame({"length": [5, 6, 7], "patches": [0, 196, 64], "name": ["a", "b", "c"]})
    write = {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}
    write[suffix](path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_second_column_is_read_and_trained_with(tmp_path, suffix):
    path = two_columns(tmp_path, suffix)
    trace = load_trace(str(path), None, "patches")
    assert (trace.lengths.tolist(), trace.second.tolist()) == ([5, 6, 7], [0, 196, 64])
    assert trace.workload["workload.second_column"] == "patches"
    assert trace.cut(5).second.tolist() == [0, 196, 64]
    assert load_trace(str(path)).second is None
    for column, said in (("patch", "no (column|field) 'patch'"), ("name", "name|row 1")):
        with pytest.raises(DataError, match=said) as caught:
            load_trace(str(path), None, column)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.csv", "length,patches\n5,1\n6,-2\n", "row 2: patches -2, expected a whole number from 0 to"),
        ("bad.csv", "length,patches\n5,\n6,2\n", "row 1: patches missing"),
        ("bad.jsonl", '{"length": 5, "patches": 1.5}\n', "row 1: patches 1.5"),
        ("bad.jsonl", "5\n6\n", "row 1: no field 'patches' of a bare number"),
        ("bad.txt", "5\n6\n", "no column 'patches'"),
    ],
)
def test_a_bad_second_number_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        load_trace(str(tmp_path / name), "length" if "length" in content else None, "patches")


def test_an_array_and_a_distribution_have_no_second_column(tmp_path):
    np.save(tmp_path / "one.npy", np.array([5, 6]))
    with pytest.raises(DataError, match="an array has no column 'patches'"):
        load_trace(str(tmp_path / "one.npy"), None, "patches")
    with pytest.raises(UsageError, match="--second-column: 'patches' is no column of sst2"):
        load_trace("sst2", None, "patches")
