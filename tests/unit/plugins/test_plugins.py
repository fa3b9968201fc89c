"""Registries: what may be registered, what their options become, and files of the user's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pages import read

from dynbench import plugins
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, Schedule, Sync
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import KINDS, POLICIES, PolicyEntry, Section, options_of
from dynbench.plugins.policies import PrefixOptions, WindowOptions
from dynbench.plugins.registry import Registry, with_options
from dynbench.plugins.strategies import BucketOptions

TOYS = Path(__file__).parents[2] / "toy_plugins.py"
WRONG = ("schedule.policy=turnd", "schedule.turns=0", "sync.name=one_by_on", "compress.digits=x", "workload.words=3")
NEAREST = ("Did you mean 'turned'?", "Did you mean 'one_by_one'?")
UNREAD = ("schedule.turns=2", "sync.divide_late=true", "workload.words=50", "workload.note=kept")

CHOSEN = ("schedule.policy=turned", "sync.name=one_by_one", "workload.dataset=few_words", "workload.name=noted")
TAKEN = "from dynbench.plugins import *\nregister(PolicyEntry('static', '', 'mine:A'))"


OWN = """
from dynbench.plugins import *
class Extra(Section):
    extra: int = 1
    '''Read by own.'''
    other: int = 2
    '''Read by own.'''
register(PolicyEntry('own', '', 'parts:Own', Extra))
register(PolicyEntry('lacking', '', 'parts:Lacking'))
register(PolicyEntry('unlike', '', 'parts:Unlike'))
register(PolicyEntry('raising', '', 'parts:Raising'))
register(PolicyEntry('broken', '', 'broken:Own'))
register(PolicyEntry('gone', '', 'parts:Gone'))
register(WorkloadEntry('means', '', 'parts:Means'))
register(WorkloadEntry('empty', '', 'parts:Unlike'))
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
def Means(config):
    from dynbench.workloads.text_classification import TextClassification
    class Mean(TextClassification):
        def loss(self, model, batch): return super().loss(model, batch) / len(batch['labels'])
    return Mean(config)
"""
ONE_FILE = """
from __future__ import annotations
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar
from pydantic import Field
from dynbench.sync.base import Strategy
from dynbench.bench.base import Benchmark
from dynbench.compress.base import Compressor
from dynbench.plugins import *
from dynbench.schedule.policy import BatchPolicy
from dynbench.workloads.base import Workload
from dynbench.workloads.datasets.base import Splits
if TYPE_CHECKING:
    from dynbench.config.schema import Config
class Turns(Section):
    turns: tuple[int, ...] = Field(default_factory=lambda: (1, 2))
    '''How far.'''
class Turned(BatchPolicy):
    def deal(self, batches, first_step): return []
class Late(Strategy):
    equal_gradients: ClassVar[bool] = True
    def _wrapped(self, model): return model
    def accumulating(self): return nullcontext()
    def finish(self): pass
class Halved(Compressor):
    def mean(self, channel, flat, segments): pass
class Task(Workload):
    def __init__(self, config: Config): pass
def no_samples(settings): return Splits(None)
register(PolicyEntry("mine", "", Turned, Turns))
register(StrategyEntry("mine", "", Late))
register(CompressorEntry("mine", "", Halved))
register(WorkloadEntry("mine", "", Task))
register(DatasetEntry("mine", "", no_samples))
"""
BASES = ("sync.base", "compress.base", "schedule.policy", "workloads.base", "workloads.datasets.base", "bench.base")
"""Modules with what plug-ins are made of."""
DIGESTS = """
from dynbench.config.layers import load_config
from dynbench.config.schema import config_digest, dump_config
from dynbench.plugins.outside import digests
for given in ([], ['schedule.policy=window', 'schedule.window=8'], {more}):
    config = load_config(None, given)
    print(config_digest(config), *(key for key in ('extra', 'other') if key in dump_config(config)))
print(*digests().values())
"""


class Window(Section):
    window: int = 2


class Bare(Section):
    turns: int


class More(WindowOptions):
    more: int = 1


@pytest.fixture
def registry() -> Iterator[Registry[PolicyEntry]]:
    yield Registry("policy", "schedule.policy", [PolicyEntry("window", "", "there:Window", WindowOptions)])


def run(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, where plug-ins are loaded anew."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env={**os.environ, **variables}
    )


def commands(folder: Path, *lines: Sequence[str], **variables: str) -> list[tuple[int, dict[str, Any]]]:
    """Exit code and JSON object of several commands of one process."""
    words = [["dynbench", *line, "--json", "--results", str(folder)] for line in lines]
    code = f"""
