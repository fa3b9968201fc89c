from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dynbench.errors import RunLookupError, UsageError
from dynbench.runs import run as run_module
from dynbench.runs import store as store_module
from dynbench.runs.lookup import strangers
from dynbench.runs.run import Run
from dynbench.runs.run_record import RunRecord
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore, default_root, results_option


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


def finished(store: RunStore, slug: str = "static", name: str | None = None, command: str = "train") -> Run:
    run = store.create(command, slug, name=name)
    run.update(status="completed", exit_code=0)
    return run


def refused(store: RunStore, ref: str) -> RunLookupError:
    with pytest.raises(RunLookupError) as caught:
        store.resolve(ref)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value


def test_runs_are_found_by_id_name_prefix_and_age(store: RunStore) -> None:
    a, b, c = finished(store, "static", "a"), finished(store, "dynamic", "b"), finished(store, "cmp", command="compare")
    assert store.list() == [a, b, c]
    for run in (a, b, c):
        assert store.resolve(run.id) == run
    assert store.resolve("a") == a
    assert store.resolve(b.id[:-1]) == b
    assert store.resolve("@latest") == c
    assert store.resolve("@latest:dynamic") == b
    assert store.resolve("@latest:train") == b
    assert store.resolve("@latest:cmp") == store.resolve("@latest:compare") == c
    assert store.resolve(str(a.path)).id == a.id


def test_a_name_wins_over_a_prefix(store: RunStore) -> None:
    a = finished(store)
    b = finished(store, name=a.id[:4])
    assert store.resolve(a.id[:4]) == b


def test_what_is_not_there(store: RunStore) -> None:
    assert "no runs there yet" in refused(store, "x").hint
    finished(store, "static", "baseline")
    assert "Did you mean 'baseline'?" in refused(store, "baselin").message
    assert "Did you mean 'static'?" in refused(store, "@latest:statik").message
    assert "@latest" in refused(store, "@newest").hint
    assert "no run.json" in refused(store, "some/where").message
    refused(store, "")


def test_an_ambiguous_prefix_lists_what_it_matches(store: RunStore) -> None:
    runs = [finished(store, name=name) for name in ("a", "b")]
    message = refused(store, "2").message
    assert all(run.id in message for run in runs)
    assert "(a)" in message
    for _ in range(6):
        finished(store)
    assert "and 3 more" in refused(store, "2").message


@pytest.mark.parametrize("name", ["", "../x", "a b", "@x"])
def test_bad_names_are_refused_before_anything_is_made(store: RunStore, name: str) -> None:
    with pytest.raises(RunLookupError, match="not allowed"):
        store.create("train", "static", name=name)
    assert not store.root.exists()


def test_a_name_in_use_is_refused_unless_replaced(store: RunStore) -> None:
    older = finished(store, name="a")
    with pytest.raises(RunLookupError, match=f"in use by run {older.id}") as caught:
        store.create("train", "static", name="a")
    assert "--replace" in caught.value.hint
    assert len(store.list()) == 1
    newer = store.create("train", "static", name="a", replace=True)
    assert store.resolve("a") == newer
    assert older.name is None
    assert store.resolve(older.id) == older
    assert older.status is Status.COMPLETED


def test_checking_a_name_touches_nothing(store: RunStore) -> None:
    store.check_name("a")
    store.check_name(None)
    assert not store.root.exists()


def test_one_of_many_at_once_gets_the_name(store: RunStore) -> None:
    def attempt(_: int) -> bool:
        try:
            store.create("train", "static", name="a")
        except RunLookupError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 1
    assert len(store.list()) == 1


def test_an_id_in_use_is_drawn_again(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["20260101-000000-x-aaaa", "20260101-000000-x-aaaa", "20260101-000000-x-bbbb"])
    monkeypatch.setattr(store_module, "new_id", lambda slug: next(ids))
    assert [store.create("train", "x").id[-4:] for _ in range(2)] == ["aaaa", "bbbb"]


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="results folder cannot be written") as caught:
        RunStore(tmp_path / "file" / "results").create("train", "static")
    assert "--results" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_said_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        RunStore(tmp_path).create("train", "static")


