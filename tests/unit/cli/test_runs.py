"""`dynbench runs`: entries listed, shown and removed, comparisons with what was made for them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.export import EXPORT_FILE, Manifest, write_export
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]


def make(store: RunStore, command: str, name: str | None = None, status: str = "completed", **flags: str) -> Run:
    run = store.create(command, flags.get("schedule.policy", command), name=name)
    write_text(run.config_file, dump_config(load_config(None, [], flags)))
    run.update(status="running")
    if status != "running":
        run.update(status=status)
    return run


def compare(store: RunStore, name: str, launches: int = 2, status: str = "completed") -> tuple[Run, list[Run]]:
    """A comparison and what was made for it: launches of two policies, the last with a given status, and a plan."""
    comparison = make(store, "compare", name, **{"schedule.mode": "static"})
    own = store.within(comparison)
    policies = ("static", "partition")
    runs = [
        make(own, "train", f"{policies[at % 2]}-{at}-{name}", status if at == launches - 1 else "completed",
             **{"schedule.mode": "dynamic", "schedule.policy": policies[at % 2]})
        for at in range(launches)
    ]  # fmt: skip
    return comparison, [*runs, make(own, "solve")]


def ls(capsys: Output, *arguments: str) -> list[str]:
    assert main(["runs", "ls", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def rm(capsys: Output, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["runs", "rm", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


@pytest.mark.slow
def test_a_comparison_is_a_line_that_counts_what_was_made_for_it(store: RunStore, capsys: Output) -> None:
    comparison, runs = compare(store, "cmp", 44, "failed")
    alone = make(store, "train", "alone")
    lines = ls(capsys)
    assert [line.split()[0] for line in lines] == ["id", comparison.id, alone.id]
    assert " completed  45, 1 failed  " in lines[1]
    unfolded = ls(capsys, "--launches")
    assert [line.split()[0] for line in unfolded[1:]] == ids([comparison, *runs, alone])
    assert [line.startswith("  ") for line in unfolded[1:]] == [False, *[True] * 45, False]


def test_launches_recorded_before_groups_were_are_those_of_the_plan(store: RunStore, capsys: Output) -> None:
    comparison, launch = make(store, "compare", "cmp"), make(store, "train")
    write_json(comparison.path / "compare.json", {"launches": [{"arm": "static", "run": launch.id}]})
    rows = json.loads("\n".join(ls(capsys, "--json")))["runs"]
    assert rows[1]["group"] == comparison.id


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--command", "compare,solve"), ["cmp", "solve"]),
        (("--status", "failed"), ["failed"]),
        (("--status", "failed,running", "--command", "train"), ["failed", "running"]),
        (("--name", "*-alone"), ["b-alone"]),
        (("--policy", "prefix"), ["b-alone"]),
        (("--dataset", "lognormal"), ["failed"]),
        (("--since", "1h"), ["cmp", "solve", "b-alone", "failed", "running"]),
        (("--since", "2026-01-02"), ["cmp", "solve", "b-alone", "running"]),
        (("--limit", "2"), ["failed", "running"]),
        (("--limit", "1", "--command", "compare,solve"), ["cmp", "solve"]),
        (("--name", "nobody"), []),
    ],
)
def test_filters(store: RunStore, capsys: Output, options: tuple[str, ...], expected: list[str]) -> None:
    comparison = make(store, "compare", "cmp")
    made = {"cmp": comparison, "solve": make(store.within(comparison), "solve")}
    made["b-alone"] = make(store, "train", "b-alone", **{"schedule.mode": "dynamic", "schedule.policy": "prefix"})
    made["failed"] = make(store, "train", "a", "failed", **{"workload.dataset": "lognormal"})
    made["running"] = make(store, "train", "c", "running")
    if options == ("--since", "2026-01-02"):
        record = json.loads(made["failed"].record_file.read_text())
        write_json(made["failed"].record_file, record | {"created": "2026-01-01T23:59:59+00:00"})
    rows = json.loads("\n".join(ls(capsys, *options, "--json")))["runs"]
    assert {row["id"] for row in rows} == {made[name].id for name in expected}
    assert bool(expected) == any(made["cmp"].id in line or "20" in line.split()[0] for line in ls(capsys, *options)[1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--status", "faild"), "Did you mean 'failed'?"),
        (("--since", "yesterday"), "neither an age nor a date"),
        (("--since", "99999999999w"), "neither an age nor a date"),
        (("--limit", "0"), "--limit"),
    ],
)
def test_what_no_filter_means(store: RunStore, capsys: Output, options: tuple[str, ...], said: str) -> None:
    assert main(["runs", "ls", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_comparison_goes_with_all_that_was_made_for_it(store: RunStore, capsys: Output) -> None:
    comparison, runs = compare(store, "cmp")
    alone = make(store, "train", "alone")
    sizes = sum(file.stat().st_size for run in (comparison, *runs) for file in run.path.rglob("*") if file.is_file())
    found = rm(capsys, "cmp", "--with-launches", "--dry-run")
    assert (found["dry_run"], len(store.list())) == (True, 5)
    shown = rm(capsys, "cmp", "--with-launches", "--yes")
    assert shown == found | {"dry_run": False}
    assert (shown["removed"], shown["bytes"], shown["kept"]) == (ids([*runs, comparison]), sizes, [])
    assert store.list() == [alone]
    for name in ("cmp", "static-0-cmp"):
        store.check_name(name)


def test_launches_stay_while_it_is_not_said_or_one_is_running_unless_forced(store: RunStore, capsys: Output) -> None:
    compare(store, "cmp", status="running")
    for option in ("--yes", "--dry-run"):
        hint = rm(capsys, "cmp", option, code=2)["error"]["hint"]
        assert "--with-launches" in hint and "--keep-launches" in hint
    rm(capsys, "cmp", "--with-launches", "--yes", code=2)
    assert len(store.list()) == 4
    rm(capsys, "cmp", "--with-launches", "--yes", "--force")
    assert store.list() == []


@pytest.mark.parametrize(
    ("answers", "left"), [((False, False), 4), ((True, False), 4), ((False, True), 3), ((True, True), 0)]
)
def test_a_terminal_is_asked_about_the_launches(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, answers: tuple[bool, bool], left: int
) -> None:
    compare(store, "cmp")
    given: Iterator[bool] = iter(answers)

    def confirm(text: str, *, abort: bool = False, err: bool) -> bool:
        answer = next(given)
        if abort and not answer:
            raise click.Abort
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    assert main(["runs", "rm", "cmp"]) == (0 if answers[1] else 130)
    assert len(store.list()) == left


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["comparison.json", "compare.json", "runs.json", "solve.json", "config.yaml"])
@pytest.mark.parametrize("readable", [True, False])
def test_what_another_entry_reads_stays(store: RunStore, capsys: Output, reader: str, readable: bool) -> None:
    comparison, (first, second, solve) = compare(store, "cmp")
    other = make(store, "analyze", "other")
    write_text(other.path / reader, f'{{"arms": [{{"runs": ["{first.id}"]}}]}}')
    write_text(first.config_file, f"{first.config_file.read_text()}\n# planned with {solve.id}\n")
    if not readable:
        other.record_file.write_text("{")
    shown = rm(capsys, "cmp", "--with-launches", "--yes")
    assert shown["removed"] == [second.id, comparison.id]
    assert shown["kept"] == [{"id": first.id, "used_by": other.id}, {"id": solve.id, "used_by": first.id}]
    assert first.path.is_dir() and solve.path.is_dir()


def test_the_launches_of_an_unreadable_comparison_are_listed_and_stay(store: RunStore, capsys: Output) -> None:
    comparison, runs = compare(store, "cmp")
    comparison.record_file.write_text("{")
    assert [line.split()[0] for line in ls(capsys)[1:]] == ids(runs)
    rm(capsys, comparison.id, "--with-launches", "--yes", code=2)
    assert all(run.path.is_dir() for run in (comparison, *runs))


@pytest.mark.parametrize("word", [(), ("--keep-launches",), ("--with-launches",)])
def test_failed_leaves_the_completed_launches_of_a_failed_comparison(
    store: RunStore, capsys: Output, word: tuple[str, ...]
) -> None:
    comparison, runs = compare(store, "cmp", 2, "failed")
    comparison.update(status="running")
    comparison.update(status="interrupted")
    rm(capsys, "--failed", "--yes", *word)
    assert store.list() == ([] if word == ("--with-launches",) else [runs[0], runs[2]])


@pytest.mark.slow
def test_cells_go_with_their_comparisons_and_launches(store: RunStore, capsys: Output) -> None:
    together = make(store, "compare", "together")
    cells = [compare(store.within(together), f"cell{number}")[0] for number in range(2)]
    for cell in cells:
        assert cell.record().group == together.id
    assert [line.split()[0] for line in ls(capsys)[1:]] == [together.id]
    assert [len(line) - len(line.lstrip()) for line in ls(capsys, "--launches")[1:]] == [0, 2, 4, 4, 4, 2, 4, 4, 4]
    assert len(rm(capsys, "together", "--with-launches", "--yes")["removed"]) == 9


@pytest.mark.parametrize("content", [None, "copy", "torn"])
def test_runs_that_an_analysis_has_a_copy_of_do_not_stay_for_it(
    store: RunStore, capsys: Output, content: str | None
) -> None:
    comparison, runs = compare(store, "cmp")
    analysis = make(store, "analyze")
    write_json(analysis.path / "comparison.json", {"arms": [{"name": "base", "runs": ids(runs[:2]), "stored": True}]})
    if content is not None:
        files = {run.id: {"run.json": run.record_file} for run in runs[:2]}
        manifest = Manifest(runs=[*files], arms=None, stored=None)
        write_export(analysis.path / EXPORT_FILE, manifest, files)
    if content == "torn":
        (analysis.path / EXPORT_FILE).write_bytes(b"PK")
    found = rm(capsys, "cmp", "--with-launches", "--yes")
    kept = [] if content == "copy" else ids(runs[:2])
    assert found["kept"] == [{"id": run_id, "used_by": analysis.id} for run_id in kept]
    assert set(found["removed"]) == {comparison.id, *ids(runs)} - set(kept)


def test_ls_survives_malformed_runs(store: RunStore, capsys: Output) -> None:
    good, torn, no_config = make(store, "train", "a"), make(store, "train", "b"), make(store, "train", "c")
    torn.record_file.write_text("{")
    no_config.config_file.write_text("nonsense: [")
    assert main(["runs", "ls", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["id"]: row for row in json.loads(out)["runs"]}
    assert set(rows) == {good.id, no_config.id}
    assert rows[no_config.id]["policy"] is None
    assert err.startswith("warning: ")
    assert str(torn.record_file) in err


def test_show_of_a_bare_run_whose_process_is_gone_says_what_is_missing(store: RunStore, capsys: Output) -> None:
    run = store.create("train", "static", name="bare")
    write_json(run.record_file, json.loads(run.record_file.read_text()) | {"pid_start": "00000000:1"})
    assert main(["runs", "show", "bare", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run"]["status"], shown["env"], shown["config_differences"]) == ("lost", None, None)
    assert shown["env_error"] and shown["config_error"]


def test_rm_removes_all_that_is_named_and_the_failed_or_nothing(store: RunStore, capsys: Output) -> None:
    a, b, c, d = (make(store, "train", name, status) for name, status in
                  (("a", "completed"), ("b", "completed"), ("c", "failed"), ("d", "running")))  # fmt: skip
    for refs in (("a", "d"), ("a", "nothing")):
        rm(capsys, *refs, "--yes", code=2)
    assert "--yes" in rm(capsys, "a", code=2)["error"]["hint"], "there is no terminal to ask on"
    assert len(store.list()) == 4
    assert rm(capsys, "a", b.id, "a", "--failed", "--yes")["removed"] == ids([a, b, c])
    assert rm(capsys, "--failed", "--yes")["removed"] == [] and store.list() == [d]
    assert rm(capsys, "d", "--yes", "--force")["removed"] == [d.id]


@pytest.mark.parametrize("ref", ["..", ".", "", "./foreign", "../foreign", "{root}/foreign", "{root}/{id}", "{id}/"])
def test_rm_takes_no_path(store: RunStore, capsys: Output, monkeypatch: pytest.MonkeyPatch, ref: str) -> None:
    run = make(store, "train", "a")
    monkeypatch.chdir(store.root)
    for folder in (store.root / "foreign", store.root.parent / "foreign", store.root.parent, store.root):
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(run.record_file.read_text())
    before = sorted(store.root.parent.rglob("*"))
    rm(capsys, ref.format(root=store.root, id=run.id), "--yes", "--force", code=2)
    assert sorted(store.root.parent.rglob("*")) == before


def test_rm_of_the_failed_leaves_what_is_no_run_of_the_registry(store: RunStore, capsys: Output) -> None:
    failed = make(store, "train", "a", "failed")
    shutil.copytree(failed.path, store.root / "copy")
    (store.root / "linked").symlink_to(failed.path, target_is_directory=True)
    (store.root / "notes").mkdir()
    assert main(["runs", "rm", "--failed", "--yes", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["removed"] == [failed.id]
    assert sorted(path.name for path in store.root.iterdir() if not path.name.startswith(".")) == [
        "copy",
        "linked",
        "notes",
    ]
    for name in ("copy", "linked"):
        assert f"{store.root / name}: " in err and "leaves it alone" in err
    assert "notes" not in err
