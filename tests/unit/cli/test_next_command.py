"""A suggested command, pasted into a shell, goes on from the run that suggests it, with what it says differs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from probes import LAPTOP, make_probe, probe_record
from said import Cli

from dynbench.cli import solve_view
from dynbench.cli.common import Settings, setting_words
from dynbench.cli.main import load_command
from dynbench.cli.options import settings_of
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, changed, dump_config, value_of
from dynbench.config.values import all_keys, allowed_words, default_of, field_of
from dynbench.engine.launching.resolve import resolve
from dynbench.errors import ConfigError
from dynbench.experiment.training import NextTraining
from dynbench.probe import prober
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

WORDS_OF_ANY_TYPE = ("7", "64", "0.5", "0.25", "true", "false", "[3, 4]", "[1, 2, 3]", "{1: 2.5}", "a b", "a:B")
PATHS = (
    *("a b.tsv", "it's.tsv", '"q".tsv', "null", "1e-4", "~", "true", "a: b", "#x", "a #b", "[x]", "{x}", " x ", "-x"),
    *("012", "3:30", "no", "@latest", "--steps", "$(x)", "x;y", "数据.tsv", "a\\b", "*", "&a", "!x", "a=b", "%", "?"),
)
"""Names of files."""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with text data; the results folder is not the default one and its name has a space."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    lengths = np.clip(np.random.default_rng(0).lognormal(3.3, 1, 400).astype(int), 3, 350)
    lines = [f"{'good bad ' * (n // 2)}\t{n % 2}" for n in lengths]
    Path("it's my data.tsv").write_text("\n".join(["sentence\tlabel", *lines]), encoding="utf-8")
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad", encoding="utf-8")
    np.save("lengths.npy", lengths)
    return tmp_path / "my results"


@pytest.fixture
def solve(results: Path, cli: Cli) -> Callable[..., tuple[str, str]]:
    """What `solve` prints, and the command that it suggests."""

    def run(line: str) -> tuple[str, str]:
        said = cli(f"solve {line} --no-figures --results", results)
        label, _, command = said.lines[-1].partition(" ")
        assert label == "next"
        return said.out, command.strip()

    return run


def parsed(line: str) -> Settings:
    """The settings that a suggested command is given."""
    program, name, *words = shlex.split(line)
    assert program == "dynbench"
    return settings_of(dict(load_command(name).make_context(name, words).params))


def run_of(config: Config, root: Path, name: str | None = None) -> Run:
    """A run with this configuration."""
    run = RunStore(root).create("train", "x", name=name)
    write_text(run.config_file, dump_config(config))
    return run


def pasted(command: str, run: Run, overrides: dict[str, object]) -> Config:
    """The configuration that a command is given, whatever the rules say of it."""
    settings = parsed(f"dynbench {command} {shlex.join(setting_words(command, run, overrides))}")
    assert settings.config_path is not None
    return load_config(settings.config_path, settings.overrides, settings.flags, rules=False)


def another(key: str) -> object:
    """A value that the key takes, other than its default."""
    found = field_of(key)
    assert found is not None
    for word in (*allowed_words(found[0]), *WORDS_OF_ANY_TYPE):
        with suppress(ConfigError):
            value = value_of(load_config(None, [f"{key}={word}"], rules=False), key)
            if value != default_of(key):
                return value
    raise AssertionError(f"no value of {key} was found")


SAME: dict[str, dict[str, object]] = {
    "train.epochs=2": {"train.steps": 9},
    "train.steps=9": {"train.epochs": 2},
    "train.batch_per_worker=8": {"train.global_batch": 64},
}


@pytest.mark.slow
def test_every_setting_comes_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_of(load_config(None, ["schedule.policy=prefix", "train.steps=33"]), tmp_path / "some results")
    for key in set(all_keys()) - {"train.epochs", "train.batch_per_worker"}:
        wanted, default = {key: another(key)}, {key: default_of(key)}
        assert pasted("train", run, wanted) == changed(run.config(), wanted), key
        assert pasted("train", run_of(changed(Config(), wanted), tmp_path), default) == Config(), key
    for path in PATHS:
        wanted = {"workload.data_path": path, "workload.cache_dir": path}
        assert pasted("train", run, wanted) == changed(run.config(), wanted), path
    given = ["-c", str(run.config_file)]
    assert setting_words("train", run, {"train.steps": 33}) == given
    two = {"train.steps": 3, "train.eval_every": 4}
    assert setting_words("train", run, two) == [*given, "--steps", "3", "--set", "train.eval_every=4"]
    for had, wanted in SAME.items():
        found = pasted("train", run_of(load_config(None, [had]), tmp_path), wanted)
        assert found == load_config(None, (), wanted), "what says the same in two ways is said once"


OWN = """--dataset tsv --data-path "it's my data.tsv" --tokenizer vocab.txt"""
MINE = {"workload.data_path": "it's my data.tsv"}
TEXTS = {**MINE, "workload.dataset": "tsv", "workload.tokenizer": "vocab.txt"}


SUGGESTED = {
    "lognormal --max-length 512": {"workload.dataset": "lognormal", "workload.max_length": 512},
    "embedded --subset 200 --seed 5": {"workload.dataset": "embedded", "workload.subset": 200, "train.seed": 5},
    f"{OWN} --subset 150": {**MINE, "workload.tokenizer": "vocab.txt", "workload.subset": 150},
    "--from-run earlier": {**MINE, "workload.max_length": 50, "workload.pad_to_multiple_of": "auto"},
    "lengths.npy": {"workload.dataset": "lengths", "workload.data_path": "lengths.npy"},
    "gsm8k": {"workload.dataset": "tsv", "workload.data_path": "FILE"},
    "lengths.npy -c 'my settings.yaml'": {**MINE, "train.learning_rate": 0.25, "workload.max_length": 60},
    "sst2 -c 'my settings.yaml'": {"workload.dataset": "embedded", "workload.tokenizer": None},
    "sst2 --cost-type attention --set schedule.attention_a=0.25": {"schedule.attention_a": 0.25},
    "sst2 --capacity 9,9,8 --speeds 1,1,0.5": {"schedule.capacity": (9, 9, 8), "schedule.speeds": (1.0, 1.0, 0.5)},
}
"""What is planned, and settings of the training that is suggested."""


@pytest.mark.slow
@pytest.mark.parametrize("words", SUGGESTED)
def test_solve_suggests_training_on_the_same_data(results, cli, solve, monkeypatch, words):
    monkeypatch.setattr(solve_view, "_places", lambda _: 64)
    earlier = changed(Config(), {**TEXTS, "workload.max_length": 60, "train.learning_rate": 0.25})
    write_text(Path("my settings.yaml"), dump_config(earlier))
    run = run_of(changed(Config(), {**TEXTS, "workload.max_length": 50, "workload.pad_to_multiple_of": 1}), results)
    RunStore(results).give_name(run, "earlier")
    write_json(run.env_file, {"decisions": {"workload.pad_to_multiple_of": {"value": 1, "reason": "on a CPU"}}})
    plan = "--policy static,partition,window --window 2 --steps 4 --global-batch 12 --world-size 3"
    out, line = solve(f"{words} {plan}")
    assert ("FILE below stands" in out) == ("FILE" in line)
    asked = line
    if "FILE" in line:
        shutil.copy("it's my data.tsv", "FILE")
        asked += " --tokenizer vocab.txt"  # in place of the model's own, which would be fetched

    shown = cli(asked.removeprefix("dynbench "), "--dry-run", "--json").json

    config = parsed(line).config()
    (best,) = [line for line in out.splitlines() if " * " in line]
    policy = best.split("12")[1].split()[0]
    expected = {"schedule.policy": policy, "train.global_batch": 12, "launch.nproc": 3, **SUGGESTED[words]}
    assert {key: value_of(config, key) for key in expected} == expected
    assert shown["config"]["schedule"]["window"] == (2 if policy == "window" else 1)
    assert Path(shown["run_path"]).parent == results
    assert [text for text in shown["warnings"] if "no effect" in text] == []


@pytest.mark.parametrize("cores", [1, 64])
@pytest.mark.parametrize(
    "own",
    ["launcher=auto", "launcher=virtual", "launcher=torchrun", "nproc=3", "nproc=2", "world_size=3", "world_size=8"],
)
def test_solve_suggests_as_many_ranks(results, monkeypatch, own, cores):
    """Real ones where the machine can hold them or they were asked for, else virtual ones."""
    monkeypatch.setattr(solve_view, "_places", lambda _: cores)
    config = load_config(None, [f"launch.{own}", "train.global_batch=12"])

    resolved = resolve(changed(config, solve_view._ranks(config.launch, 3)), LAPTOP, RunStore(results))

    real = own not in ("launcher=virtual", "world_size=3") and (cores == 64 or own == "nproc=3")
    assert (resolved.world_size, resolved.config.launch.launcher) == (3, "torchrun" if real else "virtual")


@pytest.mark.parametrize("own", ["", "--set workload.dropout=0.1"])
def test_solve_suggests_what_its_probe_was_made_with(results, solve, own):
    """Longer samples, another model or slower ranks than were probed are refused by `train`."""
    store = RunStore(results)
    made = make_probe(store, tables=[[(64, 16), (256, 16)]] * 2, workload={"size": "base", "max_length": 256})
    settings = ["workload.size=base", "workload.dropout=0.1", "launch.slowdown={1: 2.0}", "train.precision=fp32"]
    write_text(made.config_file, dump_config(load_config(None, settings)))
    write_json(made.env_file, {"decisions": {"train.precision": {"value": "fp32", "reason": "on a CPU"}}})
    line = f"lognormal --probe {made.label} --world-size 2 {own} --policy partition --steps 2"
    assert solve(line)[1] == "the same with --max-length 256"

    config = parsed(solve(f"{line} --max-length 256")[1]).config()

    assert (config.workload.size, config.workload.dropout, config.launch.slowdown) == ("base", 0.1, {1: 2.0})
    assert (config.workload.max_length, config.train.precision, config.probe.run) == (256, "auto", made.label)


AGAIN = "--epochs 3 --set train.lr_warmup_steps=5 --set schedule.policy=window"
PROBED = [
    ([(64, 40)], "", "--mode dynamic"),
    ([(16, 40), (32, 24), (64, 12)], "", "--global-batch"),
    ([(63, 1)], "", "--global-batch"),
    ([(40, 64)], AGAIN, " with a larger --memory-limit"),
]


@pytest.mark.parametrize(("table", "more", "suggested"), PROBED)
def test_training_that_fits_is_suggested_or_a_probe_of_the_same(store, cli, monkeypatch, table, more, suggested):
    record = probe_record("workload.max_length=64", tables=[table] * 2)
    monkeypatch.setattr(prober, "probe", lambda *_: record)
    *_, reason, last = cli(f"probe --device cpu --nproc 2 --max-length 64 {more}").lines
    assert suggested in last and ("--global-batch" in last) == ("all 110 steps fit" in reason)
    line = last.removeprefix("next     ").partition(" with a larger")[0]
    if more:
        again, asked = parsed(line).config(), load_config(None, ["schedule.policy=window"])
        assert (again.train.epochs, again.train.lr_warmup_steps, again.schedule) == (3, 5, asked.schedule)
    else:
        cli(shlex.join(shlex.split(line)[1:]), "--dry-run")


def test_more_micro_batches_are_the_last_resort():
    coming = NextTraining(72, 110, "step 4: too much", None, split_fits=True)
    assert coming.instead == {"schedule.micro_batches": "auto"}
