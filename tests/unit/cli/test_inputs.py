"""A mistake is found by every command that would meet it, before anything is made or launched."""

from __future__ import annotations

from pathlib import Path

import pytest

TSV = ("dataset=tsv", "data_path=train.tsv", "tokenizer=vocab.txt")
TWO = "--nproc 2 --device cpu"
RECIPE = "description: d\narms:\n  - name: static\n  - name: partition\n    set: {schedule.policy: partition}\n"
COMMANDS = ("train --name n", "train --dry-run", "probe", "compare own.yaml --name n", "compare own.yaml --dry-run")
OF_DATA = {
    "data_path=trian.tsv weights=pretrained model=./nowhere": ["trian.tsv", "./nowhere"],
    "tokenizer=poor.txt": ["poor.txt: no [UNK]"],
    "eval_path=bad.tsv": ["bad.tsv:3:"],
    "data_path=ten.tsv": ["ten.tsv has 10 samples, 1 of which are held out", "at most 9", "an evaluation file"],
}
EIGHT = "--nproc 8 --device cpu --policy partition --set schedule."
UNEQUAL = f"{EIGHT}micro_batches=auto --capacity 20,20,20,20,20,20,20,9"
VIRTUAL = "--set launch.launcher=virtual"
MISTAKES = {
    f"train {TWO} --mode dynamic --capacity 20,11": ["--global-batch 31, the largest below 64 that fits in all"],
    f"train {UNEQUAL}": ["unequal capacity"],
    f"train {UNEQUAL} {VIRTUAL} --set launch.nproc=auto --world-size 8": ["unequal capacity"],
    f"train {EIGHT}micro_batches=3 --policy group_by_length": ["not a multiple of the 8 ranks times 3"],
    f"train {EIGHT}cost_coefficients=3.0,0.0,0.0": ["schedule.cost_coefficients"],
    f"train {VIRTUAL} --set launch.comm_model=comm.json": ["schema version 9, this version reads 1"],
    f"train {TWO} --exposed {VIRTUAL} --world-size 2": ["true, but virtual ranks send"],
    f"train {TWO} --exposed --sync ps": ["a server steps by what workers send"],
    f"compare {TWO} --arm a:polcy=lpt --arm b:train.steps=x --over seed": ["polcy", "train.steps", "seed"],
    f"compare {TWO} --arm a --arm b:global_batch=32": ["train.global_batch (64 and 32)"],
    f"compare {TWO} --arm a --arm b:window=2 --window 4": ["--window sets schedule.window"],
    f"compare {TWO} --arm a --arm b:capacity=[3,3]": ["64 samples do not fit into the ranks' capacities"],
    f"compare quickstart -c other.yaml {TWO}": ["two recipes given"],
    f"compare --resume nothing {TWO}": ["takes no others"],
}
"""One of each stage that finds mistakes; the rules have tests of their own."""
CODES = {"--mode dynamic": 4, "capacity=[3": 4, "b:global_batch=32": 5}
"""How those end that do not end as mistakes of what was typed: what does not fit, and what cannot be compared."""


@pytest.fixture(autouse=True)
def files(results: Path) -> None:
    """Usable files, and some that are not."""
    Path("train.tsv").write_text("sentence\tlabel\n" + "a b\t0\nc\t1\n" * 20)
    Path("ten.tsv").write_text("sentence\tlabel\n" + "a b\t0\nc\t1\n" * 5)
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    Path("poor.txt").write_text("[PAD]\n[CLS]\n[SEP]\na\n")
    Path("bad.tsv").write_text("sentence\tlabel\na b\t0\nc\n")
    Path("own.yaml").write_text(RECIPE)
    Path("comm.json").write_text('{"schema_version": 9, "world_size": 2, "allreduce": [{"megabytes": 1, "ms": 1}]}')


def sets(changes: str) -> list[str]:
    return [word for text in (*TSV, *changes.split()) for word in ("--set", f"workload.{text}")]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("change", OF_DATA)
def test_data_that_cannot_be_used_are_refused_by_every_command(results, cli, command, change):
    if "probe" in command and "ten.tsv" in change:
        return  # it trains on no batch
    error = cli(f"{command} {TWO} --global-batch 10 --json", *sets(change), code=2).json["error"]
    assert [text for text in OF_DATA[change] if text not in f"{error['message']} {error['hint']}"] == []
    assert "--resume" not in error["hint"] and not results.exists()


def test_a_file_for_evaluation_leaves_the_other_to_train_on(cli):
    cli(f"train --dry-run {TWO} --global-batch 10", *sets("data_path=ten.tsv eval_path=train.tsv"))


@pytest.mark.parametrize("dry", ["", "--dry-run"])
@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_found_before_anything_is_made(results, cli, line, dry):
    code = next((code for word, code in CODES.items() if word in line), 2)
    found = cli(f"{line} {dry} --json", code=code)
    assert [text for text in MISTAKES[line] if text not in found.mistake] == []
    assert not results.exists()


def test_ranks_that_run_already_find_them_too(results, cli, monkeypatch):
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(key, value)
    assert "unequal capacity" in cli(f"train --json {UNEQUAL.removeprefix('--nproc 8')}", code=2).mistake
    assert not results.exists()
