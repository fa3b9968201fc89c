"""Probe runs without a probe: a record as `dynbench probe` leaves it, put into a registry."""

from __future__ import annotations

from dynbench.config.layers import load_config
from dynbench.engine.launching.probe_use import device_name, measured_settings
from dynbench.runs.atomic import write_json
from dynbench.runs.probe_record import PROBE_FILE, ProbeRecord
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

COST = {"alpha_ms": 1.0, "beta_ms_per_token": 0.01, "gamma_ms_per_token2": 0.0, "heldout": {}}


def capacity_row(rank: int, length: int, most: int, tested_fail: int | None) -> dict[str, object]:
    """One rank's answer at one length."""
    tested = {"tested_ok": most, "tested_fail": tested_fail, "peak_mem_mb": None}
    return {"rank": rank, "length": length, "max_batch": most, **tested}


def probe_record(*overrides: str, ranks: int = 2, **changes: object) -> ProbeRecord:
    """A probe on this CPU of the default model with these settings, 40 samples per micro-batch at any length."""
    config = load_config(None, overrides)
    longest = config.workload.max_length
    base: dict[str, object] = {
        "device": "cpu",
        "device_name": device_name("cpu", ()),
        "precision": "fp32",
        "memory_limit_mb": 1000.0,
        "world_size": ranks,
        "global_batch": 64,
        "pad_to_multiple_of": 1,
        "workload": measured_settings(config.workload),
        "layout": config.workload.layout,
        "slowdown": dict(config.launch.slowdown),
        "capacity": [capacity_row(rank, longest, 40, 45) for rank in range(ranks)],
        "tables": [[(longest, 40)]] * ranks,
        "trials": [],
        "timings": [],
        "cost_model": COST,
        "memory_model": None,
        "speeds": [1.0] * ranks,
        "allreduce": {"megabytes": 10.0, "ms": 1.0, "world_size": ranks} if ranks > 1 else None,
        "soak": None,
        "predicted_speedup": {},
        "break_even_batch": None,
    }
    return ProbeRecord.model_validate(base | changes)


def make_probe(store: RunStore, *overrides: str, name: str = "probed", ranks: int = 2, **changes: object) -> Run:
    """A run of the registry that holds such a record."""
    run = store.create("probe", "probe", name=name)
    write_json(run.path / PROBE_FILE, probe_record(*overrides, ranks=ranks, **changes).model_dump(mode="json"))
    return run
