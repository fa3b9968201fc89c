"""A language model on real ranks that is told to stop: what it had learnt by then is kept whole, and is of use."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest
from multiproc.launches import TINY, fork, rows_of, start, wait_until

from dynbench.runs.run import Run
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

STEPS = 100_000


def settings(articles: Path) -> tuple[str, ...]:
    words = [f"word{number % 7} and number {number % 11}" for number in range(200)]
    articles.write_text(json.dumps([{"id": number, "title": "t", "text": text} for number, text in enumerate(words)]))
    workload = ("name=causal_lm", "size=tiny", "dataset=json", f"data_path={articles}", "max_length=24")
    return (*TINY, *(f"workload.{each}" for each in workload), f"train.steps={STEPS}")


def lines(run: Run, rank: int) -> int:
    file = run.rank_file(rank)
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize(
    "sync", [("name=ddp",), ("name=ps",), ("name=diloco", "inner_steps=3")], ids=lambda given: given[0][5:]
)
def test_what_was_learnt_is_kept_and_read_back(tmp_path: Path, sync: tuple[str, ...]) -> None:
    chosen = (*settings(tmp_path / "articles.json"), *(f"sync.{each}" for each in sync))
    process = start(tmp_path, "train", "--json", "--save-model", settings=chosen)
    store = RunStore(tmp_path)
    wait_until(lambda: len(store.list()) == 1, "the run folder")
    (run,) = store.list()
    wait_until(lambda: all(lines(run, rank) > 6 for rank in (0, 1)), "the first rows")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    assert (run.status, run.record().exit_code) == (Status.INTERRUPTED, 130)

    assert [path.name for path in (run.path / "model").iterdir()] == ["last"]
    rows = rows_of(run)
    if sync == ("name=ddp",):  # under others, some columns are those of one rank
        nulls = rows.null_count()
        assert nulls.sum_horizontal().item() == 0
    for rank in (0, 1):
        text = run.rank_file(rank).read_text()
        assert text.endswith("\n") and {line.count(",") for line in text.splitlines()} == {rows.width - 1}

    found = answer(tmp_path, "eval", run.id)
    assert math.isfinite(found["loss"]) and found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert answer(tmp_path, "generate", run.id, "--prompt", "word1", "--length", "5")["tokens"] <= 5


def answer(results: Path, *arguments: str) -> dict[str, object]:
    process = fork(results, *arguments, "--json", "--device", "cpu")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return json.loads(stdout)
