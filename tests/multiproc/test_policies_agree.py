"""Policies that deal the same samples train the same model."""

from __future__ import annotations

import pytest
from multiproc.launches import Launch, global_loss, rows_of, work_hashes

from dynbench.runs.run import Run

pytestmark = pytest.mark.multiproc


def test_partition_does_statics_work(static_run: Run, partition_run: Run) -> None:
    assert work_hashes(partition_run) == work_hashes(static_run)
    assert global_loss(partition_run) == pytest.approx(global_loss(static_run), rel=1e-4)


def test_partition_pads_less(static_run: Run, partition_run: Run) -> None:
    assert rows_of(partition_run)["padded_tokens"].sum() < rows_of(static_run)["padded_tokens"].sum()


def test_micro_batches_change_nothing_but_padding(launch: Launch, static_run: Run) -> None:
    run = launch("schedule.mode=static", "schedule.micro_batches=3")
    assert set(rows_of(run)["micro_batches"]) == {3}
    assert work_hashes(run) == work_hashes(static_run)
    assert global_loss(run) == pytest.approx(global_loss(static_run), rel=1e-4)


def test_gathered_plans_are_the_replicated_ones(launch: Launch) -> None:
    prefix = ("schedule.mode=dynamic", "schedule.policy=prefix", "schedule.capacity=[8, 9]")
    gathered, replicated = launch(*prefix, "schedule.exchange=gather"), launch(*prefix)
    columns = ("step", "rank", "local_batch", "padded_tokens", "work_hash")
    assert rows_of(gathered).select(columns).rows() == rows_of(replicated).select(columns).rows()
    assert rows_of(replicated)["local_batch"].n_unique() > 1
