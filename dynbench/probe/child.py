"""A trial process: builds the step once, then answers requests until its input closes.

Requests and replies are one JSON object a line. Whatever else is printed goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from dynbench.config.schema import Config
from dynbench.engine.failure import is_out_of_memory, lasting_fault
from dynbench.engine.rank.loop import build_strategy
from dynbench.engine.rank.rank_process import die_with_parent
from dynbench.plugins import STRATEGIES
from dynbench.probe.children import RESERVE
from dynbench.probe.trial import TrialStep, limit_process, rehearsed, resident_bytes
from dynbench.runs.run import Run
from dynbench.units import mb
from dynbench.wire.base import null_group
from dynbench.workloads.registry import build_workload, import_model_code


def main() -> None:
    """Entry point; the specification is the only argument."""
    replies = _take_stdout()
    spec = json.loads(sys.argv[1])
    die_with_parent(spec["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = Run(Path(spec["run"]))
    try:
        _serve(spec, run.config(), replies)
    except Exception as error:  # whatever it is, its cause is told and the process ends without waiting for others
        traceback.print_exc()
        sys.stderr.flush()
        if message := lasting_fault(error, run):
            _send(replies, {"fault": message})
        os._exit(1)  # the interpreter's own end may wait for a collective of ranks that are still in it
    os._exit(0)


def _serve(spec: Mapping[str, Any], config: Config, replies: IO[str]) -> None:
    """Build the step, then answer until the input closes."""
    torch.set_num_threads(spec["threads"])
    device = torch.device(f"cuda:{spec['servers'] + spec['rank']}" if spec["device"] == "cuda" else "cpu")
    workload = build_workload(config)
    import_model_code(config.workload)  # else under the limit, where an import fails in ways of its own
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=spec["rendezvous"],
        rank=spec["rank"],
        world_size=spec["world_size"],
        timeout=timedelta(seconds=spec["timeout_s"]),
    )
    if spec.get("splits"):
        _limit(spec, device)
        _send(replies, {"ready": True, "gradient_bytes": 0})
        for line in sys.stdin:
            request = json.loads(line)
            with closing(TrialStep(config, workload, device, build=partial(build_strategy, config, device))) as split:
                ms = split.split_price_ms(request["n"], request["length"], request["repeats"])
            del split  # before the next request builds its own beside it
            _send(replies, {"ms": ms})
        return
    build = None
    if config.launch.launcher != "virtual":
        STRATEGIES.find(config.sync.name).load()  # before the limit, as the code of models
        build = partial(rehearsed, config, spec["rank"], spec["world_size"], null_group())
    step, message = None, ""
    try:
        _limit(spec, device)
        step = TrialStep(config, workload, device, spec["memory_limit_bytes"], build)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = f"the model and its optimizer do not fit: the process holds {mb(resident_bytes()):.0f} MB before them"
    if step is None:
        _send(replies, {"ready": False, "message": message})
    else:
        _send(replies, {"ready": True, "gradient_bytes": 4 * step.gradient_numel})
        for line in sys.stdin:
            _send(replies, _answer(step, json.loads(line)))


def _limit(spec: Mapping[str, Any], device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(spec["memory_fraction"], device)
    elif spec["memory_limit_bytes"] is not None:
        limit_process(spec["memory_limit_bytes"])


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
        reserved = max(reserved, step.memory.reserved_mb())
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


def _take_stdout() -> IO[str]:
    """The reply channel; from here on anything that prints writes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel


def _send(channel: IO[str], reply: Mapping[str, object]) -> None:
    channel.write(json.dumps(reply) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
