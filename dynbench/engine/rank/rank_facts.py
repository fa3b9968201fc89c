"""What a rank tells of itself and warns about."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.cuda import nccl
from torch.distributed.distributed_c10d import Store, _get_default_store

from dynbench.config.ranks import Ranks, ranks_of
from dynbench.config.schema import Config
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.failure import RankFailure, keep_failure, record_failure
from dynbench.engine.rank.exchange import compare_clocks, gather_objects
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.rank_process import RankContext
from dynbench.runs.atomic import write_json
from dynbench.runs.records import write_lengths
from dynbench.runs.run import Run
from dynbench.schedule.plan import IntArray
from dynbench.units import mb
from dynbench.workloads.base import Workload
from dynbench.workloads.cache import progress_logger

_log = logging.getLogger(__name__)
_KEY = "dynbench/failure"
WARNINGS_FILE = "warnings.txt"
EPOCHS_FILE = "epochs.txt"
"""Where the first rank writes what came of an epoch."""
_PREPARING_FILE = "preparing.txt"
_FACTS_FILE = "facts.json"
"""Where rank 0 writes the facts; the launcher merges them into `env.json` when the run ends."""


def tell_failure(run: Run, rank: int, error: BaseException) -> None:
    """Record why this rank ends, and with it the cause where that is another rank's; within the process group.

    The first cause is stored in the store of the process group, where ranks that ended because of it find it.
    """
    failure = record_failure(run, rank, error)
    try:
        cause = exchange_cause(_get_default_store(), failure)
    except RuntimeError as gone:
        _log.debug("the place where the ranks met is gone: %s", gone)
        return
    if cause is not None:
        keep_failure(run, cause)


def exchange_cause(store: Store, failure: RankFailure) -> RankFailure | None:
    """The first cause that a rank reported, this one included; None where none has."""
    if failure.is_cause:
        text = store.compare_set(_KEY, "", json.dumps(asdict(failure)))
    elif store.check([_KEY]):
        text = store.get(_KEY)
    else:
        return None
    return RankFailure(**json.loads(text))


class _ToFile(logging.Handler):
    """Appends each text once, a line each."""

    def __init__(self, path: Path, level: int) -> None:
        super().__init__(level)
        self._path = path
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if text not in self._seen:
            self._seen.add(text)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


class _LastLine(logging.Handler):
    """Keeps what was said last about something that takes long."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        self._path.write_text(record.getMessage(), encoding="utf-8")


def keep_warnings(run: Run, context: RankContext, ranks: Ranks) -> None:
    """From here on, the warnings of dynbench are stored, and on rank 0 how far the preparing of its data has got.

    Of rank 0 and of the first that trains, which speak for the others.
    """
    if context.speaks(ranks):
        logging.getLogger("dynbench").addHandler(_ToFile(run.ranks_dir / WARNINGS_FILE, logging.WARNING))
    if context.is_first:
        progress_logger.addHandler(_LastLine(run.ranks_dir / _PREPARING_FILE))


def read_warnings(run: Run) -> list[str]:
    """What ranks warned about, each once."""
    return list(dict.fromkeys(_read(run, WARNINGS_FILE).splitlines()))


def read_epochs(run: Run) -> list[str]:
    """What came of the epochs of a run that have ended, a line each."""
    return _read(run, EPOCHS_FILE).splitlines()


def read_preparing(run: Run) -> str:
    """How far the preparing of the data had got when rank 0 last said it; empty where that took no time."""
    return _read(run, _PREPARING_FILE)


def _read(run: Run, name: str) -> str:
    path = run.ranks_dir / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_facts(
    run: Run,
    config: Config,
    context: RankContext,
    workload: Workload,
    memory: MemoryMeter,
    launch: Mapping[str, object] | None = None,
    packed_rows: Mapping[str, object] | None = None,
) -> None:
    """Collect every rank's device and write the facts on rank 0; a collective.

    Args:
        run: the run that they are about.
        config: its configuration.
        context: this rank.
        workload: its data and model.
        memory: how memory is measured.
        launch: what it shares with other arms: the launch's id, and how they take turns; None where it is alone.
        packed_rows: what `check_packed_rows` saw; None where batches are padded.
    """
    devices, optional = gather_objects(describe_device(context)), {"together": launch, "packed_rows": packed_rows}
    clocks = compare_clocks()
    if context.is_first:
        ranks = ranks_of(config, config.launch.world_size or context.world_size)  # virtual ones have a size given
        if config.workload.runs_own_code:
            write_lengths(run, workload.train.lengths, workload.positions)
        write_json(
            run.ranks_dir / _FACTS_FILE,
            {
                "devices": {"ranks": devices},
                "ranks": {"world_size": ranks.world_size, "workers": ranks.workers, "servers": ranks.servers},
                "data": {**workload.facts, "lengths": describe_lengths(workload.train.lengths)},
                "clocks": clocks,
                "decisions": _decisions(run, config, context, memory),
                **{key: value for key, value in optional.items() if value is not None},
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


def merge_facts(run: Run) -> None:
    """Put the ranks' facts into `env.json`; nothing to do when the ranks did not get that far."""
    if not (written := _read(run, _FACTS_FILE)):
        return
    facts = json.loads(written)
    files = [file for rank in range(facts["ranks"]["world_size"]) if (file := run.held_file(rank)).exists()]
    if files:
        facts["memory_parts"] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
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
