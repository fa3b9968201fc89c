from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from dynbench.errors import RunLookupError, UsageError
from dynbench.runs import store as store_module
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore, default_root, results_option, strangers


def finished(store: RunStore, slug: str = "static", name: str | None = None, command: str = "train") -> Run:
    run = store.create(command, slug, name=name)
    run.update(status="completed", exit_code=0)
    return run


def test_runs_are_found_by_id_name_prefix_and_age(store: RunStore) -> None:
    a, b, c = finished(store, "static", "a"), finished(store, "dynamic", "b"), finished(store, "cmp", command="compare")
    assert store.list() == [a, b, c]
    meant = {
        a: (a.id, "a", str(a.path)),
        b: (b.id, b.id[:-1], "@latest:dynamic", "@latest:train"),
        c: (c.id, "@latest", "@latest:cmp", "@latest:compare"),
    }
    assert {run: [store.resolve(ref) for ref in refs] for run, refs in meant.items()} == {
        run: [run] * len(refs) for run, refs in meant.items()
    }
    named = finished(store, name=a.id[:4])
    assert store.resolve(a.id[:4]) == named, "a name wins over a prefix"


@pytest.mark.parametrize(
    ("ref", "said", "hint"),
    [
        ("baselin", "Did you mean 'baseline'?", "runs ls"),
        ("@latest:statik", "Did you mean 'static'?", "There are: static, train."),
        ("@latest:dynamic", "no such run in", "There are: static, train."),
        ("@newest", "not a reference", "@latest"),
        ("some/where", "no run.json", "runs ls"),
        *((ref, "not", "") for ref in ("", ".", "..")),
    ],
)
def test_what_is_not_there(store: RunStore, ref: str, said: str, hint: str) -> None:
    store.root.mkdir()
    if os.sep not in ref and ref != "@newest":
        with pytest.raises(RunLookupError) as caught:
            store.resolve(ref)
        assert "no runs there yet" in caught.value.hint
    finished(store, "static", "baseline")
    for folder in (store.root, store.root.parent):
        (folder / "run.json").write_text("{}")
    with pytest.raises(RunLookupError) as caught:
        store.resolve(ref)
    assert said in caught.value.message and hint in caught.value.hint and "\n" not in caught.value.message


def test_an_ambiguous_prefix_lists_what_it_matches(store: RunStore) -> None:
    runs = [finished(store, name="a"), finished(store)]
    runs[1].record_file.write_text("")
    assert store.resolve(runs[1].id[:-1]) == runs[1], "which cannot be read"
    for more in ("ids begin so", "and 3 more"):
        with pytest.raises(RunLookupError, match=more) as caught:
            store.resolve("2")
        shown = {*caught.value.message.split(": ")[-1].split(", ")}
        assert "more" in more or shown == {f"{runs[0].id} (a)", f"{runs[1].id} (unreadable)"}
        for _ in range(6):
            finished(store)


def test_a_bad_name_is_refused_before_anything_is_made(store: RunStore) -> None:
    store.check_name("a")
    with pytest.raises(RunLookupError, match="not allowed"):
        store.create("train", "static", name="../x")
    assert not store.root.exists()


def test_a_name_in_use_is_refused_unless_replaced(store: RunStore) -> None:
    older = finished(store, name="a")
    with pytest.raises(RunLookupError, match=f"in use by run {older.id}") as caught:
        store.create("train", "static", name="a")
    assert "--replace" in caught.value.hint and store.list() == [older]
    newer = store.create("train", "static", name="a", replace=True)
    assert store.resolve("a") == newer and store.resolve(older.id) == older
    assert (older.name, older.status) == (None, Status.COMPLETED)


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


def test_a_name_is_given_and_passed_on_unless_it_is_taken(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    first, second = finished(store), finished(store)
    store.give_name(first, "best")
    store.give_name(second, "best")
    assert (first.name, second.name) == ("best", None)
    assert f"{second.id}: is not named best, which is run {first.id}" in caplog.text
    for _ in range(2):
        store.pass_name(first, second)
        assert (first.name, second.name) == (None, "best")


def test_a_full_disk_leaves_no_half_made_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, full_disk: OSError
) -> None:
    monkeypatch.setattr(store_module, "write_json", Mock(side_effect=full_disk))
    with pytest.raises(UsageError, match="results folder cannot be written: No space left"):
        store.create("train", "static", name="a")
    assert [path for path in store.root.iterdir() if path.is_dir()] == []
    monkeypatch.undo()
    assert store.create("train", "static", name="a").name == "a"


def test_malformed_runs_are_warned_about_and_left_out(
    store: RunStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, foreign = finished(store, name="good"), finished(store), finished(store)
    bad.record_file.write_text("{")
    (store.root / "reference").mkdir()
    is_file, forbidden = Path.is_file, Mock(side_effect=PermissionError(13, "Permission denied", str(foreign.path)))
    monkeypatch.setattr(Path, "is_file", lambda path: (forbidden if path.parent == foreign.path else is_file)(path))
    with caplog.at_level(logging.WARNING):
        assert store.list() == [good]
    assert str(bad.record_file) in caplog.text and str(foreign.path) in caplog.text
    monkeypatch.undo()
    assert [store.resolve(ref) for ref in ("good", bad.id)] == [good, bad]


FOREIGN = ("parent", "itself", "outside", "other registry", "link", "copy", "unreadable", "nothing recorded")


def plant(store: RunStore, kind: str) -> Run:
    """A folder with somebody's precious file that is no run of the registry, by `kind`."""
    run, outside = finished(store, name="own"), store.root.parent / "outside"
    named = {"parent": store.root / "..", "itself": store.root / ".", "outside": outside}
    path = outside / run.id if kind == "other registry" else named.get(kind, store.root / "foreign")
    if kind == "link":
        outside.mkdir()
        path.symlink_to(outside, target_is_directory=True)
    path.mkdir(parents=True, exist_ok=True)
    (path / "precious").write_text("x")
    if kind != "nothing recorded":
        (path / "run.json").write_text("{" if kind == "unreadable" else run.record_file.read_text())
    return Run(path)


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_run_of_the_registry_is_listed_and_never_removed(store: RunStore, kind: str) -> None:
    assert strangers(store.root) == []
    foreign = plant(store, kind)
    for force in (False, True):
        with pytest.raises(RunLookupError, match="so it is not removed") as caught:
            store.remove(foreign, force=force)
        assert str(store.root) in caught.value.hint
    assert (foreign.path / "precious").read_text() == "x"
    if kind in FOREIGN[4:]:
        assert [path for path, _ in strangers(store.root)] == [foreign.path]


def write_and_look(path: Path, field: str, values: Sequence[object]) -> None:
    for value in values:
        Run(path).update(**{field: value})
        assert getattr(Run(path).record(), field) == value


@pytest.mark.slow
def test_two_processes_write_one_record_and_nothing_is_lost(store: RunStore) -> None:
    run = store.create("train", "static")
    work = [(run.path, "name", [f"n{i}" for i in range(50)]), (run.path, "exit_code", range(50))]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap_async(write_and_look, work, chunksize=1).get(60)
    assert (run.record().name, run.record().exit_code) == ("n49", 49)


def test_the_results_folder_and_the_option_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    assert default_root() == Path("results") and results_option(Path("results")) == ""
    assert results_option(Path("my runs")) == " --results 'my runs'"
    monkeypatch.setenv("DYNBENCH_RESULTS", "my runs")
    assert default_root() == Path("my runs") and results_option(Path("my runs")) == ""
