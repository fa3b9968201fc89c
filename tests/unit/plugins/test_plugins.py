"""Registries: what may be registered, what their options become, and files of the user's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import read
from unit.config.conftest import refused

from dynbench import plugins
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, changed
from dynbench.errors import UsageError
from dynbench.plugins import KINDS, WORKLOADS, PolicyEntry, Section, WorkloadEntry
from dynbench.plugins.policies import WindowOptions
from dynbench.plugins.registry import Registry, with_options
from dynbench.workloads.registry import build_workload

TOYS = Path(__file__).parents[2] / "toy_plugins.py"
WRONG = ("schedule.policy=turnd", "schedule.turns=0", "sync.name=one_by_on", "compress.digits=x", "workload.words=3")
NEAREST = ("Did you mean 'turned'?", "Did you mean 'one_by_one'?")
UNREAD = ["schedule.turns=2", "sync.divide_late=true", "workload.words=50", "workload.note=kept"]
CHOSEN = ["schedule.policy=turned", "sync.name=one_by_one", "workload.dataset=few_words", "workload.name=noted"]
TAKEN = "from dynbench.plugins import *\nregister(PolicyEntry('static', '', 'mine:A'))"
OWN = """
from dynbench.plugins import *
class Extra(Section):
    extra: int = 1
    '''Read by own.'''
    other: int = 2
    '''Read by own.'''
register(PolicyEntry('own', '', 'parts:Own', Extra))
for name in ('lacking', 'unlike', 'raising', 'gone'):
    register(PolicyEntry(name, '', f'parts:{name.title()}'))
register(PolicyEntry('broken', '', 'broken:Own'))
"""
PARTS = """
from dynbench.schedule.policy import BatchPolicy
class Own(BatchPolicy):
    def deal(self, batches, first_step): return []
class Lacking(BatchPolicy): pass
class Unlike:
    def __init__(self, config): pass
class Raising(Own):
    def __init__(self, problem): raise ValueError('not today')
"""
ONE_FILE = """
from __future__ import annotations
from contextlib import nullcontext
from pydantic import Field
from dynbench.sync.base import Strategy
from dynbench.bench.base import Benchmark
from dynbench.compress.base import Compressor
from dynbench.plugins import *
from dynbench.schedule.policy import BatchPolicy
from dynbench.workloads.base import Workload
from dynbench.workloads.datasets.base import Splits
class Turns(Section):
    turns: tuple[int, ...] = Field(default_factory=lambda: (1, 2))
    '''How far.'''
class Turned(BatchPolicy):
    def deal(self, batches, first_step): return []
class Late(Strategy):
    equal_gradients, accumulating = True, nullcontext
    def _wrapped(self, model): return model
    def finish(self): pass
class Halved(Compressor):
    def mean(self, channel, flat, segments): pass
class Task(Workload):
    def __init__(self, config): pass
class Timed(Benchmark):
    headers = {}
    def cases(self): return []
    def measure(self, case, context): pass
