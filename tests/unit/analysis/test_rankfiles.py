from dataclasses import replace

import polars as pl
import pytest

from dynbench.analysis.rank_files import find_rank_files, read_rank_file
from dynbench.runs.columns import Column, read_columns, write_columns


@pytest.fixture
def rank_file(make_run):
    return make_run("static", steps=5, warmup_steps=2).rank_file(1)


def test_a_whole_file_is_read_whole(rank_file):
    found = read_rank_file(1, rank_file)
    assert (found.rows.height, found.torn_lines, found.note) == (7, 0, None)


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_torn_last_line_is_dropped_and_counted(rank_file, cut):
    rank_file.write_bytes(rank_file.read_bytes()[:-cut])
    found = read_rank_file(1, rank_file)
    assert (found.rows["step"].to_list(), found.torn_lines) == ([0, 1, 2, 3, 4, 5], 1)


@pytest.mark.parametrize("line", ["3,1", "x" * 30, "3,1,0,static,garbage" + ",1" * 17, "\x00" * 50])
def test_an_unreadable_line_in_the_middle_is_dropped_and_counted(rank_file, line):
    lines = rank_file.read_text().splitlines()
    lines[4] = line
    rank_file.write_text("\n".join(lines) + "\n")
    found = read_rank_file(1, rank_file)
    assert (found.rows["step"].to_list(), found.torn_lines) == ([0, 1, 2, 4, 5, 6], 1)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("", "is empty"),
        ("step,rank,war", "is empty"),
        ("step,rank\n0,1\n", "another version: it lacks warmup"),
    ],
)
def test_a_file_without_rows_is_named(rank_file, content, note):
    rank_file.write_text(content)
    found = read_rank_file(1, rank_file)
    assert found.rows is None
    assert note in found.note


def test_a_header_alone_has_no_row(rank_file):
    rank_file.write_text(rank_file.read_text().splitlines()[0] + "\n")
    found = read_rank_file(1, rank_file)
    assert found.rows is None
    assert found.note == "rank_1.csv has no row"


def test_another_ranks_rows_are_refused(rank_file):
    assert "holds rows of rank 1" in read_rank_file(0, rank_file).note


def test_repeated_steps_keep_the_first(rank_file):
    text = rank_file.read_text()
    rank_file.write_text(text + text.splitlines()[3] + "\n")
    found = read_rank_file(1, rank_file)
    assert found.rows["step"].to_list() == list(range(7))
    assert "1 rows dropped" in found.note


def test_a_loss_that_is_not_a_number_is_no_torn_line(rank_file):
    text = rank_file.read_text().splitlines()
    cells = text[2].split(",")
    cells[text[0].split(",").index("loss")] = "nan"
    text[2] = ",".join(cells)
    rank_file.write_text("\n".join(text) + "\n")
    found = read_rank_file(1, rank_file)
    assert (found.rows.height, found.torn_lines) == (7, 0)
    assert found.rows["loss"].is_nan().sum() == 1


def test_only_rank_files_are_found(tmp_path):
    for name in ("rank_10.csv", "rank_2.csv", "facts.json", "rank_x.csv", "rank_1.csv.bak"):
        (tmp_path / name).touch()
    assert list(find_rank_files(tmp_path)) == [2, 10]
    assert find_rank_files(tmp_path / "none") == {}


def with_columns(rank_file, **values):
    """The file with columns added, each with one value in every row."""
    header, *rows = rank_file.read_text().splitlines()
    lines = [",".join([header, *values]), *(",".join([row, *map(str, values.values())]) for row in rows)]
    rank_file.write_text("\n".join(lines) + "\n")


def test_declared_columns_are_kept_with_their_types(rank_file):
    with_columns(rank_file, rounds=2**40, codec="topk", ratio=0.25, unheard_of=1.5, empty="")
    columns = [
        Column("rounds", "integer", "", "Rounds."),
        Column("codec", "text", "", "What is sent."),
        Column("ratio", "number", "", "Part that is sent."),
        Column("empty", "number", "ms", "Not in every step."),
    ]
    write_columns(rank_file.parent, columns)
    found = read_rank_file(1, rank_file)
    assert (found.rows.height, found.torn_lines, found.note) == (7, 0, None)
    assert found.rows.row(0, named=True).items() >= {"rounds": 2**40, "codec": "topk", "ratio": 0.25}.items()
    assert found.rows["unheard_of"].unique().to_list() == [1.5]
    assert found.rows["empty"].null_count() == 7
    assert read_columns(rank_file.parent) == {column.name: column for column in columns}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"columns": [{"name": "a"}]}'])
def test_a_declaration_that_cannot_be_read_is_warned_of_and_the_rows_stay(rank_file, caplog, content):
    with_columns(rank_file, rounds=3)
    (rank_file.parent / "columns.json").write_text(content)
    assert read_rank_file(1, rank_file).rows["rounds"].to_list() == [3.0] * 7
    assert "columns.json cannot be read" in caplog.text


def test_columns_are_declared_once(tmp_path):
    column = Column("rounds", "integer", "", "Rounds.")
    for columns in ([column, column], [replace(column, name="loss")]):
        with pytest.raises(ValueError, match="columns declared twice"):
            write_columns(tmp_path, columns)


def test_squares_of_lengths_that_were_not_recorded_are_null_and_no_line_is_torn(rank_file):
    names = ("real_tokens2", "padded_tokens2")
    pl.read_csv(rank_file).drop(names).write_csv(rank_file)
    found = read_rank_file(1, rank_file)
    assert (found.note, found.torn_lines, found.rows.height) == (None, 0, 7)
    assert [(found.rows[name].dtype, found.rows[name].null_count()) for name in names] == [(pl.Int64(), 7)] * 2


def test_a_file_from_before_layouts_were_recorded_is_of_padded_batches(rank_file):
    lines = [line.split(",") for line in rank_file.read_text().splitlines()]
    place = lines[0].index("layout")
    rank_file.write_text("".join(",".join(cells[:place] + cells[place + 1 :]) + "\n" for cells in lines))
    found = read_rank_file(1, rank_file)
    assert (found.note, found.torn_lines) == (None, 0)
    assert set(found.rows["layout"]) == {"padded"} and found.rows.height == 7
