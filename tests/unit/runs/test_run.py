from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import nullcontext
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.errors import RecordError, RunLookupError
from dynbench.runs.run import (
    TRANSITIONS,
    UNSUCCESSFUL,
    Run,
    Status,
    check_spelling,
    check_transition,
    duration_s,
    host_name,
    is_folder_name,
    is_gone,
    make_slug,
    new_id,
    slug_of,
    start_mark,
)


def edit(run: Run, **changes: object) -> None:
    data = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps(data | changes))


def test_a_life_of_a_run(run: Run) -> None:
    record = run.record()
    assert (record.status, record.command, record.name) == ("created", "train", "mine")
    assert (record.argv, record.pid, duration_s(record)) == (["dynbench", "train"], os.getpid(), None)
    record = run.update(status="running")
    assert record.started is not None and duration_s(record) is not None
    failure = {"kind": "worker", "message": "rank 1 died", "rank": 1, "log": "logs/rank_1.err"}
    record = run.update(status="failed", exit_code=3, failure=failure)
    assert record.ended is not None and record.ended >= record.started and record == run.record()
    assert record.as_dict()["failure"] == failure and run.status is Status.FAILED
    record = run.update(status="running")
    assert (record.exit_code, record.failure, record.ended) == (None, None, None)


@pytest.mark.parametrize("status", ["created", "running"])
def test_an_unfinished_run_without_its_process_is_lost_and_can_be_taken_over(run: Run, status: str) -> None:
    edit(run, status=status, pid_start="00000000:1")
    assert run.status is Status.LOST
    edit(run, host="elsewhere")
    assert run.status == status
    edit(run, host=host_name())
    assert run.update(status="running").pid_start != "00000000:1" and run.status is Status.RUNNING


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"status": "created"}, ValueError, "from running to created"),
        ({"status": "sleeping"}, ValueError, "sleeping"),
        ({"colour": "red"}, TypeError, "no field colour"),
        ({"exit_code": "much"}, ValueError, "exit_code"),
    ],
)
def test_wrong_updates_change_nothing(run: Run, change: dict[str, object], error: type[Exception], reason: str) -> None:
    before = run.update(status="running")
    with pytest.raises(error, match=reason):
        run.update(**change)
    assert run.record() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pid": "me"}, "pid: "),
        ({"status": "sleeping"}, "status: "),
        ({"created": "yesterday"}, "created: "),
        ({"started": "2026-01-01T00:00:00"}, "names no time zone"),
    ],
)
def test_a_record_of_another_form_is_refused(run: Run, change: dict[str, object], said: str) -> None:
    edit(run, **change)
    with pytest.raises(RecordError) as caught:
        run.record()
    assert said in caught.value.message and str(run.record_file) in caught.value.message


def test_the_configuration_comes_back_and_rules_are_not_checked_again(run: Run) -> None:
    config = load_config(None, ["train.steps=7"])
    run.config_file.write_text(dump_config(config))
    assert run.config() == config
    run.config_file.write_text("workload: {dataset: tsv}\n")
    assert run.config().workload.dataset == "tsv"


@pytest.mark.parametrize(
    ("config", "env", "said", "hint"),
    [
        (None, None, "cannot be read", "stopped before its configuration was written"),
        ("train: {stepps: 3}\n", None, "stepps", "another version of dynbench"),
        ("schedule: {policy: mine}\n", '{"plugins": {"mine.py": "00ff"}}', "mine", "name mine.py in DYNBENCH_PLUGINS"),
        ("schedule: {policy: mine}\n", '{"plugins": null}', "mine", "another version of dynbench"),
        ("schedule: {policy: mine}\n", "torn", "mine", "another version of dynbench"),
        ("a pipe", None, "it is no file", "Restore it from a copy."),
    ],
)
def test_a_configuration_that_is_no_use(run: Run, config: str | None, env: str | None, said: str, hint: str) -> None:
    if config == "a pipe":
        os.mkfifo(run.config_file)
    elif config is not None:
        run.config_file.write_text(config)
    if env is not None:
        run.env_file.write_text(env)
    with pytest.raises(RecordError, match=said) as caught:
        run.config()
    assert hint in caught.value.hint


def test_how_long_it_took_is_not_known_of_what_is_lost_or_of_a_clock_set_back(run: Run) -> None:
    at = "2026-01-02T03:04:0{}+00:00".format
    for ended, seconds in ((at(7), 2), (at(5), 0), (at(4), None), (None, None)):
        edit(run, status="completed", started=at(5), ended=ended)
        assert duration_s(run.record()) == seconds


def test_only_the_transitions_of_the_table_are_allowed() -> None:
    for old, new in product(Status, Status):
        allowed = new is old or new in TRANSITIONS[old]
        with nullcontext() if allowed else pytest.raises(ValueError, match=f"from {old} to {new}"):
            check_transition(old, new)
        assert new not in TRANSITIONS[old] - {old} or new not in (Status.LOST, Status.CREATED)
    assert {status for status in Status if status.is_over} == UNSUCCESSFUL | {Status.COMPLETED}


def test_a_process_is_told_from_others_until_it_ends() -> None:
    here = host_name()
    assert not is_gone(here, os.getpid(), start_mark(os.getpid()))
    assert is_gone(here, os.getpid(), "00000000:1"), "a later process with the same number"
    assert not is_gone("elsewhere", 2**22 + 1, "00000000:1")
    assert is_gone(here, 2**22 + 1, None) and not is_gone(here, os.getpid(), None), "where no mark is known"
    child = subprocess.Popen(["sleep", "60"])
    mark = start_mark(child.pid)
    assert mark is not None and not is_gone(here, child.pid, mark)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(here, child.pid, mark), "before it is reaped"
    child.wait()
    assert is_gone(here, child.pid, mark)


@given(st.text())
def test_any_slug_makes_an_id_that_gives_it_back(text: str) -> None:
    run_id = new_id(text)
    assert re.fullmatch(r"\d{8}-\d{6}-[a-z0-9-]+-[a-z2-9]{4}", run_id)
    assert slug_of(run_id) == make_slug(text)


def test_names_allowed_and_refused_with_the_rule() -> None:
    for name in ("runA", "a", "run.1_b-c", "7", "x" * 64):
        check_spelling(name)
    for name in ("", ".", "..", "../x", "a/b", "a b", "@latest", "-x", "a\n", "x" * 65, "é", "a*", "a\0b", "a:b", "~"):
        with pytest.raises(RunLookupError) as caught:
            check_spelling(name)
        assert "letters, digits" in caught.value.hint and "\n" not in caught.value.message
    with pytest.raises(RunLookupError, match="form of a run id"):
        check_spelling(new_id("static"))


@pytest.mark.parametrize("text", ["..", ".", "", "a/b", "/etc", "../x", "a\0b", "a\nb", "\x1b[31m"])
def test_an_id_that_leads_elsewhere_is_none(text: str) -> None:
    assert not is_folder_name(text)
    assert is_folder_name(f"20261120-145312-dynamic-k3f9 {len(text)} ä (1)")