import contextlib, io, json
from dynbench.cli.main import main
for words in {words!r}:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main(words[1:])
    print(json.dumps([code, json.loads(said.getvalue())]))
"""
    done = run(folder, code, **variables)
    assert done.returncode == 0 and "dynbench-bug" not in done.stderr, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


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
        (PolicyEntry("other", "", "there:Other", Bare), "policy 'other': option turns has no default"),
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


@pytest.mark.parametrize("key", ["schedule.policy", "sync.name", "compress.name", "workload.name", "workload.dataset"])
def test_an_unknown_name_is_reported_with_what_may_be_meant(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = next(registry for _, registry in KINDS.values() if registry.key == key)
    near = max(registry, key=len)

    def reported() -> tuple[bool, bool]:
        with pytest.raises(UsageError, match=re.escape(f"Did you mean '{near}'?")) as found:
            registry.find(f"{near}x")
        with pytest.raises(ConfigError) as loaded:
            load_config(None, [f"{key}=mine"])
        return "DYNBENCH_PLUGINS" in found.value.hint, "DYNBENCH_PLUGINS" in loaded.value.message

    monkeypatch.delenv("DYNBENCH_PLUGINS", raising=False)
    assert reported() == (True, True)
    monkeypatch.setenv("DYNBENCH_PLUGINS", "mine.py")
    assert reported() == (False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "words", "says"),
    [
        (None, [word for text in WRONG for word in ("--set", text)], [*(t.partition("=")[0] for t in WRONG), *NEAREST]),
        ("import nothing_there", [], ["DYNBENCH_PLUGINS: mine.py:1: ModuleNotFoundError"]),
        ("x = (", [], ["DYNBENCH_PLUGINS: mine.py:1: SyntaxError"]),
        (TAKEN, [], ["DYNBENCH_PLUGINS: mine.py:2: policy 'static': the name is taken"]),
    ],
)
def test_mistakes_are_one_error(tmp_path: Path, file: str | None, words: list[str], says: list[str]) -> None:
    (tmp_path / "mine.py").write_text(file or "", encoding="utf-8")
    plugin = str(TOYS) if file is None else "mine.py"
    ((code, said),) = commands(tmp_path, ["train", "--dry-run", *words], DYNBENCH_PLUGINS=plugin)
    assert code == 2 and [part for part in says if part not in said["error"]["message"]] == []


@pytest.mark.slow
def test_what_the_chosen_plugins_do_not_read_is_named_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from dynbench.config.layers import load_config\n"
        "from dynbench.config.unread import Use, unread\n"
        "def lines(*texts):\n"
        "    config = load_config(None, texts)\n"
        "    return [line.partition(':')[0] for line in unread('train', [Use(config, config, 2)])]\n"
        f"given = ('launch.launcher=torchrun', 'launch.nproc=2', *{UNREAD!r})\n"
        f"print(json.dumps([lines(*given), lines(*given, *{CHOSEN!r})]))\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'toy_classes') if name in sys.modules])"
    )
    done = run(tmp_path, code, DYNBENCH_PLUGINS=str(TOYS))
    assert done.returncode == 0, done.stderr
    warned, heavy = done.stdout.splitlines()
    without, with_them = json.loads(warned)
    assert sorted(without) == sorted(text.partition("=")[0] for text in UNREAD)
    assert with_them == []
    assert heavy == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "\n".join(f"import dynbench.{name}" for name in BASES)])
def test_a_class_stands_in_the_file_that_registers_it(tmp_path: Path, first: str) -> None:
    (tmp_path / "mine.py").write_text(ONE_FILE, encoding="utf-8")
    code = f"""
{first}
import sys
assert "dynbench.config.schema" not in sys.modules
from dynbench.cli.plugins import plugins
plugins(["--json"], standalone_mode=False)
from dynbench.plugins import KINDS, STRATEGIES
assert all(registry["mine"].load() for _, registry in KINDS.values() if registry.key)
assert STRATEGIES["mine"].load()(None, object()).settings.name == "ddp"
"""
    done = run(tmp_path, code, DYNBENCH_PLUGINS="mine.py")
    assert done.returncode == 0, done.stderr
    mine = {line["kind"]: line["options"] for line in json.loads(done.stdout)["plugins"] if line["name"] == "mine"}
    assert list(mine) == ["policies", "strategies", "compressors", "workloads", "datasets"]
    assert [option["default"] for option in mine["policies"]] == [[1, 2]]


@pytest.mark.slow
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


def own_files(folder: Path) -> str:
    """A file of plug-ins in a folder with a space in its name, with the module of their classes beside it."""
    home = folder / "my own"
    home.mkdir()
    for name, text in (("mine", OWN), ("parts", PARTS), ("broken", "raise RuntimeError('at import')")):
        (home / f"{name}.py").write_text(text, encoding="utf-8")
    return str(home / "mine.py")


@pytest.mark.slow
def test_digests_of_runs_that_use_no_plugin_are_those_without_it(tmp_path: Path) -> None:
    without = run(tmp_path, DIGESTS.format(more=[])).stdout.splitlines()
    assert without[0] == without[2] != without[1]
    file = own_files(tmp_path)

    def lines(*given: str) -> list[str]:
        done = run(tmp_path, DIGESTS.format(more=list(given)), DYNBENCH_PLUGINS=file)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    *unused, chosen, before = lines("schedule.policy=own")
    assert unused == without[:2]
    assert chosen.split()[1:] == ["extra", "other"]
    assert lines("schedule.extra=3")[2].split()[1:] == ["extra"]

    parts = Path(file).with_name("parts.py")
    parts.write_text(parts.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert lines()[-1] != before


MISTAKES = {
    "lacking": "plug-in lacking: Lacking lacks deal",
    "unlike": "is no subclass of Policy",
    "raising": "parts.py:9: ValueError: not today",
    "gone": "plug-in gone: parts:Gone",
    "broken": "plug-in broken: broken:Own: broken.py:1: RuntimeError: at import",
}


@pytest.mark.slow
def test_mistakes_in_a_plugins_class_are_no_bug_of_dynbench(tmp_path: Path) -> None:
    few = ("--steps", "1", "--world-size", "2", "--no-figures")
    lines = [("solve", "--policy", policy, *few) for policy in MISTAKES]
    for said, (code, found) in zip(
        MISTAKES.values(), commands(tmp_path, *lines, DYNBENCH_PLUGINS=own_files(tmp_path)), strict=True
    ):
        assert code == 2 and said in found["error"]["message"]
        assert "This is a bug" not in found["error"]["hint"]


@pytest.mark.slow
def test_a_registered_workload_is_checked_as_a_class_of_ones_own(tmp_path: Path) -> None:
    code = """
