"""What `dynbench probe` prints of a record."""

from __future__ import annotations

import pytest
from probes import make_probe, probe_record

from dynbench.cli.probe import _next_lines, show_probe
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.engine.launching.run_launch import plan_launch
from dynbench.errors import NothingFits
from dynbench.experiment.training import NextTraining, next_training
from dynbench.runs.atomic import write_text
from dynbench.runs.probe_record import CapacityRow, Soak
from dynbench.runs.store import RunStore


def test_what_a_peak_and_a_lowered_capacity_are_is_said(capsys):
    row = CapacityRow(rank=0, length=64, max_batch=22, tested_ok=32, tested_fail=33, peak_mem_mb=560.0)
    passed = Soak(steps=50, ok=True, peak_mem_mb=550.0, reserved_mem_mb=550.0, allocator_retries=None, shrunk=0)
    show_probe(probe_record(memory_limit_mb=566.0, capacity=[row], soak=passed))
    plain = capsys.readouterr().out
    assert "peak: resident memory" in plain and "in pieces" not in plain
    lowered = passed.model_copy(update={"shrunk": 2, "global_batch": 40})
    both = row.model_copy(update={"length": 32, "max_batch": 57, "tested_ok": 64, "tested_fail": 64})
    show_probe(probe_record(memory_limit_mb=540.0, capacity=[both, row], soak=lowered))
    shown = capsys.readouterr().out
    assert "in pieces" in shown and "at a global batch of 40, the largest that fits, passed" in shown
    assert "rank 0, 32 tokens: 64 samples passed alone and failed in the soak; 57 are left, a margin of 11%" in shown
    assert "rank 0, 64 tokens" not in shown


@pytest.mark.parametrize(
    ("coming", "option", "left_out"),
    [
        (NextTraining(72, 110, None, 72, split_fits=True), "--mode dynamic", "--global-batch"),
        (NextTraining(72, 110, "step 4: too much", 57, split_fits=True), "--global-batch 57", "--global-batch 72"),
        (NextTraining(72, 110, "step 4: too much", None, split_fits=True), "--micro-batches auto", "larger"),
        (NextTraining(72, 110, "step 4: too much", None, split_fits=False), "a larger --memory-limit", "train --mode"),
    ],
)
def test_the_next_command_is_one_that_ends_well(tmp_path, coming, option, left_out):
    config, run = load_config(None, ["train.global_batch=72"]), make_probe(RunStore(tmp_path))
    write_text(run.config_file, dump_config(config))
    lines = list(_next_lines(coming, config, run))
    assert option in lines[-1] and f"-c {run.config_file}" in lines[-1]
    assert left_out not in lines[-1]
    assert any("step 4: too much" in line for line in lines) == (coming.stopped_by is not None)


@pytest.mark.parametrize(
    ("table", "batch", "instead"),
    [
        ([(64, 40)], 64, set()),
        ([(16, 40), (32, 24), (64, 12)], 64, {"train.global_batch"}),
        ([(63, 1)], 64, {"train.global_batch"}),
        ([(40, 64)], 64, None),
    ],
)
def test_what_is_advised_after_a_probe_is_what_training_takes(tmp_path, table, batch, instead):
    store = RunStore(tmp_path)
    probe = make_probe(store, "workload.max_length=64", tables=[table] * 2)
    fixed = ("launch.device=cpu", "launch.nproc=2", "workload.max_length=64", f"train.global_batch={batch}")
    coming = next_training(load_config(None, fixed), probe, store)
    assert (coming.instead if coming.instead is None else set(coming.instead)) == instead
    for key, value in (coming.instead or {}).items():
        run = (*fixed, f"{key}={value}", "schedule.mode=dynamic", f"probe.run={probe.id}")
        plan_launch(load_config(None, run), store)
    if instead != set():
        with pytest.raises(NothingFits):
            plan_launch(load_config(None, (*fixed, "schedule.mode=dynamic", f"probe.run={probe.id}")), store)
