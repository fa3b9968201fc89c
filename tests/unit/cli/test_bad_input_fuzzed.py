"""Bad input, thousands of cases of it: a line that says what to do or a valid run, and nothing else anywhere.

`make test` tries `CASES` that are the same every time, `make nightly` twenty thousand that nobody has seen
(DYNBENCH_BAD_INPUT, HYPOTHESIS_PROFILE=search).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from bad_input import LAUNCHED, Answer, answer, copied, junk, number, settled, spoil_file, spoilt
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from unit.analysis.conftest import Fake, build_run
from unit.experiment.test_assignment import checked, precision

from dynbench.bench.base import Row
from dynbench.bench.record import add_rows, read_benchmark, write_benchmark
from dynbench.cli.main import main
from dynbench.config.recipes import find_recipe
from dynbench.config.values import all_keys, allowed_words, field_of
from dynbench.experiment.assignment.rows import CHECK, check_table
from dynbench.experiment.assignment.suite import FILE, Stage, State
from dynbench.lengths import READERS, encode_trace
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import CollectivesOptions, PrecisionOptions
from dynbench.runs.atomic import write_json
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.slow
CASES = int(os.environ.get("DYNBENCH_BAD_INPUT", 125))
RECIPE = """\
description: two arms
settings:
  workload: {dataset: embedded, dropout: 0.0}
  train: {steps: 4, warmup_steps: 1, global_batch: 8}
  launch: {launcher: torchrun, nproc: 2, threads: 1}
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic, launch.slowdown: {1: 2.0}}
launches: 2
cells:
  - {train.global_batch: 8}
  - {train.global_batch: 16}
