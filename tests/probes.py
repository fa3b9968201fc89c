"""Probes without processes: a record as `dynbench probe` leaves it, and what stands in for trial processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynbench.config.layers import load_config
from dynbench.engine.launching.probe_use import device_name, measured_settings
from dynbench.engine.launching.resolve import Machine, Resolved, resolve
from dynbench.runs.atomic import write_json
from dynbench.runs.probe_record import PROBE_FILE, CapacityRow, ProbeRecord
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

LAPTOP = Machine(cores=2, gpus=0, bf16=False)


def resolved(*settings: str, machine: Machine = LAPTOP, store: RunStore | None = None) -> Resolved:
    """Settings decided for a machine, by default one of two cores."""
    return resolve(load_config(None, settings), machine, store or RunStore(Path("nowhere")))


COST = {"alpha_ms": 1.0, "beta_ms_per_token": 0.01, "gamma_ms_per_token2": 0.0, "heldout": {}}


def capacity_row(rank: int, length: int, most: int, tested_fail: int | None = 1000) -> CapacityRow:
    """One rank's answer at one length, where this or a size far beyond failed."""
    tested = {"tested_ok": most, "tested_fail": tested_fail, "peak_mem_mb": None}
    return CapacityRow(rank=rank, length=length, max_batch=most, **tested)


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


Answer = dict[str, Any] | None
GRADIENT_BYTES = 12_000_000


class FakeChildren:
    """Trial processes that are none.

    Args:
        reply: what a rank answers to a request; None where its process has ended.
        world_size: their number.
    """

    gradient_bytes = GRADIENT_BYTES

    def __init__(self, reply: Callable[[int, Mapping[str, Any]], Answer], world_size: int = 2) -> None:
        self._reply, self.world_size = reply, world_size
        self.requests: list[Sequence[Mapping[str, Any]]] = []

    def __call__(self, *_: object, **__: object) -> FakeChildren:
        """Started again, they are the same."""
        return self

    def __enter__(self) -> FakeChildren:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, requests: Sequence[Mapping[str, Any]], *, collective: bool = False) -> list[Answer]:
        self.requests.append(requests)
        return [self._reply(rank, request) for rank, request in enumerate(requests)]

    def ask_all(self, request: Mapping[str, Any], *, collective: bool = False) -> list[Answer]:
        return self.ask([request] * self.world_size, collective=collective)