def test_a_full_disk_is_said_at_once(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match="No space left"):
        store.create("train", "static")
    monkeypatch.undo()
    assert store.list() == []


def test_malformed_runs_are_warned_about_and_left_out(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = finished(store, name="good"), finished(store)
    bad.record_file.write_text("{")
    (store.root / "reference").mkdir()
    (store.root / "README.md").write_text("x")
    with caplog.at_level(logging.WARNING):
        assert store.list() == [good]
    assert str(bad.record_file) in caplog.text
    assert store.resolve("good") == good
    assert store.resolve(bad.id) == bad


def test_a_running_run_is_not_removed_unless_forced(store: RunStore) -> None:
    run = store.create("train", "static")
    run.update(status="running")
    with pytest.raises(RunLookupError, match="is running") as caught:
        store.remove(run)
    assert "--force" in caught.value.hint
    store.remove(run, force=True)
    assert store.list() == []


def plant(store: RunStore, kind: str) -> Run:
    """A folder with somebody's precious file that is no run of the registry, by `kind`."""
    run = finished(store, name="own")
    outside = store.root.parent / "outside"
    places = {
        "parent": store.root / "..",
        "itself": store.root / ".",
        "outside": outside,
        "other registry": outside / run.id,
        "link": store.root / "20260101-000000-x-aaaa",
        "copy": store.root / "copy",
        "unreadable": store.root / "foreign",
        "nothing recorded": store.root / "foreign",
    }
    path = places[kind]
    real = outside if kind == "link" else path
    real.mkdir(parents=True, exist_ok=True)
    (real / "precious").write_text("x")
    if kind != "nothing recorded":
        (real / "run.json").write_text("{" if kind == "unreadable" else run.record_file.read_text())
    if kind == "link":
        path.symlink_to(real, target_is_directory=True)
    return Run(path)


FOREIGN = ("parent", "itself", "outside", "other registry", "link", "copy", "unreadable", "nothing recorded")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_run_of_the_registry_is_never_removed(store: RunStore, kind: str, force: bool) -> None:
    foreign = plant(store, kind)
    with pytest.raises(RunLookupError, match="so it is not removed") as caught:
        store.remove(foreign, force=force)
    assert str(store.root) in caught.value.hint
    assert (foreign.path / "precious").read_text() == "x"


@pytest.mark.parametrize("kind", FOREIGN[4:])
def test_strangers_in_the_results_folder_are_listed(store: RunStore, kind: str) -> None:
    foreign = plant(store, kind)
    assert [path for path, _ in strangers(store.root)] == [foreign.path]
    assert strangers(store.root / "not there") == []


@pytest.mark.parametrize("ref", [".", "..", ""])
def test_dots_are_no_reference(store: RunStore, ref: str) -> None:
    finished(store)
    for folder in (store.root, store.root.parent):
        (folder / "run.json").write_text("{}")
    refused(store, ref)


def test_what_replaces_a_name_and_what_ends_the_run_both_stay(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.create("train", "static", name="a")
    run.update(status="running")
    other = threading.Thread(target=store.create, args=("train", "static", "a", True))
    change = run_module.changed

    def interleaved(record: RunRecord, changes: Mapping[str, object]) -> RunRecord:
        if changes.get("status") == "completed":
            other.start()
            other.join(0.5)
        return change(record, changes)

    monkeypatch.setattr(run_module, "changed", interleaved)
    run.update(status="completed", exit_code=0)
    other.join()
    assert (run.status, run.name) == (Status.COMPLETED, None)
    assert store.resolve("a") != run


def write_and_look(path: Path, field: str, values: Sequence[object]) -> None:
    run = Run(path)
    for value in values:
        run.update(**{field: value})
        assert getattr(run.record(), field) == value


@pytest.mark.slow
def test_two_processes_write_one_record_and_nothing_is_lost(store: RunStore) -> None:
    run = store.create("train", "static")
    context = multiprocessing.get_context("fork")
    work = {"name": [f"n{i}" for i in range(150)], "exit_code": list(range(150))}
    writers = [context.Process(target=write_and_look, args=(run.path, *item)) for item in work.items()]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert (run.record().name, run.record().exit_code) == ("n149", 149)


@pytest.mark.slow
def test_a_run_whose_launcher_was_killed_is_lost(store: RunStore) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from dynbench.runs.store import RunStore\n"
        "run = RunStore(Path(sys.argv[1])).create('train', 'static', name='a'); run.update(status='running')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    assert done.returncode == -9
    run = store.resolve("a")
    assert json.loads(run.record_file.read_text())["status"] == "running"
    assert run.status is Status.LOST


def test_the_results_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    assert default_root() == Path("results")
    monkeypatch.setenv("DYNBENCH_RESULTS", "/data/runs")
    assert default_root() == Path("/data/runs")


def test_a_disk_that_fills_up_leaves_no_half_made_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(store_module, "write_json", full)
    with pytest.raises(UsageError, match="results folder cannot be written: No space left"):
        store.create("train", "static", name="a")
    assert [path for path in store.root.iterdir() if path.is_dir()] == []
    monkeypatch.undo()
    assert store.create("train", "static", name="a").name == "a"


def test_a_run_that_cannot_be_read_is_found_by_its_prefix(store: RunStore) -> None:
    run = finished(store)
    run.record_file.write_text("")
    assert store.resolve(run.id[:-1]) == run
    other = run.path.with_name(run.id[:-1] + ("a" if run.id[-1] != "a" else "b"))
    other.mkdir()
    (other / "run.json").write_text("")
    assert "(unreadable)" in refused(store, run.id[:-1]).message


def test_a_folder_of_somebody_else_does_not_hide_the_others(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, foreign = finished(store, name="good"), finished(store)
    is_file = Path.is_file

    def forbidden(path: Path) -> bool:
        if path.parent == foreign.path:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", forbidden)
    assert store.list() == [good]
    assert str(foreign.path) in caplog.text


def test_a_command_to_copy_names_the_registry_unless_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    assert results_option(Path("results")) == ""
    assert results_option(Path("my runs")) == " --results 'my runs'"
    monkeypatch.setenv("DYNBENCH_RESULTS", "my runs")
    assert results_option(Path("my runs")) == ""


def test_a_name_that_was_taken_meanwhile_is_not_given(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    first, second = finished(store), finished(store)
    store.give_name(first, "best")
    assert (first.name, caplog.text) == ("best", "")
    store.give_name(second, "best")
    assert (first.name, second.name) == ("best", None)
    assert f"{second.id}: is not named best, which is run {first.id}" in caplog.text


def test_a_name_is_passed_on_if_there_still_is_one(store: RunStore) -> None:
    older, newer = finished(store, name="best"), finished(store)
    store.pass_name(older, newer)
    assert (older.name, newer.name) == (None, "best")
    store.pass_name(older, newer)
    assert (older.name, newer.name) == (None, "best")


def test_what_cannot_be_removed_is_said(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def rmtree(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    run = finished(store)
    monkeypatch.setattr(store_module.shutil, "rmtree", rmtree)
    with pytest.raises(UsageError) as caught:
        store.remove(run)
    assert caught.value.message == f"{run.path}: cannot be removed: Permission denied"
    assert caught.value.hint == "Check who owns it, and that nothing holds it."
    assert run.path.is_dir()


def test_a_word_that_no_run_has_names_those_that_have_one(store: RunStore) -> None:
    assert "no runs there yet" in refused(store, "@latest:static").hint
    finished(store, "static")
    error = refused(store, "@latest:dynamic")
    assert error.message == f"run '@latest:dynamic': no such run in {store.root}."
    assert error.hint == "There are: static, train."
