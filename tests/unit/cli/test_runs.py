"""`dynbench runs`: entries listed, shown and removed, comparisons with what was made for them."""

from __future__ import annotations

import io
import json
import shutil
import sys
from typing import Any

import pytest
from said import Cli

from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.export import EXPORT_FILE, Manifest, write_export
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def make(store: RunStore, command: str, name: str | None = None, status: str = "completed", **flags: str) -> Run:
    run = store.create(command, flags.get("schedule.policy", command), name=name)
    write_text(run.config_file, dump_config(load_config(None, [], flags)))
    run.update(status="running")
    if status != "running":
        run.update(status=status)
    return run


def compare(store: RunStore, name: str, launches: int = 2, status: str = "completed") -> tuple[Run, list[Run]]:
    """A comparison and what was made for it: its launches, the last with a given status, and a plan."""
    comparison = make(store, "compare", name)
    own = store.within(comparison)
    ends = [*["completed"] * (launches - 1), status]
    runs = [make(own, "train", f"{name}-{number}", end) for number, end in enumerate(ends)]
    return comparison, [*runs, make(own, "solve")]


def listed(cli: Cli, line: str = "") -> list[str]:
    """The id that each line begins with."""
    return [line.split()[0] for line in cli(f"runs ls {line}").lines[1:]]


def rm(cli: Cli, line: str, *words: str, code: int = 0) -> Any:
    return cli(f"runs rm --json {line}", *words, code=code).json


def ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def test_a_comparison_is_a_line_that_counts_what_was_made_for_it(store, cli):
    comparison, runs = compare(store, "cmp", status="failed")
    alone = make(store, "train", "alone")
    assert listed(cli) == ids([comparison, alone])
    assert " completed  3, 1 failed  " in cli("runs ls").lines[1]
    assert listed(cli, "--launches") == ids([comparison, *runs, alone])


def test_launches_recorded_before_groups_were_are_those_of_the_plan(store, cli):
    comparison, launch = make(store, "compare", "cmp"), make(store, "train")
    write_json(comparison.path / "compare.json", {"launches": [{"arm": "static", "run": launch.id}]})
    assert cli("runs ls --json").json["runs"][1]["group"] == comparison.id


def test_only_runs_since_a_day_or_age_and_a_comparison_with_what_was_made_for_it(store, cli):
    """All filters are among the goldens."""
    compare(store, "cmp")
    old = make(store, "train")
    write_json(old.record_file, json.loads(old.record_file.read_text()) | {"created": "2026-01-01T23:59:59+00:00"})
    for words, runs in (("2026-01-02", 4), ("2026-01-01", 5), ("1h", 4), ("1h --limit 1 --command compare,solve", 2)):
        assert len(cli(f"runs ls --since {words} --json").json["runs"]) == runs


def test_a_comparison_goes_with_all_that_was_made_for_it(store, cli):
    comparison, runs = compare(store, "cmp")
    alone = make(store, "train", "alone")
    sizes = sum(file.stat().st_size for run in (comparison, *runs) for file in run.path.rglob("*") if file.is_file())
    found = rm(cli, "cmp --with-launches --dry-run")
    assert len(store.list()) == 5
    assert rm(cli, "cmp --with-launches --yes") == {**found, "dry_run": False} != found
    assert (found["removed"], found["bytes"], found["kept"]) == (ids([*runs, comparison]), sizes, [])
    assert store.list() == [alone]
    for name in ("cmp", "cmp-0"):
        store.check_name(name)


def test_launches_stay_while_it_is_not_said_or_one_is_running_unless_forced(store, cli):
    compare(store, "cmp", status="running")
    for option in ("--yes", "--dry-run"):
        hint = rm(cli, f"cmp {option}", code=2)["error"]["hint"]
        assert "--with-launches" in hint and "--keep-launches" in hint
    rm(cli, "cmp --with-launches --yes", code=2)
    assert len(store.list()) == 4
    rm(cli, "cmp --with-launches --yes --force")
    assert store.list() == []


@pytest.mark.parametrize(("answers", "left"), [("nn", 4), ("yn", 4), ("ny", 3), ("yy", 0)])
def test_a_terminal_is_asked_about_the_launches(store, cli, monkeypatch, answers, left):
    compare(store, "cmp")
    typed = io.StringIO("\n".join(answers) + "\n")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    cli("runs rm cmp", code=0 if answers.endswith("y") else 130)
    assert len(store.list()) == left


READERS = ("comparison.json", "compare.json", "runs.json", "solve.json", "config.yaml")


@pytest.mark.parametrize("readable", [True, False])
def test_what_another_entry_reads_stays(store, cli, readable):
    comparison, (*runs, last, solve) = compare(store, "cmp", len(READERS) + 1)
    wanted = []
    for reader, run in zip(READERS, runs, strict=True):
        other = make(store, "analyze")
        write_text(other.path / reader, f'{{"arms": [{{"runs": ["{run.id}"]}}]}}')
        if not readable:
            other.record_file.write_text("{")
        wanted.append((run.id, other.id))
    write_text(runs[0].config_file, f"{runs[0].config_file.read_text()}\n# planned with {solve.id}\n")
    shown = rm(cli, "cmp --with-launches --yes")
    assert shown["removed"] == [last.id, comparison.id]
    kept = [(entry["id"], entry["used_by"]) for entry in shown["kept"]]
    assert sorted(kept) == sorted([*wanted, (solve.id, runs[0].id)])
    assert all(run.path.is_dir() for run in (*runs, solve))


