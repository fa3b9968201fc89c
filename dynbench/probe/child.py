"""A trial process: builds the step once, then answers requests until its connection closes."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config, decided
from dynbench.engine.failure import is_out_of_memory, lasting_fault
from dynbench.engine.rank.loop import build_strategy
from dynbench.engine.rank.memory_limit import limit_process, resident_bytes
from dynbench.engine.rank.rank_process import die_with_parent
from dynbench.plugins import STRATEGIES
from dynbench.probe.children import RESERVE
from dynbench.probe.trial import TrialStep, rehearsed
from dynbench.runs.run import Run
from dynbench.units import mb
from dynbench.wire.base import null_group
from dynbench.workloads.registry import build_workload, import_model_code


def main() -> None:
    """Entry point; its arguments are the specification and the descriptor of its connection."""
    spec, connection = json.loads(sys.argv[1]), Connection(int(sys.argv[2]))
    die_with_parent(spec["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = Run(Path(spec["run"]))
    try:
        with suppress(EOFError):
            _serve(spec, run.config(), connection)
    except Exception as error:  # whatever it is, its cause is reported and the process ends without waiting for others
        traceback.print_exc()
        sys.stderr.flush()
        if message := lasting_fault(error, run):
            connection.send({"fault": message})
        os._exit(1)  # the interpreter's own end may wait for a collective of ranks that are still in it
    os._exit(0)


def _serve(spec: Mapping[str, Any], config: Config, connection: Connection) -> None:
    """Build the step, then answer.

    Raises:
        EOFError: the connection was closed.
    """
    torch.set_num_threads(decided(config.launch.threads))
    gpu = ranks_of(config, 0).servers + spec["rank"]
    device = torch.device("cuda", gpu) if config.launch.device == "cuda" else torch.device("cpu")
    workload = build_workload(config)
    import_model_code(config.workload)  # else under the limit, where an import fails in ways of its own
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=spec["rendezvous"],
        rank=spec["rank"],
        world_size=spec["world_size"],
        timeout=timedelta(seconds=config.launch.timeout_s),
    )
    if spec["splits"]:
        _limit(spec["memory_limit_bytes"], config, device)
        connection.send({"ready": True, "gradient_bytes": 0})
        while True:
            request = connection.recv()
            # A new one for each request: nothing of an earlier one may be left beside it.
            with closing(TrialStep(config, workload, device, build=partial(build_strategy, config, device))) as split:
                ms = split.split_price_ms(request["n"], request["length"], request["repeats"])
            del split
            connection.send({"ms": ms})
    build = None
    if config.launch.launcher != "virtual":
        STRATEGIES.find(config.sync.name).load()  # before the limit, as the code of models
        build = partial(rehearsed, config, spec["rank"], spec["world_size"], null_group())
    step, message = None, ""
    try:
        _limit(spec["memory_limit_bytes"], config, device)
        step = TrialStep(config, workload, device, spec["memory_limit_bytes"], build)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = f"the model and its optimizer do not fit: the process holds {mb(resident_bytes()):.0f} MB before them"
    if step is None:
        connection.send({"ready": False, "message": message})
        return
    connection.send({"ready": True, "gradient_bytes": 4 * step.gradient_numel})
    while True:
        connection.send(_answer(step, connection.recv()))


def _limit(limit_bytes: int | None, config: Config, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(config.probe.memory_fraction, device)
    elif limit_bytes is not None:
        limit_process(limit_bytes)


def _answer(step: TrialStep, request: Mapping[str, Any]) -> dict[str, object]:
    kind = request["op"]
    if kind == "trial":
        fits, peak = step.fits(request["n"], request["length"]) if request["n"] else (True, None)
        return {"fits": fits, "peak_mem_mb": peak}
    if kind == "time":
        return {"ms": step.timed(request["n"], request["length"], request["repeats"])}
    if kind == "reduce":
        return {"ms": step.reduce(request["repeats"])}
    if kind == "meet":
        step.meet()
        return {}
    return _soak(step, request["micro_batches"])


def _soak(step: TrialStep, micro_batches: list[tuple[int, int]]) -> dict[str, object]:
    """Run every micro-batch of the plan in turn; the first for which memory is refused ends it.

    One that passes above the limit is a failure too, but it and what follows show how far above it goes: for that
    there is what the default limit leaves alone. The peak of one that is stopped is at least as much.
    """
    room = 1 + RESERVE
    peak, reserved = 0.0, 0.0
    first_failure: dict[str, object] = {}
    for n, length in micro_batches:
        fits, now = step.fits(n, length, room)
        peak = max(peak, step.limit_mb * room if now is None and step.limit_mb else now or 0.0)
        reserved = max(reserved, step.memory.now().reserved_mb or 0.0)
        if not fits:
            first_failure = first_failure or {"n": n, "length": length}
        if now is None:
            break
    return first_failure | {
        "ok": not first_failure,
        "peak_mem_mb": peak,
        "reserved_mem_mb": reserved,
        "allocator_retries": torch.cuda.memory_stats(step.device)["num_alloc_retries"]
        if step.device.type == "cuda"
        else None,
    }


if __name__ == "__main__":
    main()
