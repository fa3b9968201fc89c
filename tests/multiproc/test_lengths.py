"""Real ranks on a trace of lengths run the steps that its texts were planned for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from multiproc.launches import Launch, rows_of, work_hashes

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.engine.planning import build_problem
from dynbench.runs.records import work_hash
from dynbench.schedule.policy import Planner
from dynbench.workloads.registry import build_workload

pytestmark = pytest.mark.multiproc

STEPS = (
    "schedule.mode=dynamic",
    "train.steps=3",
    "train.warmup_steps=0",
    "train.global_batch=12",
    "workload.subset=60",
)


def test_ranks_on_exported_lengths_run_the_steps_of_the_texts(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    words = np.random.default_rng(2).integers(1, 60, 120)
    rows = [f"{'good ' * count}\t{row % 2}" for row, count in enumerate(words)]
    (tmp_path / "own.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\n", encoding="utf-8")
    texts = ["--dataset", "tsv", "--data-path", str(tmp_path / "own.tsv"), "--tokenizer", str(tmp_path / "vocab.txt")]
    trace = tmp_path / "shared.parquet"
    assert main(["data", "lengths", *texts, "-o", str(trace)]) == 0

    run = launch(*STEPS, "workload.dataset=lengths", f"workload.data_path={trace}")

    own = (f"workload.{key[2:].replace('-', '_')}={value}" for key, value in zip(texts[::2], texts[1::2], strict=True))
    config = load_config(None, [*STEPS, *own])
    lengths = build_workload(config).train.lengths
    planner = Planner("partition", build_problem(config, lengths, 2, 1))
    shares = [[np.concatenate(share) for share in planner.plan(step).shares] for step in range(3)]
    assert work_hashes(run) == [work_hash(ids := np.concatenate(step), lengths[ids]) for step in shares]
    found = rows_of(run)
    assert found["local_batch"].to_list() == [len(ids) for step in shares for ids in step]
    assert found["max_seq_len_in_batch"].to_list() == [int(lengths[ids].max()) for step in shares for ids in step]
    assert run.env()["data"]["train_source"] == str(trace)


@pytest.mark.parametrize(
    "policy", [("partition",), ("prefix", "schedule.exchange=gather")], ids=["partition", "prefix"]
)
def test_ranks_on_a_trace_of_two_columns_run_what_both_were_planned_for(
    launch: Launch, tmp_path: Path, policy: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(2)
    lengths, patches = rng.integers(2, 60, 60), rng.choice([0, 0, 30, 200], 60)
    pl.DataFrame({"length": lengths, "patches": patches}).write_csv(tmp_path / "two.csv")
    wanted = (
        *(*STEPS[:-1], f"schedule.policy={policy[0]}", *policy[1:], "schedule.second_weight=0.5"),
        *("workload.dataset=lengths", f"workload.data_path={tmp_path / 'two.csv'}", "workload.second_column=patches"),
    )
    run = launch(*wanted)

    problem = build_problem(load_config(None, list(wanted)), lengths, 2, 1, second=patches)
    found = rows_of(run)["local_batch"].to_list()
    knows, blind = (
        [count for step in range(3) for count in Planner(policy[0], each).plan(step).local_batches]
        for each in (problem, replace(problem, second=None))
    )
    assert found == knows != blind