def no_samples(settings): return Splits(None)
register(PolicyEntry("mine", "", Turned, Turns))
register(StrategyEntry("mine", "", Late))
register(CompressorEntry("mine", "", Halved))
register(WorkloadEntry("mine", "", Task))
register(DatasetEntry("mine", "", no_samples))
register(BenchmarkEntry("mine", "", Timed, Turns))
"""
BASES = ("sync.base", "compress.base", "schedule.policy", "workloads.base", "workloads.datasets.base", "bench.base")
"""Modules with what plug-ins are made of."""


class Window(Section):
    window: int = 2


class Bare(Section):
    turns: int


class More(WindowOptions):
    more: int = 1


@pytest.fixture
def registry() -> Registry[PolicyEntry]:
    return Registry("policy", "schedule.policy", [PolicyEntry("window", "", "there:Window", WindowOptions)])


def answers(folder: Path, *asked: tuple[str, list[Any], dict[str, str]]) -> list[Any]:
    """What programs of `programs.py` return, each with its arguments and environment, in a folder."""
    line = [sys.executable, str(Path(__file__).with_name("programs.py"))]
    done = subprocess.run(line, input=json.dumps(asked), capture_output=True, text=True, cwd=folder, check=True)
    assert "Traceback" not in done.stderr and "dynbench-bug" not in done.stderr, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(asked), done.stderr
    return found


def test_plugins_share_an_option_that_they_inherit(registry):
    registry.add(PolicyEntry("wider", "", "there:Wider", More))
    assert registry.readers("window") == ["window", "wider"]
    assert list(registry.options()) == ["window", "more"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (PolicyEntry("window", "", "there:Other"), "the name is taken"),
        (PolicyEntry("a:b", "", "there:Other"), "no name"),
        (PolicyEntry("other", "", "there:Other", Window), "option window is one of window too"),
        (PolicyEntry("other", "", "there:Other", Bare), "policy 'other': option turns has no default"),
    ],
)
def test_what_is_refused(registry, entry, says):
    with pytest.raises(UsageError, match=says):
        registry.add(entry)


def test_an_option_is_no_setting_of_the_section(registry):
    with pytest.raises(UsageError, match="option window is a setting of schedule already"):

        @with_options(policy=registry)
        class Taken(Section):
            policy: str = "window"
            window: int = 1


def test_what_comes_too_late_is_refused():
    with pytest.raises(UsageError, match="registered after the configuration was first read"):
        plugins.register(PolicyEntry("late", "", "there:Late"))


@pytest.mark.parametrize("kind", [kind for kind, (_, registry) in KINDS.items() if registry.key])
def test_an_unknown_name_is_reported_with_what_may_be_meant(kind, monkeypatch):
    registry = KINDS[kind][1]
    near = max(registry, key=len)
    for named in ("", "mine.py"):
        monkeypatch.setenv("DYNBENCH_PLUGINS", named)
        with pytest.raises(UsageError, match=re.escape(f"Did you mean '{near}'?")) as found:
            registry.find(f"{near}x")
        (line,) = refused(load_config, None, [f"{registry.key}=mine"])
        assert ["DYNBENCH_PLUGINS" in text for text in (found.value.hint, line)] == [not named] * 2


@pytest.mark.slow
def test_mistakes_are_one_error(tmp_path):
    says = {
        "import nothing_there": ["DYNBENCH_PLUGINS: 0.py:1: ModuleNotFoundError"],
        "x = (": ["DYNBENCH_PLUGINS: 1.py:1: SyntaxError"],
        TAKEN: ["DYNBENCH_PLUGINS: 2.py:2: policy 'static': the name is taken"],
        TOYS.read_text(): [*(text.partition("=")[0] for text in WRONG), *NEAREST],
    }
    for number, text in enumerate(says):
        (tmp_path / f"{number}.py").write_text(text)
    line = " --set ".join(("train --dry-run", *WRONG))
    asked = [("command", [line], {"DYNBENCH_PLUGINS": f"{number}.py"}) for number in range(len(says))]
    for parts, (code, said) in zip(says.values(), answers(tmp_path, *asked), strict=True):
        assert code == 2 and [part for part in parts if part not in said["error"]["message"]] == []


@pytest.mark.slow
def test_what_the_chosen_plugins_do_not_read_is_named_and_nothing_heavy_is_imported(tmp_path):
    asked = [("configured", given, {"DYNBENCH_PLUGINS": str(TOYS)}) for given in (UNREAD, UNREAD + CHOSEN)]
    found = [(each["unread"], each["heavy"]) for each in answers(tmp_path, *asked)]
    assert found == [(sorted(text.partition("=")[0] for text in UNREAD), []), ([], [])]


@pytest.mark.slow
def test_a_class_stands_in_the_file_that_registers_it(tmp_path):
    (tmp_path / "mine.py").write_text(ONE_FILE)
    mine = {"DYNBENCH_PLUGINS": "mine.py"}
    for found in answers(tmp_path, ("classes_beside", [], mine), ("classes_beside", list(BASES), mine)):
        options = {line["kind"]: line["options"] for line in found}
        assert list(options) == ["policies", "strategies", "compressors", "workloads", "datasets", "benchmarks"]
        assert [each["default"] for kind in ("policies", "benchmarks") for each in options[kind]] == [[1, 2]] * 2


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """A file of plug-ins in a folder with a space in its name, with the module of their classes beside it."""
    home = tmp_path / "my own"
    home.mkdir()
    for name, text in (("mine", OWN), ("parts", PARTS), ("broken", "raise RuntimeError('at import')")):
        (home / f"{name}.py").write_text(text)
    return {"DYNBENCH_PLUGINS": str(home / "mine.py")}


@pytest.mark.slow
def test_digests_of_runs_that_use_no_plugin_are_those_without_it(tmp_path, own):
    window = ["schedule.policy=window", "schedule.window=8"]
    asked = [("configured", given, there) for there in ({}, own) for given in ([], window)]
    chosen = [("configured", [given], own) for given in ("schedule.policy=own", "schedule.extra=3")]
    found = answers(tmp_path, *asked, *chosen)
    default, windowed, *unused = ((each["digest"], each["options"]) for each in found[:4])
    assert default != windowed and unused == [default, windowed]
    assert [each["options"] for each in found[4:]] == [["extra", "other"], ["extra"]]

    with (tmp_path / "my own" / "parts.py").open("a") as parts:
        parts.write("\n")
    (now,) = answers(tmp_path, ("configured", [], own))
    assert now["plugins"] != found[4]["plugins"]


MISTAKES = {
    "lacking": "plug-in lacking: Lacking lacks deal",
    "unlike": "is no subclass of Policy",
    "raising": "parts.py:9: ValueError: not today",
    "gone": "plug-in gone: parts:Gone",
    "broken": "plug-in broken: broken:Own: broken.py:1: RuntimeError: at import",
}


@pytest.mark.slow
def test_mistakes_in_a_plugins_class_are_no_bug_of_dynbench(tmp_path, own):
    lines = (f"solve --policy {policy} --steps 1 --world-size 2 --no-figures" for policy in MISTAKES)
    solved = answers(tmp_path, *(("command", [line], own) for line in lines))
    for said, (code, found) in zip(MISTAKES.values(), solved, strict=True):
        assert code == 2 and said in found["error"]["message"]
        assert "This is a bug" not in found["error"]["hint"]


class Empty:
    """A workload that lacks everything."""

    def __init__(self, config: Config) -> None:
        pass


def test_a_registered_workload_is_held_to_what_one_of_the_users_own_is(monkeypatch):
    monkeypatch.setitem(WORKLOADS.entries, "empty", WorkloadEntry("empty", "", Empty))
    with pytest.raises(UsageError, match="empty: lacks build_model"):
        build_workload(changed(Config(), {"workload.name": "empty"})).build_model(0)


@pytest.mark.slow
def test_the_policy_of_the_guide_runs_from_a_file_and_from_an_entry_point_of_a_package(tmp_path):
    code, toml = re.findall(r"```(?:python|toml)\n(.*?)```", read("dynbench/guides/own_code.md"), re.S)[-2:]
    (tmp_path / "round_robin.py").write_text(code)
    line = "solve sst2 --policy round_robin --steps 3 --no-figures"
    info = tmp_path / "round_robin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: round_robin\nVersion: 1\n")

    def solved(variables: dict[str, str]) -> None:
        ways = (line, f"{line} --set schedule.blocks=true")
        found = [said["results"][0] for _, said in answers(tmp_path, *(("command", [way], variables) for way in ways))]
        assert [each["policy"] for each in found] == ["round_robin"] * 2
        assert found[0]["mean_cost_variance"] < found[1]["mean_cost_variance"]

    solved({"DYNBENCH_PLUGINS": "round_robin.py"})
    declared = toml.replace('project.entry-points."', "").replace('"', "")
    (info / "entry_points.txt").write_text(declared)
    solved({})
    solved({"DYNBENCH_PLUGINS": "round_robin"})
    (tmp_path / "round_robin.py").write_text("x = (")
    ((_, said),) = answers(tmp_path, ("command", [line], {}))
    broken = said["error"]
    assert "entry point round_robin of dynbench.plugins: round_robin.py:1: SyntaxError" in broken["message"]
    assert broken["hint"] == "Mend that line, or uninstall its package."
