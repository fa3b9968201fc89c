"""Bad input, and the command that is given it; what each answers is golden (`golden/words/bad_input`)."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bad_input import Answer, answer

from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

DIGITS, LONG = "9" * 5_000, "a" * 300


@dataclass(frozen=True)
class Bad:
    """Something that nobody should give.

    Attributes:
        what: it is.
        words: the command.
        plant: makes it, in the working folder, which has the run `mine` in `results`.
        shown: the command as people read it, where that is not its words.
    """

    what: str
    words: str
    plant: Callable[[Path], object] = lambda _: None
    shown: str = ""


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Plants a file."""
    return lambda here: (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def record(**changes: object) -> Callable[[Path], object]:
    """Changes the run's record."""

    def plant(here: Path) -> None:
        file = mine(here).record_file
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return plant


def within(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Plants a file in the run's folder."""
    return lambda here: text(name, content)(mine(here).path)


def mine(here: Path) -> Run:
    """The run."""
    return next(Run(path) for path in (here / "results").iterdir() if path.is_dir())


def link(name: str, target: str) -> Callable[[Path], object]:
    """Plants a link in the run's folder."""
    return lambda here: (mine(here).path / name).symlink_to(target)


def exported(what: str, name: str, content: bytes) -> Bad:
    """An exported file with a member of this name."""

    def plant(here: Path) -> None:
        manifest = {"kind": "dynbench export", "schema_version": 1, "runs": ["a"], "arms": None, "stored": None}
        with zipfile.ZipFile(here / "base.zip", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("export.json", json.dumps(manifest))
            file.writestr(name, content)

    return Bad(what, "analyze ./base.zip", plant)


def pickled(here: Path) -> None:
    """An array of objects, which only unpickling reads."""
    np.save(here / "lengths.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


def huge(here: Path) -> None:
    """An array that says that it has more numbers than any machine holds."""
    np.save(here / "lengths.npy", np.arange(10))
    content = (here / "lengths.npy").read_bytes().replace(b"(10,), }" + b" " * 14, b"(1000000000000000,), }")
    (here / "lengths.npy").write_bytes(content)


TRAIN = "train --dry-run"
SOLVE = "solve lengths.csv --world-size 2"
COMPARE = "compare own.yaml --dry-run"
TSV = f"{TRAIN} --dataset tsv --data-path own.tsv --tokenizer vocab.txt --nproc 2"
LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
ARMS = "description: d\narms:\n  - {name: a}\n  - {name: "
ELSEWHERE = {"runs": [{"id": "../x"}], "arms": [{"name": "a", "runs": ["../x"]}], "comparisons": []}


def setting(what: str, given: str, shown: str = "") -> Bad:
    """A setting of `train`."""
    return Bad(what, f"{TRAIN} --set {given}", shown=shown)


def configured(what: str, content: str | bytes) -> Bad:
    """A configuration of `train`."""
    return Bad(what, f"{TRAIN} -c own.yaml", text("own.yaml", content))


def lengths(what: str, suffix: str, content: str | bytes) -> Bad:
    """A file of lengths for `solve`."""
    return Bad(what, f"solve lengths{suffix}", text(f"lengths{suffix}", content))


CASES = (
    setting("a whole number of 5,000 digits", f"train.steps={DIGITS}", "train --set train.steps=99…"),
    setting("more steps than 32 bits count", "train.steps=9999999999"),
    setting("a batch that is infinite", "train.global_batch=.inf"),
    setting("a learning rate that is no number", "train.learning_rate=.nan"),
    setting("more ranks than there are anywhere", "launch.nproc=99999999"),
    setting("a byte that is no UTF-8", "train.steps=\udcff"),
    Bad("a name that leads elsewhere", "train --name ../x"),
    Bad("a name that sets a colour", "train --name \x1b[31mred"),
    configured("a tag that runs code", "train: !!python/object/apply:os.system ['touch pwned']\n"),
    configured("aliases that multiply", LAUGHS),
    configured("an alias to itself", "train: &a {steps: *a}\n"),
    configured("brackets without an end", "train: " + "[" * 100_000),
    configured("a key twice", "train:\n  steps: 1\n  steps: 2\n"),
    configured("a null character", 'workload:\n  tokenizer: "a\\0b"\n'),
    configured("half a character", 'workload:\n  tokenizer: "\\ud800"\n'),
    configured("a configuration that is no text", b"\xff\xfe"),
    Bad("a recipe that is no text", "recipes show own.yaml", text("own.yaml", b"\xe4")),
    Bad("an arm whose name leads elsewhere", COMPARE, text("own.yaml", f"{ARMS}../x}}\n")),
    Bad("an arm whose name is markup", COMPARE, text("own.yaml", f"{ARMS}'[red]'}}\n")),
    Bad("lengths that are pickled", "solve lengths.npy", pickled),
    Bad("an array larger than memory", "solve lengths.npy", huge),
    lengths("an array whose header is torn", ".npy", b"\x93NUMPY\x01\x00v\x00{'a'"),
    lengths("lengths nested deeply", ".jsonl", "[" * 100_000),
    lengths("a length of 5,000 digits", ".jsonl", DIGITS),
    Bad("a length that is no number", SOLVE, text("lengths.csv", "length\n5\nnan\n")),
    Bad("a length below one", SOLVE, text("lengths.csv", "length\n5\n-1\n")),
    lengths("a parquet file that is none", ".parquet", b"PAR1" * 9),
    Bad("a pipe as a file of lengths", SOLVE, lambda here: os.mkfifo(here / "lengths.csv")),
    Bad("a path too long for any file", f"solve {LONG}.csv", shown="solve aaa….csv"),
    Bad("a line without a label", TSV, text("own.tsv", "sentence\tlabel\na b\t0\nc\n")),
    Bad("a file of another kind", TSV, text("own.tsv", b"PK\x03\x04\x00\xff")),
    Bad("a limit of memory that is none", "probe --set probe.memory_limit=-1GiB"),
    Bad("lengths to probe that are no numbers", "probe --set probe.lengths=64,.nan"),
    Bad("sizes of a benchmark that are infinite", "bench collectives --set sizes_mib=.inf"),
    Bad("a benchmark of a name that leads elsewhere", "bench ../collectives"),
    Bad("a file to write of another kind", "data lengths -o ../x.exe"),
    Bad("a run whose data nobody kept", "data lengths mine"),
    Bad("a run without scalars", "tensorboard mine"),
    Bad("a reference too long for any folder", f"runs show {LONG}", shown="runs show aaa…"),
    Bad("a record that is torn", "analyze mine", lambda here: os.truncate(mine(here).record_file, 40)),
    Bad("a record nested deeply", "runs show mine", within("env.json", "[" * 100_000)),
    Bad("a record of a later version", "runs show @latest", record(schema_version=99, version="9.9")),
    Bad("a run whose name is HTML", "runs ls", record(name="<script>")),
    Bad("a run whose time has no zone", "runs ls --since 2d", record(created="2026-01-01T00:00:00")),
    Bad("a warning that sets a colour", "runs show mine", record(warnings=["\x1b[31mred"])),
    Bad("settings that are a pipe", "analyze mine", lambda here: os.mkfifo(mine(here).config_file)),
    Bad("a link out of the run folder", "report mine", link("figures", "/etc")),
    Bad("a link to itself", "analyze mine", link("config.yaml", "config.yaml")),
    Bad("a comparison of runs elsewhere", "report mine", within("comparison.json", json.dumps(ELSEWHERE))),
    exported("an export with a path in it", "runs/../../evil/run.json", b"{}"),
    exported("an export that unpacks without an end", "runs/a/ranks/rank_0.csv", b"\0" * 10**7),
)


def given(bad: Bad, here: Path) -> Answer:
    """What is answered to what is planted in an empty folder, which is the working folder already."""
    (here / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    RunStore(here / "results").create("train", "static", "mine")
    bad.plant(here)
    return answer(bad.words.split(), here / "results")