"""
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\nc\n"
DATA = {
    "tsv": "sentence\tlabel\n" + "a b c\t0\nb c\t1\n" * 8,
    "csv": "sentence,label\n" + '"a, b",0\nb c,1\n' * 8,
    "jsonl": '{"sentence": "a b", "label": 0}\n{"sentence": "c", "label": 1}\n' * 8,
    "json": "[" + ", ".join(['{"sentence": "a b", "label": 0}', '{"sentence": "c", "label": 1}'] * 8) + "]",
    "lengths": "length\n" + "5\n9\n30\n" * 8,
}
REAL = "--set launch.launcher=torchrun --set launch.nproc=2 --set launch.device=cpu"


def cases(share: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A part of all cases, of one kind of input."""
    return settings(
        max_examples=max(1, round(share * CASES)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with a results folder in it, and something precious beside it; nothing can be launched."""
    folder = tmp_path_factory.mktemp("bad input")
    (folder / "results").mkdir()
    (folder / "outside").mkdir()
    (folder / "outside" / "precious").write_text("mine")
    (folder / "vocab.txt").write_text(VOCABULARY)
    with pytest.MonkeyPatch.context() as patch:
        settled(patch, folder)
        patch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: Path(path).write_bytes(b"\x89PNG"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("dynbench.cli.health.CHECKS", {})
        patch.setattr("dynbench.cli.trained.serve", lambda *_: "http://localhost")
        patch.setattr("dynbench.cli.trained.wait_for_ctrl_c", lambda: None)
        yield folder


@pytest.fixture(scope="module")
def runs(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with two runs, their comparison and its report, to copy and to spoil."""
    root = tmp_path_factory.mktemp("template") / "results"
    store = RunStore(root)
    small = {"steps": 6, "warmup_steps": 2, "global_batch": 8}
    for name, policy in (("a", "static"), ("b", "partition")):
        run = build_run(store, Fake(policy=policy, **small), name)
        (run.path / "tensorboard").mkdir()
        (run.path / "tensorboard" / "events.out.tfevents.0").write_bytes(b"")
    bench = store.create("bench", "collectives", "c")
    write_benchmark(bench, "collectives", BENCHMARKS.find("collectives").load()(CollectivesOptions()))
    case = read_benchmark(bench).cases()[0]
    measured = {**case.columns, "time": 2.0, "busbw": 0.1, "#wrong": 0}
    timed = Row(case.name, case.shape, case.dtype, "cpu", unit="ms", n=2, mean=2.0, p50=2.0, columns=measured)
    add_rows(bench, [timed])
    bench.update(status="interrupted")
    suite = store.create("bench", "assignment", "list")
    sums = store.create("bench", "precision")
    write_benchmark(sums, "precision", BENCHMARKS.find("precision").load()(PrecisionOptions()))
    add_rows(sums, precision())
    check = check_table(suite, checked())
    stages = [Stage("precision", sums.id, True), Stage("collectives", bench.id), Stage(CHECK, suite.id, True)]
    write_json(suite.path / FILE, State(False, stages, list(check.rows)))
    suite.update(status="interrupted")
    assert main(["analyze", "a", "b", "-q", "--results", str(root)]) == 0
    store.give_name(store.resolve("@latest:analyze"), "both")
    return root


def field_values() -> st.SearchStrategy[tuple[str, str]]:
    """A dotted key and a text for its value: a word that it takes, a number or junk."""

    def of(key: str) -> st.SearchStrategy[tuple[str, str]]:
        found = field_of(key)
        words = allowed_words(found[0]) if found else ()
        values = [number(), junk(), *([st.sampled_from(words)] if words else [])]
        return st.tuples(st.just(key), st.one_of(values))

    return st.sampled_from(all_keys()).flatmap(of)


COMMANDS = (
    "train --dry-run",
    "train --dry-run --json",
    "train --set train.steps=3 --set train.warmup_steps=1",
    "probe",
    "data lengths --force -o results/lengths.csv",
    "solve lognormal --steps 2 --world-size 2 --policy static,partition",
)


@cases(0.2)
@given(words=st.sampled_from(COMMANDS), values=st.lists(field_values(), min_size=1, max_size=3))
def test_any_value_of_any_setting(place, words, values):
    sets = [word for key, value in values for word in ("--set", f"{key}={value}")]
    clean(answer([*words.split(), *REAL.split(), *sets], place / "results"))


@cases(0.16)
@given(data=st.data(), words=st.sampled_from(COMMANDS), values=st.lists(field_values(), max_size=4))
def test_any_configuration_file(place, data, words, values):
    sections: dict[str, dict[str, object]] = {"launch": {"launcher": "torchrun", "nproc": 2}, "train": {"steps": 4}}
    for key, value in values:
        section, _, name = key.partition(".")
        try:
            read = yaml.safe_load(value)
            yaml.safe_dump({section: {name: read}})
        except (yaml.YAMLError, ValueError, RecursionError):
            read = value
        sections.setdefault(section, {})[name] = read
    content = yaml.safe_dump(sections).encode(errors="surrogatepass")
    (place / "own.yaml").write_bytes(data.draw(spoilt(content)))
    clean(answer([*words.split(), "-c", "own.yaml"], place / "results"))


@cases(0.14)
@given(data=st.data(), words=st.sampled_from(["--dry-run", "--dry-run --json", ""]))
def test_any_recipe(place, data, words):
    name = data.draw(st.sampled_from(["", "", "quickstart", "regimes"]))
    content = find_recipe(name).read_bytes() if name else RECIPE.encode()
    (place / "own.yaml").write_bytes(data.draw(spoilt(content)))
    shows = data.draw(st.sampled_from(["recipes show", "doctor"]))
    for command in (f"compare own.yaml {words}", f"{shows} own.yaml"):
        clean(answer(command.split(), place / "results"))


@cases(0.16)
@given(data=st.data(), suffix=st.sampled_from(sorted(READERS)))
def test_any_trace(place, data, suffix):
    content = encode_trace(np.array([5, 9, 30, 12] * 8), Path(f"x{suffix}"))
    (place / f"trace{suffix}").write_bytes(data.draw(spoilt(content)))
    words = f"solve trace{suffix} --steps 2 --world-size 2 --policy static,partition --no-figures"
    clean(answer(words.split(), place / "results"))


@cases(0.1)
@given(data=st.data(), kind=st.sampled_from(sorted(DATA)))
def test_any_data_file(place, data, kind):
    path = place / f"data.{'csv' if kind == 'lengths' else kind}"
    path.write_bytes(data.draw(spoilt(DATA[kind].encode())))
    words = f"train --dry-run {REAL} --dataset {kind} --data-path {path.name} --tokenizer vocab.txt --global-batch 2"
    clean(answer(words.split(), place / "results"))


@cases(0.04)
@given(name=st.sampled_from(sorted(BENCHMARKS)), values=st.dictionaries(junk(), junk() | number(), max_size=2))
def test_any_option_of_a_benchmark(place, name, values):
    options = list(BENCHMARKS.find(name).options.model_fields)
    keys = [*options, *values]
    sets = [f"{keys[index % len(keys)]}={value}" for index, value in enumerate(values.values())]
    clean(answer(["bench", name, *(word for text in sets for word in ("--set", text))], place / "results"))


READING = (
    "analyze a",
    "analyze a b",
    "analyze both",
    "report both --lang en",
    "report both --lang zh --format html",
    "report a --format html",
    "runs ls",
    "runs ls --since 2d",
    "runs show both",
    "runs show a",
    "runs export a b -o results/out.zip",
    "runs rm --failed --dry-run",
    "data lengths a --force -o results/lengths.csv",
    "tensorboard a",
    "eval a",
    "compare --resume both",
    "bench --resume c",
    "bench --resume list",
    "report list",
    "report list --lang zh --format html",
    f"train --dry-run --set probe.run=a {REAL}",
)


@cases(0.2)
@given(data=st.data(), words=st.sampled_from(READING))
def test_any_run_folder(place, runs, data, words):
    work = copied(runs, place / "results")
    files = sorted(path for path in work.rglob("*") if path.is_file() and not path.name.startswith("."))
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        spoil_file(data.draw, path, [each for each in files if each.is_file()], place / "outside")
    clean(answer(words.split(), work))
    assert (place / "outside" / "precious").read_text() == "mine"
    assert sorted(path.name for path in (place / "outside").iterdir()) == ["precious"]


def clean(said: Answer) -> None:
    """A mistake is one helpful line, or one for each of several."""
    event(f"exit {said.code}, launched" if LAUNCHED in said.err + said.out else f"exit {said.code}")
    if said.code:
        assert "error: " in said.err or '"error"' in said.out, said
