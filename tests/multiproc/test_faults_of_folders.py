"""Folders that are moved, damaged or shared, a clock that is set back, data that change: nothing is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import ForkedPopen
from multiproc.faults import NAME, TWO_ARMS, Command, Saw, analyzed, answered, check, how_it_ended, worded

from dynbench.runs.run import Run
from dynbench.runs.status import Status

pytestmark = pytest.mark.multiproc

BACK = "import planted; planted.clock_that_steps_back()"
UNDRAWN = (
    "import matplotlib.figure as f, pathlib, pixel; "
    "f.Figure.savefig = lambda self, path, **_: pathlib.Path(path).write_bytes(pixel.png())"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A run to its end."""
    return Command(tmp_path_factory.mktemp("whole")).ran("train", "--json")


def test_a_results_folder_of_any_name(whole: Command, saw: Saw) -> None:
    check(whole, 0, Status.COMPLETED, rows=8)
    code, said = answered(whole.store.root, "report", whole.run.id)
    assert code == 0 and NAME in json.dumps(said, ensure_ascii=False)
    assert (whole.run.path / "report.en.md").is_file()
    saw(f"{worded(whole)}; analyzed and reported in {NAME!r}")


def test_a_run_moved_to_another_machine(whole: Command, tmp_path: Path, saw: Saw) -> None:
    before = analyzed(whole)
    moved = Run(tmp_path / "elsewhere" / whole.run.id)
    shutil.copytree(whole.run.path, moved.path)
    record = json.loads(moved.record_file.read_text())
    moved.record_file.write_text(json.dumps({**record, "host": "another-machine"}))
    code, said = answered(moved.path.parent, "analyze", whole.run.id)
    assert code == 0 and said["runs"] == before["runs"] and moved.status is Status.COMPLETED
    assert all(Path(path).is_relative_to(moved.path) for path in said["files"])
    code, said = answered(moved.path.parent, "report", whole.run.id)
    assert code == 0 and str(whole.store.root) not in (moved.path / "report.en.md").read_text()
    saw(f"exit 0, {moved.status}: the same numbers, files and figures in its new place")


def _empty(content: bytes) -> bytes:
    return b""


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _garbage(content: bytes) -> bytes:
    return b"\x00\xff{[" + bytes(reversed(content))


def _twice(content: bytes) -> bytes:
    return content + content


def _later(content: bytes) -> bytes:
    """As a version would write it that knows other keys and columns."""
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"{"):
        return b'{"schema_version": 999,' + content.lstrip()[1:]
    return b"of_later" + first[4:] + newline + rest


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": _empty,
    "truncated": _half,
    "corrupted": _garbage,
    "duplicated": _twice,
    "foreign": _later,
}
FILES = ("run.json", "config.yaml", "env.json", "ranks/rank_1.csv", "ranks/columns.json", "summary.json", "eval.csv")
IN_EVERY_RUN = {
    ("run.json", "truncated"),
    ("config.yaml", "foreign"),
    ("env.json", "corrupted"),
    ("ranks/rank_1.csv", "duplicated"),
    ("ranks/rank_1.csv", "empty"),
    ("ranks/columns.json", "corrupted"),
}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        pytest.param(file, damage, marks=() if (file, damage) in IN_EVERY_RUN else pytest.mark.matrix)
        for file in FILES
        for damage in DAMAGES
    ],
)
def test_a_damaged_file_of_a_run(whole: Command, tmp_path: Path, saw: Saw, file: str, damage: str) -> None:
    """Read as far as it can be, or refused in a line that names it; what lies beside it is not touched."""
    run = Run(tmp_path / whole.run.id)
    shutil.copytree(whole.run.path, run.path)
    path = run.path / file
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    kept = {each: each.read_bytes() for each in run.ranks_dir.iterdir()}
    seen = []
    for words in (("analyze", run.id), ("report", run.id), ("runs", "show", run.id), ("runs", "ls")):
        code, said = answered(tmp_path, *words)
        assert code in (0, 2), said
        if code:
            assert words[:2] != ("runs", "ls")
            assert "\n" not in said["error"]["message"] and said["error"]["hint"]
        seen.append(f"{words[0]} {code}")
    assert {each: each.read_bytes() for each in run.ranks_dir.iterdir()} == kept
    saw(", ".join(seen))


def test_a_clock_that_is_set_back(tmp_path: Path, saw: Saw) -> None:
    """Step times do not come from it, order and length of a run do."""
    ended = Command(tmp_path).ran("train", "--json", first=BACK)
    record = check(ended, 0, Status.COMPLETED, rows=8)
    assert record.ended is not None and record.started is not None and record.ended < record.started
    code, said = answered(ended.store.root, "runs", "show", "@latest")
    assert code == 0 and said["run"]["duration_s"] is None
    assert analyzed(ended)["runs"][0]["summary"]["step_time_ms"]["mean"] > 0
    saw(worded(ended))


