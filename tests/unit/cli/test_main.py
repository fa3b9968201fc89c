from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from dynbench.cli import main as main_module
from dynbench.cli.main import COMMANDS
from dynbench.errors import EXIT_USAGE

HEAVY = ("torch", "polars", "matplotlib", "transformers", "datasets", "numpy", "pydantic", "rich", "yaml")
OURS_IN_HELP = {"dynbench", "dynbench.cli", "dynbench.cli.main", "dynbench.errors", "dynbench.signals"}
"""No command is imported to be listed."""


def dynbench_to(stdout: object, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dynbench", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


dynbench = partial(dynbench_to, subprocess.PIPE)


def test_help_needs_click_and_little_of_ours():
    code = (
        "import sys; before = set(sys.modules); from dynbench.cli.main import main; main(['--help'])\n"
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name for name in done.stderr.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in imported if name.partition(".")[0] != "click"} == OURS_IN_HELP


@pytest.mark.clock
def test_help_is_fast():
    """The budget is 150 ms of wall time; the best of several runs leaves out what else the machine does."""
    best = 1.0
    for _ in range(10):
        start = time.perf_counter()
        assert dynbench("--help").returncode == 0
        best = min(best, time.perf_counter() - start)
        if best < 0.15:
            break
    assert best < 0.15, f"--help took {best * 1000:.0f} ms at best"


def test_a_mistyped_command_and_loading_one_import_nothing_heavy():
    modules = sorted({place.partition(":")[0] for place, _ in COMMANDS.values()})
    code = (
        "import importlib, sys; from dynbench.cli.main import main; main(['trian'])\n"
        f"for module in ['main', *{modules!r}]:\n"
        "    importlib.import_module(f'dynbench.cli.{module}')\n"
        f"    print(*(f'{{module}} imports {{each}}' for each in {HEAVY!r} if each in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_usage_mistakes_under_json(cli):
    shown = cli("runs ls --json --nope", code=2).json
    assert (shown["command"], shown["error"]["kind"], shown["error"]["exit_code"]) == ("runs ls", "usage", 2)
    assert cli("--json nothing", code=2).json["command"] is None


@pytest.mark.parametrize(
    ("error", "code", "kind", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
        (click.Abort(), 130, "interrupted", "interrupted"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "storage", "x: Permission denied"),
        (OSError("No space left on device (os error 28)"), 2, "storage", "output: No space left on device"),
    ],
)
def test_neither_ctrl_c_nor_a_disk_is_a_bug(error, code, kind, message, monkeypatch, cli):
    @click.command()
    @click.option("--json", is_flag=True)
    def command(json: bool) -> None:
        raise error

    monkeypatch.setattr(main_module, "import_module", lambda name: SimpleNamespace(train=command))
    shown = cli("train --json", code=code).json["error"]
    assert (shown["kind"], shown["message"]) == (kind, message)


@pytest.mark.slow
def test_a_closed_pipe_is_quiet(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = dynbench_to(writer, "runs", "ls", "--results", str(tmp_path))
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_underscores_are_dashes_in_option_names(cli):
    said = cli("train --global_batch 0 --warmup_steps x --dry_run", code=2).err
    assert "train.global_batch: 0 is not allowed" in said and "train.warmup_steps: 'x' is not allowed" in said


@pytest.mark.slow
def test_closed_streams_are_no_failure(tmp_path):
    for stream in (1, 2):
        ended = dynbench("runs", "ls", "--results", str(tmp_path), preexec_fn=partial(os.close, stream))
        assert ended.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_output_that_cannot_be_written_is_one_line(more, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = dynbench_to(full, "runs", "ls", *more, "--results", str(tmp_path))
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.startswith("error: ")


@pytest.mark.slow
def test_undecodable_arguments_give_json_in_any_locale(tmp_path):
    command = [sys.executable, "-m", "dynbench", "runs", "ls", "--json", "--results", os.fsencode(tmp_path) + b"/\xff"]
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=plain, capture_output=True, check=True)
    assert json.loads(done.stdout.decode("ascii"))["runs"] == []


@pytest.mark.slow
def test_only_a_rank_skips_the_interpreters_shutdown():
    code = (
        "import atexit, os, sys, torch\n"
        "from dynbench.cli.main import run_process\n"
        "atexit.register(print, 'shut down', flush=True)\n"
        "for rank in ({}, {'RANK': '0'}, {'RANK': '1'}):\n"
        "    if os.fork() == 0:\n"
        "        os.environ.update(rank)\n"
        "        run_process()\n"
        "    print(rank, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
        "os._exit(0)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "RANK"}
    command = [sys.executable, "-c", code, "recipes", "ls", "--nonsense"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [
        *("shut down", f"{{}} {EXIT_USAGE}"),
        *(f"{{'RANK': '{rank}'}} {EXIT_USAGE}" for rank in (0, 1)),
    ]
    assert ended.stderr.count("No such option '--nonsense'") == 3
