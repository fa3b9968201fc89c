"""TensorBoard itself on what a training wrote: its own reader, and its server as a browser asks it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import polars as pl
import pytest
from multiproc.faults import Command
from multiproc.launches import VIRTUAL, sets, wait_until

from dynbench.engine.rank.evaluation import EVAL_FILE, SCALARS_FOLDER
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc


def test_scalars_are_read_back_and_served(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command = Command(tmp_path)
    command.store = RunStore(tmp_path / "results")  # TensorBoard takes a path with a comma for two
    command.ran("train", "--tensorboard", *sets(*VIRTUAL))
    assert command.code == 0, command.stderr
    run = command.run
    events = reader.EventAccumulator(str(run.path / SCALARS_FOLDER)).Reload()
    rows = pl.read_csv(run.rank_file(0))
    for name in ("loss", "step_time_ms", "real_tokens"):
        drawn = [event.value for event in events.Scalars(f"rank_0/{name}")]
        assert drawn == pytest.approx(rows[name].to_list(), rel=1e-6)
    (evaluation,) = events.Scalars("evaluation/loss")
    assert evaluation.value == pytest.approx(pl.read_csv(run.path / EVAL_FILE)["loss"][0], rel=1e-6)

    server = command.begin("tensorboard", "--host", "127.0.0.1", bare=True)
    try:
        assert server.stdout is not None
        printed = ""
        while not printed.rstrip().endswith("}"):
            line = server.stdout.readline()
            assert line, "it ended: " + (server.stderr.read() if server.stderr else "")
            printed += line
        url = f"{json.loads(printed)['address']}data/plugin/scalars/tags"
        wait_until(lambda: "rank_0/loss" in str(_answer(url)), "the scalars to be served")
    finally:
        server.send_signal(signal.SIGINT)
    assert command.end().code == 0


def _answer(url: str) -> object:
    try:
        with urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except URLError:
        return None
