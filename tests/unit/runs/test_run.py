from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.errors import RecordError
from dynbench.runs.run import Run, duration_s
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return RunStore(tmp_path).create("train", "static", name="a", argv=["dynbench", "train"])


def edit(run: Run, **changes: object) -> None:
    data = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps(data | changes))


def test_a_life_of_a_run(run: Run) -> None:
    record = run.record()
    assert (record.status, record.command, record.name, record.argv) == ("created", "train", "a", ["dynbench", "train"])
    assert record.pid == os.getpid()
    assert duration_s(record) is None
    record = run.update(status="running")
    assert record.started is not None
    assert duration_s(record) is not None
    record = run.update(status=Status.COMPLETED, exit_code=0)
    assert record.ended is not None
    assert record.ended >= record.started
    assert record == run.record()
    assert run.status is Status.COMPLETED


def test_a_failure_is_a_mapping_or_nothing(run: Run) -> None:
    failure = {"kind": "worker", "message": "rank 1 died", "rank": 1, "log": "logs/rank_1.err"}
    run.update(status="failed", exit_code=3, failure=failure)
    record = run.record()
    assert record.failure is not None
    assert (record.failure.rank, record.failure.log) == (1, "logs/rank_1.err")
    assert record.as_dict()["failure"] == failure


def test_running_again_forgets_how_it_ended(run: Run) -> None:
    run.update(status="failed", exit_code=3, failure={"kind": "worker", "message": "x"})
    record = run.update(status="running")
    assert (record.exit_code, record.failure, record.ended) == (None, None, None)


@pytest.mark.parametrize("status", ["created", "running"])
def test_an_unfinished_run_without_its_process_is_lost(run: Run, status: str) -> None:
    edit(run, status=status, pid_start="00000000:1")
    assert run.status is Status.LOST
    edit(run, host="elsewhere")
    assert run.status == status


def test_a_lost_run_can_be_taken_over(run: Run) -> None:
    edit(run, status="running", pid_start="00000000:1")
    record = run.update(status="running")
    assert record.pid_start != "00000000:1"
    assert run.status is Status.RUNNING


def test_wrong_updates_change_nothing(run: Run) -> None:
    run.update(status="running")
    before = run.record()
    with pytest.raises(ValueError, match="from running to created"):
        run.update(status="created")
    with pytest.raises(ValueError, match="sleeping"):
        run.update(status="sleeping")
    with pytest.raises(TypeError, match="no field colour"):
        run.update(colour="red")
    with pytest.raises(ValueError, match="exit_code"):
        run.update(exit_code="much")
    assert run.record() == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ('{"id": "x"', "not JSON"),
        ("[]", "content|should be"),
        ("{}", "id: "),
        ('{"schema_version": 99, "version": "7.0"}', "schema version 99"),
    ],
)
def test_records_that_cannot_be_read(run: Run, text: str, reason: str) -> None:
    run.record_file.write_text(text)
    with pytest.raises(RecordError, match=reason) as caught:
        run.record()
    assert str(run.record_file) in caught.value.message
    assert caught.value.hint


def test_a_newer_schema_names_the_version_that_wrote_it(run: Run) -> None:
    run.record_file.write_text('{"schema_version": 99, "version": "7.0"}')
    with pytest.raises(RecordError) as caught:
        run.record()
    assert "7.0" in caught.value.hint


def test_keys_of_later_versions_are_ignored(run: Run) -> None:
    edit(run, mood="good")
    assert run.record().name == "a"


def test_a_wrong_type_names_the_key(run: Run) -> None:
    edit(run, pid="me")
    with pytest.raises(RecordError, match="pid"):
        run.record()
    edit(run, pid=1, status="sleeping")
    with pytest.raises(RecordError, match="status"):
        run.record()


def test_the_configuration_comes_back(run: Run) -> None:
    config = load_config(None, ["train.steps=7"])
    run.config_file.write_text(dump_config(config))
    assert run.config() == config


def test_a_missing_or_foreign_configuration_is_a_record_error(run: Run) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        run.config()
    run.config_file.write_text("train: {stepps: 3}\n")
    with pytest.raises(RecordError, match="stepps"):
        run.config()


def test_rules_are_not_checked_when_a_run_is_read(run: Run) -> None:
    run.config_file.write_text("workload: {dataset: tsv}\n")
    assert run.config().workload.dataset == "tsv"


def test_provenance_comes_back_or_says_why_not(run: Run) -> None:
    with pytest.raises(RecordError, match=r"env\.json: cannot be read"):
        run.env()
    run.env_file.write_text("[]")
    with pytest.raises(RecordError, match="valid dictionary"):
        run.env()
    run.env_file.write_text('{"host": "h"}')
    assert run.env() == {"host": "h"}


def test_places(run: Run) -> None:
    assert run.rank_file(3) == run.path / "ranks" / "rank_3.csv"
    assert run.ranks_dir.is_dir()
    assert run.logs_dir.is_dir()
    assert run.label == "a"
    run.update(name=None)
    assert run.label == run.id


def test_a_clock_that_was_set_back_gives_no_duration(run: Run) -> None:
    moment = "2026-01-02T03:04:0{}.000000+00:00"
    edit(run, status="completed", started=moment.format(5), ended=moment.format(7))
    assert duration_s(run.record()) == 2
    edit(run, ended=moment.format(5))
    assert duration_s(run.record()) == 0
    edit(run, ended=moment.format(4))
    assert duration_s(run.record()) is None
    edit(run, ended=None)
    assert duration_s(run.record()) is None


def test_a_configuration_that_is_no_file_is_not_opened(run: Run) -> None:
    os.mkfifo(run.config_file)
    with pytest.raises(RecordError) as caught:
        run.config()
    assert (caught.value.message, caught.value.hint) == (f"{run.config_file}: it is no file", "Restore it from a copy.")


@pytest.mark.parametrize(
    ("env", "hint"),
    [
        ('{"plugins": {"mine.py": "00ff"}}', "name mine.py in DYNBENCH_PLUGINS"),
        ('{"plugins": null}', "another version of dynbench"),
        ("torn", "another version of dynbench"),
        (None, "another version of dynbench"),
    ],
)
def test_plugins_that_are_not_loaded_are_named(run: Run, env: str | None, hint: str) -> None:
    run.config_file.write_text("schedule: {policy: mine}\n")
    if env is not None:
        run.env_file.write_text(env)
    with pytest.raises(RecordError, match="mine") as caught:
        run.config()
    assert hint in caught.value.hint
