"""A whole probe: what is charged, predicted and refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from probes import GRADIENT_BYTES, Answer, FakeChildren, make_probe, resolved

from dynbench.config.layers import load_config
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.rank.replica import gradient_megabytes
from dynbench.errors import UsageError
from dynbench.plugins import STRATEGIES
from dynbench.probe import prober
from dynbench.probe.trial import TrialStep
from dynbench.runs.probe_record import ProbeRecord, read_probe
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.units import mb
from dynbench.workloads.registry import build_workload

ALPHA, BETA = 2.0, 0.05
REDUCE_MS = 3.0
RANKS = 4
VIRTUAL = ("launch.launcher=virtual", f"launch.world_size={RANKS}")
REAL = ("launch.launcher=torchrun", f"launch.nproc={RANKS}")
QUICK = (
    *("launch.device=cpu", "launch.threads=1", "train.global_batch=32", "workload.subset=400"),
    *("probe.memory_limit=1GB", "probe.lengths=[32, 64]", "probe.soak_steps=0"),
)


def planted(_: int, request: Mapping[str, Any]) -> Answer:
    """Everything fits, and a step takes what a planted cost says."""
    if request["op"] == "trial":
        return {"fits": True, "peak_mem_mb": 1.0}
    if request["op"] in ("meet", "reduce"):
        return {"ms": REDUCE_MS}
    ms = ALPHA + BETA * request["n"] * request["length"]
    return {"ms": [ms] if request["op"] == "time" else ms}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(prober, "Children", lambda run, launch, processes, *_, **__: FakeChildren(planted, processes))
    return RunStore(tmp_path)


def run_probe(store: RunStore, *overrides: str, name: str | None = None, asked: bool = False) -> Run:
    config = load_config(None, (*QUICK, *overrides))
    return prober.run_probe(config, store, report=lambda _: None, name=name, asked=config if asked else None)


def probed(store: RunStore, *overrides: str) -> ProbeRecord:
    return read_probe(run_probe(store, *overrides).path)


@pytest.mark.slow
def test_what_no_probe_reads_is_named_where_it_was_asked_for(store):
    unread = ("train.steps=7", "schedule.policy=prefix", "launch.comm_model=none", *REAL)
    warnings = run_probe(store, *unread, asked=True).record().warnings
    assert [line.partition(":")[0] for line in warnings] == ["launch.comm_model"]
    assert run_probe(store, *unread).record().warnings == []


@pytest.mark.slow
def test_under_a_strategy_with_servers_no_split_is_timed(store, monkeypatch, caplog):
    record = probed(store, *REAL)
    assert record.cost_model.further_ms is not None and "is unknown" not in caplog.text
    assert record.overhead_ms == record.allreduce.ms == REDUCE_MS, "real ranks pay what was measured"
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=1))
    record = probed(store, *REAL, "train.global_batch=33")
    assert (record.world_size, record.cost_model.further_ms) == (RANKS - 1, None)
    (line,) = [line for line in caplog.messages if "a further micro-batch costs is unknown" in line]
    assert "sync.name" in line and "schedule.further_ms" in line


@pytest.mark.parametrize("comm_model", ["null", "none", "'7,0'", "'1,0.5'"])
def test_virtual_ranks_pay_what_their_run_will_charge(store, comm_model):
    record = probed(store, *VIRTUAL, f"launch.comm_model={comm_model}")
    text = None if comm_model == "null" else comm_model.strip("'")
    assert record.overhead_ms == build_comm_model(text, store.root).allreduce_ms(mb(GRADIENT_BYTES), RANKS)
    assert record.allreduce is None


def test_a_prediction_charges_the_gradient_that_the_run_sends():
    config = resolved(*VIRTUAL, "workload.size=small").config
    workload = build_workload(config)
    gradient_bytes = 4 * TrialStep(config, workload, torch.device("cpu")).gradient_numel
    assert mb(gradient_bytes) == gradient_megabytes(workload.build_model(0))


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["@latest:probe", "first", "@latest"])
def test_the_run_of_a_comm_model_is_the_one_meant_before_the_probe_began(store, reference):
    first = run_probe(store, *REAL, name="first")
    second = run_probe(store, *VIRTUAL, f"launch.comm_model='{reference}'")
    charged = build_comm_model(first.id, store.root).allreduce_ms(mb(GRADIENT_BYTES), RANKS)
    assert read_probe(second.path).overhead_ms == charged > 0
    assert load_config(second.config_file).launch.comm_model == first.id
    assert second.env()["decisions"]["launch.comm_model"]["value"] == first.id


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "reference"), [(VIRTUAL, "outdated"), (REAL, "gone")], ids=["virtual", "real"])
@pytest.mark.parametrize(
    "settings", [("schedule.cost_type=measured", "probe.run"), ("schedule.capacity",)], ids=["cost", "capacity"]
)
def test_a_probe_is_not_refused_for_an_earlier_one(store, launcher, reference, settings):
    make_probe(store, "workload.size=base", name="outdated", ranks=3)
    *others, key = settings
    run = run_probe(store, *launcher, *others, f"{key}={reference}", asked=True)
    assert run.record().warnings == []
    kept = load_config(run.config_file)
    assert (kept.probe.run, kept.schedule.capacity, kept.schedule.speeds) == (None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [VIRTUAL, REAL], ids=["virtual", "real"])
@pytest.mark.parametrize(
    ("slowdown", "speeds", "fastest"),
    [
        ("{}", [1, 1, 1, 1], 1),
        ("{2: 2}", [1, 1, 0.5, 1], 1),
        ("{0: 4}", [0.25, 1, 1, 1], 1),
        ("{0: 2, 1: 2, 2: 4, 3: 2}", [1, 1, 0.5, 1], 2),
    ],
)
def test_a_slowed_rank_is_that_rank(store, launcher, slowdown, speeds, fastest):
    record = probed(store, *launcher, f"launch.slowdown={slowdown}")
    assert record.speeds == pytest.approx(speeds)
    assert record.cost_model.beta_ms_per_token == pytest.approx(fastest * BETA)


def test_a_learning_rate_that_rises_over_epochs_is_no_matter_of_a_probe(store):
    rising = ("workload.name=mlp", "workload.subset=320", "train.epochs=30", "train.lr_warmup_steps=250")
    assert probed(store, *VIRTUAL, *rising)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((*VIRTUAL, "launch.comm_model='-1,0'"), r"launch\.comm_model"),
        (("launch.nproc=2", "launch.nnodes=2", "launch.rdzv_endpoint=localhost:1"), r"launch\.nnodes: 2"),
    ],
    ids=["a model that cannot be read", "several nodes"],
)
def test_what_ends_a_probe_before_it_begins(store, settings, said):
    with pytest.raises(UsageError, match=said):
        run_probe(store, *settings)
    assert store.list() == []