def test_the_launches_of_an_unreadable_comparison_are_listed_and_stay(store, cli):
    comparison, runs = compare(store, "cmp")
    comparison.record_file.write_text("{")
    assert listed(cli) == ids(runs)
    rm(cli, f"{comparison.id} --with-launches --yes", code=2)
    assert all(run.path.is_dir() for run in (comparison, *runs))


@pytest.mark.parametrize("word", ["", "--keep-launches", "--with-launches"])
def test_failed_leaves_the_completed_launches_of_a_failed_comparison(store, cli, word):
    comparison, runs = compare(store, "cmp", 2, "failed")
    comparison.update(status="running")
    comparison.update(status="interrupted")
    rm(cli, f"--failed --yes {word}")
    assert store.list() == ([] if word == "--with-launches" else [runs[0], runs[2]])


def test_cells_go_with_their_comparisons_and_launches(store, cli):
    together = make(store, "compare", "together")
    for number in range(2):
        assert compare(store.within(together), f"cell{number}")[0].record().group == together.id
    assert listed(cli) == [together.id]
    unfolded = cli("runs ls --launches").lines[1:]
    assert [len(line) - len(line.lstrip()) for line in unfolded] == [0, 2, 4, 4, 4, 2, 4, 4, 4]
    assert len(rm(cli, "together --with-launches --yes")["removed"]) == 9


@pytest.mark.parametrize("content", [None, "copy", "torn"])
def test_runs_that_an_analysis_has_a_copy_of_do_not_stay_for_it(store, cli, content):
    comparison, runs = compare(store, "cmp")
    analysis = make(store, "analyze")
    write_json(analysis.path / "comparison.json", {"arms": [{"name": "base", "runs": ids(runs[:2]), "stored": True}]})
    if content is not None:
        files = {run.id: {"run.json": run.record_file} for run in runs[:2]}
        write_export(analysis.path / EXPORT_FILE, Manifest(runs=[*files], arms=None, stored=None), files)
    if content == "torn":
        (analysis.path / EXPORT_FILE).write_bytes(b"PK")
    found = rm(cli, "cmp --with-launches --yes")
    kept = [] if content == "copy" else ids(runs[:2])
    assert found["kept"] == [{"id": run_id, "used_by": analysis.id} for run_id in kept]
    assert set(found["removed"]) == {comparison.id, *ids(runs)} - set(kept)


def test_ls_survives_malformed_runs(store, cli):
    good, torn, no_config = (make(store, "train", name) for name in "abc")
    torn.record_file.write_text("{")
    no_config.config_file.write_text("nonsense: [")
    said = cli("runs ls --json")
    assert [(row["id"], row["policy"]) for row in said.json["runs"]] == [(good.id, "static"), (no_config.id, None)]
    assert said.err.startswith("warning: ") and str(torn.record_file) in said.err


def test_show_of_a_bare_run_whose_process_is_gone_says_what_is_missing(store, cli):
    run = store.create("train", "static", name="bare")
    write_json(run.record_file, json.loads(run.record_file.read_text()) | {"pid_start": "00000000:1"})
    shown = cli("runs show bare --json").json
    assert (shown["run"]["status"], shown["env"], shown["config_differences"]) == ("lost", None, None)
    assert shown["env_error"] and shown["config_error"]


def test_rm_removes_all_that_is_named_and_the_failed_or_nothing(store, cli):
    statuses = {"a": "completed", "b": "completed", "c": "failed", "d": "running"}
    a, b, c, d = (make(store, "train", name, status) for name, status in statuses.items())
    for refs in ("a d", "a nothing"):
        rm(cli, f"{refs} --yes", code=2)
    assert "--yes" in rm(cli, "a", code=2)["error"]["hint"], "there is no terminal to ask on"
    assert len(store.list()) == 4
    assert rm(cli, f"a {b.id} a --failed --yes")["removed"] == ids([a, b, c])
    assert rm(cli, "--failed --yes")["removed"] == [] and store.list() == [d]
    assert rm(cli, "d --yes --force")["removed"] == [d.id]


def test_rm_takes_no_path(store, cli, monkeypatch):
    run = make(store, "train", "a")
    monkeypatch.chdir(store.root)
    for folder in (store.root / "foreign", store.root.parent / "foreign", store.root.parent, store.root):
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(run.record_file.read_text())
    before = sorted(store.root.parent.rglob("*"))
    absolute = (f"{store.root}/foreign", f"{store.root}/{run.id}")
    for path in ("..", ".", "", "./foreign", "../foreign", f"{run.id}/", *absolute):
        rm(cli, "--yes --force", path, code=2)
        assert sorted(store.root.parent.rglob("*")) == before, path


def test_rm_of_the_failed_leaves_what_is_no_run_of_the_registry(store, cli):
    failed = make(store, "train", "a", "failed")
    shutil.copytree(failed.path, store.root / "copy")
    (store.root / "linked").symlink_to(failed.path, target_is_directory=True)
    (store.root / "notes").mkdir()
    said = cli("runs rm --failed --yes --json")
    assert said.json["removed"] == [failed.id]
    assert sorted(path.name for path in store.root.glob("[!.]*")) == ["copy", "linked", "notes"]
    named = [f"{store.root / name}: " in said.err for name in ("copy", "linked", "notes")]
    assert named == [True, True, False], "what does not look like a run is not spoken of"