MAKE_RUNS = """\
import sys, pathlib
import dynbench.runs.names as names
from datetime import datetime
from dynbench.runs.store import RunStore
class Clock(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime(2026, 1, 1)
names.datetime, names._SUFFIX_ALPHABET, names._SUFFIX_LENGTH = Clock, "abc", 4
print(RunStore(pathlib.Path(sys.argv[1])).create("train", "x", name=sys.argv[2]).id)
"""


def test_fifty_at_once_make_fifty_runs(tmp_path: Path, saw: Saw) -> None:
    """In one second, with 81 suffixes to draw from, so that many draw one that is taken."""
    root = tmp_path / NAME
    makers = [
        ForkedPopen([sys.executable, "-c", MAKE_RUNS, str(root), f"n{number}"], stdout=subprocess.PIPE, text=True)
        for number in range(50)
    ]
    ids = {maker.communicate(timeout=300)[0].strip() for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 50 and len(ids) == 50
    code, said = answered(root, "runs", "ls")
    assert code == 0 and {run["id"] for run in said["runs"]} == ids and len({run["name"] for run in said["runs"]}) == 50
    saw("exit 0, created: 50 ids, 50 names, 50 records")


TEXTS = "sentence\tlabel\n" + "".join(
    f"a film number{each % 7} of kind{each % 11}\t{each % 2}\n" for each in range(150)
)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film", "of", *(f"number{n}" for n in range(7)))


def test_a_cache_of_two_writers_and_data_that_change(tmp_path: Path, saw: Saw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that tokenise one file at once have one cache; a third one of another file is told from them."""
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    data, vocabulary = tmp_path / "texts.tsv", tmp_path / "vocab.txt"
    data.write_text(TEXTS)
    vocabulary.write_text("\n".join((*WORDS, *(f"kind{n}" for n in range(11)))) + "\n")
    words = ("train", "--json", "--no-figures", "--dataset", "tsv", "--data-path", str(data))
    words += ("--tokenizer", str(vocabulary))
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = map(Command, folders)
    two.store = one.store
    one.begin(*words)
    two.begin(*words)
    assert [one.end().code, two.end().code] == [0, 0], one.stderr + two.stderr
    first, second = one.runs
    data_of_first, data_of_second = first.env()["data"], second.env()["data"]
    assert data_of_first == data_of_second and isinstance(data_of_first, dict)
    kept = sorted(path.suffix for path in (tmp_path / "cache").iterdir())
    assert set(kept) == {".lock", ".npz"} and not list((tmp_path / "cache").glob(".*.tmp"))

    data.write_text(TEXTS.replace("kind3", "kind4 kind5"))
    assert one.ran(*words).code == 0
    code, said = answered(one.store.root, "analyze", first.id, one.run.id)
    assert code == 5 and "data.fingerprint" in said["error"]["message"], said
    saw(how_it_ended(5, one.run, said["error"]["message"]).replace(first.id, "RUN"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Command, Command]:
    """Two comparisons at once in one results folder."""
    folder = tmp_path_factory.mktemp("compared")
    recipe = folder / "two.yaml"
    recipe.write_text(TWO_ARMS + "launches: {count: 1, mode: interleaved}\n", encoding="utf-8")
    found = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        found.append(Command(folder / name))
    found[1].store = found[0].store
    for command in found:
        command.begin("compare", str(recipe), "--name", command.folder.name, "--json", first=UNDRAWN)
    for command in found:
        command.end()
    return found[0], found[1]


def test_two_comparisons_at_once(compared: tuple[Command, Command], saw: Saw) -> None:
    assert [command.code for command in compared] == [0, 0], compared[0].stderr + compared[1].stderr
    said = [json.loads(command.stdout) for command in compared]
    ids = [{run for arm in each["arms"] for run in arm["runs"]} for each in said]
    assert len(ids[0]) == len(ids[1]) == 2 and not ids[0] & ids[1]
    store = compared[0].store
    for each, own in zip(said, ids, strict=True):
        comparison = store.resolve(each["run"]["name"])
        assert comparison.status is Status.COMPLETED
        assert {run.record().group for run in map(store.resolve, own)} == {comparison.id}
        assert all(Path(report).is_file() for report in each["reports"])
    saw("exit 0, completed: both, each of its own runs")


def test_a_moved_comparison(compared: tuple[Command, Command], tmp_path: Path, saw: Saw) -> None:
    root = tmp_path / "elsewhere"
    shutil.copytree(compared[0].store.root, root)
    code, said = answered(root, "report", "one")
    assert code == 0, said
    texts = [
        path.read_text(encoding="utf-8") for path in (root / compared[0].store.resolve("one").id).glob("report*.md")
    ]
    assert texts and not any(str(compared[0].store.root) in text for text in texts)
    saw("exit 0, completed: reported in its new place")
