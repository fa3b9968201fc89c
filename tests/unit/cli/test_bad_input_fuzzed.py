"""Bad input, thousands of cases of it: a line that says what to do or a valid run, and nothing else anywhere.

`make test` tries `CASES` that are the same every time, `make nightly` twenty thousand that nobody has seen
(DYNBENCH_BAD_INPUT, HYPOTHESIS_PROFILE=search).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bad_input import LAUNCHED, Answer, answer, copied, junk, number, settled, spoil_file, spoilt
from golden.corpus import unpack
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe
from dynbench.config.schema import dump_config
from dynbench.config.values import all_keys, allowed_words, field_of
from dynbench.lengths import READERS, encode_trace
from dynbench.plugins import BENCHMARKS
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.slow
CASES = int(os.environ.get("DYNBENCH_BAD_INPUT", 75))
REAL = "--set launch.launcher=torchrun --set launch.nproc=2 --set launch.device=cpu"
COMMANDS = (
    "train --dry-run",
    "train --dry-run --json",
    "train --set train.steps=3 --set train.warmup_steps=1",
    "probe",
    "data lengths --force -o results/lengths.csv",
    "solve lognormal --steps 2 --world-size 2 --policy static,partition",
)
SETTINGS = dump_config(load_config(None, ["launch.launcher=torchrun", "launch.nproc=2", "train.steps=4"])).encode()
SAMPLES = '{"sentence": "a b", "label": 0}\n{"sentence": "c", "label": 1}\n'
DATA = {
    "tsv": "sentence\tlabel\n" + "a b c\t0\nb c\t1\n" * 8,
    "csv": "sentence,label\n" + '"a, b",0\nb c,1\n' * 8,
    "jsonl": SAMPLES * 8,
    "json": f"[{','.join(SAMPLES.splitlines() * 8)}]",
    "lengths": "length\n" + "5\n9\n30\n" * 8,
}
ON_DATA = f"train --dry-run {REAL} --tokenizer vocab.txt --global-batch 2 --data-path data.csv --dataset"
ON_RECIPES = ("compare --dry-run", "compare --dry-run --json", "compare", "recipes show", "doctor")
RECIPES = [re.sub("(?m)^#.*\n", "", find_recipe(name).read_text()).encode() for name in ("quickstart", "regimes")]
LENGTHS = np.array([5, 9, 30, 12] * 8)
SOLVE = "solve --steps 2 --world-size 2 --policy static,partition --no-figures"
FILES = [
    *((SETTINGS, "own.yaml", f"{command} -c own.yaml") for command in COMMANDS),
    *((content, "own.yaml", f"{command} own.yaml") for content in RECIPES for command in ON_RECIPES),
    *((encode_trace(LENGTHS, Path(f"x{end}")), f"trace{end}", f"{SOLVE} trace{end}") for end in READERS),
    *((text.encode(), "data.csv", f"{ON_DATA} {kind}") for kind, text in DATA.items()),
]
"""What a file holds, its name, and a command that reads it."""


def cases(share: float) -> settings:
    """A part of all cases, of one kind of input."""
    return settings(max_examples=max(1, round(share * CASES)), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with a results folder in it, and something precious beside it; nothing can be launched."""
    folder = tmp_path_factory.mktemp("bad input")
    (folder / "results").mkdir()
    (folder / "outside").mkdir()
    (folder / "outside" / "precious").write_text("mine")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\nc\n")
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
    """A results folder with two runs, their comparison, a probe and benchmarks, to copy and to spoil."""
    root = tmp_path_factory.mktemp("template") / "results"
    for recording in ("single", "bench"):
        unpack(recording, root)
    store = RunStore(root)
    for run, record in store.entries():
        if record.name not in ("plain", "within", "probed", "packed_attention", "assignment"):
            shutil.rmtree(run.path)
    (store.resolve("plain").path / "tensorboard").mkdir()
    (store.resolve("plain").path / "tensorboard" / "events.out.tfevents.0").touch()
    assert main(["analyze", "plain", "within", "-q", "--results", str(root)]) == 0
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


@cases(0.2)
@given(words=st.sampled_from(COMMANDS), values=st.lists(field_values(), min_size=1, max_size=3))
def test_any_value_of_any_setting(place, words, values):
    sets = [word for key, value in values for word in ("--set", f"{key}={value}")]
    clean(answer([*words.split(), *REAL.split(), *sets], place / "results"))


@cases(0.66)
@given(data=st.data(), file=st.sampled_from(FILES))
def test_any_file(place, data, file):
    content, name, command = file
    (place / name).write_bytes(data.draw(spoilt(content)))
    clean(answer(command.split(), place / "results"))


@cases(0.04)
@given(name=st.sampled_from(sorted(BENCHMARKS)), values=st.dictionaries(junk(), junk() | number(), max_size=2))
def test_any_option_of_a_benchmark(place, name, values):
    options = list(BENCHMARKS.find(name).options.model_fields)
    keys = [*options, *values]
    sets = [f"{keys[index % len(keys)]}={value}" for index, value in enumerate(values.values())]
    clean(answer(["bench", name, *(word for text in sets for word in ("--set", text))], place / "results"))


READING = (
    "analyze plain",
    "analyze plain within",
    "analyze both",
    "report both --lang en",
    "report both --lang zh --format html",
    "report plain --format html",
    "runs ls",
    "runs ls --since 2d",
    "runs show both",
    "runs show plain",
    "runs show probed",
    "runs export plain within -o results/out.zip",
    "runs rm --failed --dry-run",
    "data lengths plain --force -o results/lengths.csv",
    "tensorboard plain",
    "eval plain",
    "compare --resume both",
    "bench --resume packed_attention",
    "bench --resume assignment",
    "report assignment",
    "report assignment --lang zh --format html",
    f"train --dry-run --set probe.run=probed {REAL}",
)


@cases(0.2)
@given(data=st.data(), words=st.sampled_from(READING))
def test_any_run_folder(place, runs, data, words):
    work = copied(runs, place / "results")
    files = sorted(path for path in work.rglob("*") if path.is_file() and not path.name.startswith("."))
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        spoil_file(data.draw, path, [each for each in files if each.is_file()], place / "outside")
    before = rank_rows(work)
    clean(answer(words.split(), work))
    assert "--resume" in words or rank_rows(work) == before
    assert (place / "outside" / "precious").read_text() == "mine"
    assert sorted(path.name for path in (place / "outside").iterdir()) == ["precious"]


def rank_rows(results: Path) -> dict[Path, bytes]:
    """What ranks have written, which nobody changes who only reads."""
    return {path: path.read_bytes() for path in results.rglob("ranks/*.csv") if path.is_file()}


def clean(said: Answer) -> None:
    """A mistake is one helpful line, or one for each of several."""
    event(f"exit {said.code}, launched" if LAUNCHED in said.err + said.out else f"exit {said.code}")
    if said.code:
        assert "error: " in said.err or '"error"' in said.out, said
