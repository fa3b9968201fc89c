"""What a summary says of epochs, counted by hand."""

from __future__ import annotations

import pytest
from unit.analysis.conftest import Fake, build_run

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.config.digest import changed, dump_config
from dynbench.runs.columns import CORRECT, Column, write_columns
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

PULL = Column("pull_ms", "number", "ms", "Of a server.")
SIZE = {"steps": 38, "warmup_steps": 10}
"""48 steps, 16 in each of 3 epochs."""


def in_epochs(store: RunStore, fake: Fake) -> Run:
    """A run that was asked for in 3 epochs."""
    run = build_run(store, fake)
    run.config_file.write_text(dump_config(changed(run.config(), {"train.epochs": 3})), encoding="utf-8")
    return run


@pytest.fixture
def found(store: RunStore):
    """Three epochs of a made-up run, its first two evaluated, and its rows."""
    run = in_epochs(store, Fake(**SIZE, extra={"correct": 2, "pull_ms": 1.5}))
    write_columns(run.ranks_dir, [CORRECT, PULL])
    each = run.config().train.epoch_steps
    rows = [f"{number * each - 1},{0.5 / number},{0.6 + 0.1 * (number % 2)},64" for number in (1, 2)]
    (run.path / "eval.csv").write_text("\n".join(["step,loss,accuracy,samples", *rows]) + "\n")
    merged = merge_run(run)
    return summary_of(merged)["epochs"], merged, each


def test_every_epoch_is_that_of_its_rows(found) -> None:
    epochs, merged, each = found
    rows = merged.worker_rows().collect()
    assert [one["epoch"] for one in epochs["each"]] == [1, 2, 3]
    for one in epochs["each"]:
        mine = rows.filter(rows["step"] // each == one["epoch"] - 1)
        samples, weight = mine["local_batch"].sum(), mine["weight"].sum()
        times = [part["step_time_ms"].max() for _, part in mine.group_by("step")]
        assert one["steps"] == len(times) == each
        assert one["samples"] == samples
        assert one["train_loss"] == pytest.approx((mine["loss"] * mine["weight"]).sum() / weight)
        assert one["train_accuracy"] == pytest.approx(2 * len(mine) / samples)
        assert one["train_s"] == pytest.approx(sum(times) / 1e3, rel=1e-5)
        assert one["samples_per_s"] == pytest.approx(samples / one["train_s"], rel=1e-5)
        assert one["step_ms"] == pytest.approx(sum(times) / each, rel=1e-5)
        assert (one["comm_ms"], one["server_comm_ms"]) == ({"pull_ms": pytest.approx(1.5)}, {})


def test_evaluations_belong_to_the_epoch_that_they_end(found) -> None:
    epochs, _, _ = found
    assert [one["eval_loss"] for one in epochs["each"]] == [0.5, 0.25, None]
    assert [one["eval_accuracy"] for one in epochs["each"]] == [0.7, 0.6, None]
    assert (epochs["best_accuracy"], epochs["best_epoch"]) == (0.7, 1)
    total = sum(one["samples"] for one in epochs["each"]), sum(one["train_s"] for one in epochs["each"])
    assert epochs["throughput_samples_per_s"] == pytest.approx(total[0] / total[1])


def test_without_epochs_there_are_none(store: RunStore) -> None:
    assert summary_of(merge_run(build_run(store, Fake())))["epochs"] is None


def test_workloads_that_count_nothing_have_no_training_accuracy(store: RunStore) -> None:
    epochs = summary_of(merge_run(in_epochs(store, Fake(**SIZE))))["epochs"]
    assert [one["train_accuracy"] for one in epochs["each"]] == [None] * 3
    assert epochs["best_accuracy"] is None


def test_what_servers_send_is_told_apart_from_what_workers_do(store: RunStore) -> None:
    run = in_epochs(store, Fake("partition", **SIZE, servers=2, extra={"correct": 2, "pull_ms": 1.5}))
    write_columns(run.ranks_dir, [CORRECT, PULL])
    for server in (0, 1):
        file = run.rank_file(server)
        file.write_text(file.read_text().replace(",2,1.5", ",0,9.5"))
    for one in summary_of(merge_run(run))["epochs"]["each"]:
        assert (one["comm_ms"]["pull_ms"], one["server_comm_ms"]["pull_ms"]) == (pytest.approx(1.5), pytest.approx(9.5))
        assert one["samples"] == 16 * 16, "servers train nothing"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_samples_without_lengths_have_no_padding_to_tell_of(store: RunStore, cli, lang: str) -> None:
    digits = ("workload.name=mlp",)
    fakes = (Fake(policy, seed=seed, overrides=digits) for policy in ("static", "partition") for seed in (0, 1))
    runs = [build_run(store, fake) for fake in fakes]
    summary = summary_of(merge_run(runs[0]))
    assert summary["padding_ratio"] is None and summary["throughput_tokens_per_s"] == {"mean": None, "p95": None}
    assert summary["throughput_samples_per_s"]["mean"] > 0
    code, out, _ = cli("analyze", *(run.id for run in runs))
    assert code == 0 and "samples/s" in out and "padding, padded over real" not in out
    code, out, err = cli("report", "@latest", "--lang", lang, "-o", "-")
    assert code == 0, err
    assert "None" not in out