from dynbench.config.layers import load_config
from dynbench.errors import DynbenchError
from dynbench.workloads.registry import build_workload
for name in ('means', 'empty'):
    try:
        build_workload(load_config(None, [f'workload.name={name}', 'workload.subset=64'])).build_model(0)
        print('taken')
    except DynbenchError as error:
        print(error.message)
"""
    done = run(tmp_path, code, DYNBENCH_PLUGINS=own_files(tmp_path))
    means, empty = done.stdout.splitlines()
    assert "means: loss is" in means and "for each alone" in means, done.stderr
    assert "empty: lacks build_model(self, seed)" in empty


@pytest.mark.slow
def test_the_policy_of_the_guide_runs_from_a_file_and_from_an_entry_point_of_a_package(tmp_path: Path) -> None:
    code, toml = re.findall(r"```(?:python|toml)\n(.*?)```", read("dynbench/guides/own_code.md"), re.S)[-2:]
    (tmp_path / "round_robin.py").write_text(code, encoding="utf-8")
    words = ("solve", "sst2", "--policy", "round_robin", "--steps", "3", "--no-figures")
    blocks = ("--set", "schedule.blocks=true")
    named = {"DYNBENCH_PLUGINS": "round_robin.py"}
    installed = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    info = tmp_path / "round_robin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: round_robin\nVersion: 1\n", encoding="utf-8")
    for variables in (named, installed, installed | {"DYNBENCH_PLUGINS": "round_robin"}):
        if variables is installed:
            declared = toml.replace('project.entry-points."', "").replace('"', "")
            (info / "entry_points.txt").write_text(declared, encoding="utf-8")
        found = commands(tmp_path, words, (*words, *blocks), **variables)
        lines = [said["results"][0] for _, said in found]
        assert [line["policy"] for line in lines] == ["round_robin"] * 2
        assert lines[0]["mean_cost_variance"] < lines[1]["mean_cost_variance"]
    (tmp_path / "round_robin.py").write_text("x = (", encoding="utf-8")
    ((_, said),) = commands(tmp_path, words, **installed)
    broken = said["error"]
    assert "entry point round_robin of dynbench.plugins: round_robin.py:1: SyntaxError" in broken["message"]
    assert broken["hint"] == "Mend that line, or uninstall its package."
