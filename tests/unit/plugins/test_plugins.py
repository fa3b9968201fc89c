"""Registries: what may be registered, what their options become, and files of the user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynbench import plugins
from dynbench.config.schema import Config, Schedule, Sync
from dynbench.errors import UsageError
from dynbench.plugins import KINDS, POLICIES, PolicyEntry, Section, options_of
from dynbench.plugins.policies import PrefixOptions, WindowOptions
from dynbench.plugins.registry import Registry, with_options
from dynbench.plugins.strategies import BucketOptions

TOYS = Path(__file__).parents[2] / "toy_plugins.py"
WRONG = ("schedule.policy=turnd", "schedule.turns=0", "sync.name=one_by_on", "compress.digits=x", "workload.words=3")
UNREAD = ("schedule.turns=2", "sync.divide_late=true", "workload.words=50", "workload.note=kept")

CHOSEN = ("schedule.policy=turned", "sync.name=one_by_one", "workload.dataset=few_words", "workload.name=noted")
TAKEN = "from dynbench.plugins import *\nregister(PolicyEntry('static', '', 'mine:A'))"


class Window(Section):
    window: int = 2
    """Another meaning of the same name."""


class More(WindowOptions):
    more: int = 1
    """Beside a shared one."""


@pytest.fixture
def registry() -> Iterator[Registry[PolicyEntry]]:
    yield Registry("policy", "schedule.policy", [PolicyEntry("window", "", "there:Window", WindowOptions)])


def run(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, where plug-ins are loaded anew."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env={**os.environ, **variables}
    )


def command(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = ["dynbench", *arguments, "--json", "--results", str(folder)]
    code = f"import sys; sys.argv = {words!r}; from dynbench.cli.main import run_process; run_process()"
    return run(folder, code, **variables)


def test_a_section_has_common_settings_with_the_options_behind_the_choice() -> None:
    fields = list(Schedule.model_fields)
    assert fields[:3] == ["mode", "policy", "window"]
    assert list(POLICIES.options()) == fields[2 : fields.index("cost_type")]
    assert options_of(Sync(bucket_mb=3.0), BucketOptions).bucket_mb == 3
    assert options_of(None, PrefixOptions) == PrefixOptions()
    assert Config().schedule.window_size == 1


def test_plugins_share_an_option_that_they_inherit(registry: Registry[PolicyEntry]) -> None:
    registry.add(PolicyEntry("wider", "", "there:Wider", More))
    assert registry.readers("window") == ["window", "wider"]
    assert list(registry.options()) == ["window", "more"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (PolicyEntry("window", "", "there:Other"), "the name is taken"),
        (PolicyEntry("a:b", "", "there:Other"), "no name"),
        (PolicyEntry("other", "", "there:Other", Window), "option window is one of window too"),
    ],
)
def test_what_is_refused(registry: Registry[PolicyEntry], entry: PolicyEntry, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.add(entry)


def test_an_option_is_no_setting_of_the_section(registry: Registry[PolicyEntry]) -> None:
    with pytest.raises(UsageError, match="option window is a setting of schedule already"):

        @with_options(policy=registry)
        class Taken(Section):
            policy: str = "window"
            window: int = 1


def test_what_comes_too_late_is_refused() -> None:
    with pytest.raises(UsageError, match="registered after the configuration was first read"):
        plugins.register(PolicyEntry("late", "", "there:Late"))


def test_an_unknown_name_is_told_with_the_nearest(registry: Registry[PolicyEntry]) -> None:
    with pytest.raises(UsageError, match=r"schedule.policy: 'windw' is not a policy. Did you mean 'window'\?"):
        registry.find("windw")


def test_wrong_options_of_several_plugins_are_reported_together(tmp_path: Path) -> None:
    sets = [word for text in WRONG for word in ("--set", text)]
    done = command(tmp_path, "train", *sets, DYNBENCH_PLUGINS=str(TOYS))
    assert done.returncode == 2
    message = json.loads(done.stdout)["error"]["message"]
    assert all(text.partition("=")[0] in message for text in WRONG)
    assert "Did you mean 'turned'?" in message
    assert "Did you mean 'one_by_one'?" in message


def test_what_the_chosen_plugins_do_not_read_is_named_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from dynbench.config.load import load_config\n"
        "from dynbench.config.effects import unread\n"
        "from dynbench.config.situation import Situation\n"
        "def lines(*given):\n"
        "    config = load_config(None, given)\n"
        "    return [line.partition(':')[0] for line in unread([Situation('train', config, config, 2)])]\n"
        f"asked = ('launch.launcher=torchrun', 'launch.nproc=2', *{UNREAD!r})\n"
        f"print(json.dumps([lines(*asked), lines(*asked, *{CHOSEN!r})]))\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'toy_classes') if name in sys.modules])"
    )
    done = run(tmp_path, code, DYNBENCH_PLUGINS=str(TOYS))
    assert done.returncode == 0, done.stderr
    warned, heavy = done.stdout.splitlines()
    without, with_them = json.loads(warned)
    assert sorted(without) == sorted(text.partition("=")[0] for text in UNREAD)
    assert with_them == []
    assert heavy == "[]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_there", "mine.py:1: ModuleNotFoundError"),
        ("x = (", "mine.py:1: SyntaxError"),
        (TAKEN, "mine.py:2: policy 'static': the name is taken"),
    ],
)
def test_a_broken_file_is_one_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    done = command(tmp_path, "train", "--dry-run", DYNBENCH_PLUGINS="mine.py")
    assert done.returncode == 2
    assert f"DYNBENCH_PLUGINS: {says}" in json.loads(done.stdout)["error"]["message"]


def test_a_class_that_is_not_there_is_told_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dynbench.plugins import *\nregister(PolicyEntry('gone', '', 'mine:Gone'))", encoding="utf-8"
    )
    done = command(tmp_path, "solve", "--policy", "gone", "--steps", "1", DYNBENCH_PLUGINS="mine")
    assert done.returncode == 2
    assert "plug-in gone: mine:Gone" in json.loads(done.stdout)["error"]["message"]


def test_every_toy_is_listed_and_its_benchmark_is_called_with_its_options(tmp_path: Path) -> None:
    code = (
        "from dynbench.plugins import BENCHMARKS, KINDS\n"
        "entry = BENCHMARKS.find('nothing')\n"
        "bench = entry.load()(entry.options(rounds=5))\n"
        "print(bench.options.rounds, *(list(registry)[-1] for _, registry in KINDS.values()))"
    )
    done = run(tmp_path, code, DYNBENCH_PLUGINS=str(TOYS))
    assert done.stdout.split() == ["5", "turned", "one_by_one", "rounded", "noted", "few_words", "nothing"], done.stderr
    assert len(KINDS) == 6
