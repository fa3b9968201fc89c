"""Facts that only the ranks know: devices, data, how memory is measured. Rank 0 writes them once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.cuda import nccl

from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.rank.clocks import compare_clocks
from dynbench.engine.rank.exchange import gather_objects
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.rank_process import RankContext
from dynbench.runs.atomic import write_json
from dynbench.runs.lengths_file import write_lengths
from dynbench.runs.run import Run
from dynbench.schedule.plan import IntArray
from dynbench.units import mb
from dynbench.workloads.base import Workload

_log = logging.getLogger(__name__)


def facts_file(run: Run) -> Path:
    """Where rank 0 writes the facts; the launcher merges them into `env.json` when the run ends."""
    return run.ranks_dir / "facts.json"


def write_facts(
    run: Run,
    config: Config,
    context: RankContext,
    workload: Workload,
    memory: MemoryMeter,
    together: Mapping[str, object] | None = None,
    packed_rows: Mapping[str, object] | None = None,
) -> None:
    """Collect every rank's device and write the facts on rank 0; a collective.

    Args:
        run: the run that they are about.
        config: its configuration.
        context: this rank.
        workload: its data and model.
        memory: how memory is measured.
        together: the launch that it shares with other arms: its id, and how they take turns; None where it is alone.
        packed_rows: what `check_packed_rows` saw; None where batches are padded.
    """
    devices = gather_objects(describe_device(context))
    clocks = compare_clocks()
    if context.is_first:
        if config.workload.runs_own_code:
            write_lengths(run, workload.train.lengths, workload.positions)
        write_json(
            facts_file(run),
            {
                "devices": {"ranks": devices},
                "ranks": describe_ranks(config, context),
                "data": {**workload.facts, "lengths": describe_lengths(workload.train.lengths)},
                "clocks": clocks,
                "decisions": _decisions(run, config, context, memory),
                **({} if together is None else {"together": together}),
                **({} if packed_rows is None else {"packed_rows": packed_rows}),
            },
        )


def _decisions(run: Run, config: Config, context: RankContext, memory: MemoryMeter) -> dict[str, dict[str, object]]:
    decisions: dict[str, dict[str, object]] = {
        "measured.peak_mem_mb": {"value": memory.source, "reason": f"device is {context.device.type}"},
        "measured.torch_threads": {"value": torch.get_num_threads(), "reason": "launch.threads"},
    }
    if config.launch.launcher == "virtual":
        model = build_comm_model(config.launch.comm_model, run.path.parent)
        reason = f"launch.comm_model is {config.launch.comm_model!r}"
        said = model.description
        decisions["launch.comm_model"] = {"value": said, "reason": reason, "said": said.record()}
    return decisions


def describe_ranks(config: Config, context: RankContext) -> dict[str, int]:
    """How many ranks there are, virtual ones counted, and how many of them train."""
    ranks = ranks_of(config, config.launch.world_size or context.world_size)
    return {"world_size": ranks.world_size, "workers": ranks.workers, "servers": ranks.servers}


def merge_facts(run: Run) -> None:
    """Put the ranks' facts into `env.json`; nothing to do when the ranks did not get that far."""
    path = facts_file(run)
    if not path.exists():
        return
    facts = json.loads(path.read_text(encoding="utf-8"))
    held = [file for rank in range(facts["ranks"]["world_size"]) if (file := run.held_file(rank)).exists()]
    if held:
        facts["memory_parts"] = [json.loads(file.read_text(encoding="utf-8")) for file in held]
    env = run.env()
    for key, value in facts.items():
        present = env.get(key)
        env[key] = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value
    unknown = env.get("unknown")
    if isinstance(unknown, dict):
        unknown.pop("devices", None)
    write_json(run.env_file, env)


def describe_device(context: RankContext) -> dict[str, object]:
    """Name and memory of one rank's device."""
    if context.device.type != "cuda":
        return {"rank": context.rank, "type": "cpu", "name": None, "memory_mb": None}
    properties = torch.cuda.get_device_properties(context.device)
    return {
        "rank": context.rank,
        "type": "cuda",
        "name": properties.name,
        "memory_mb": mb(properties.total_memory),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl.version())),  # type: ignore[no-untyped-call]  # torch's is untyped
    }


def describe_lengths(lengths: IntArray) -> dict[str, float]:
    """How long the samples are, in tokens."""
    p50, p95 = np.percentile(lengths, (50, 95))
    return {
        "samples": len(lengths),
        "tokens": int(lengths.sum()),
        "mean": float(lengths.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "max": int(lengths.max()),
    }
