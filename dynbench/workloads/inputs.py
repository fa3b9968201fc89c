"""What the ranks will read, read before any of them starts, so that a mistake in it costs nothing."""

from __future__ import annotations

from pathlib import Path

from dynbench.config.batch import batch_is_open
from dynbench.config.paths import BPE_VOCABULARY, VOCABULARY, path_problems
from dynbench.config.schema import Config, Workload
from dynbench.errors import ConfigError, UsageError
from dynbench.kernels.packed_models import unknown_architecture
from dynbench.plugins import WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.byte_level import read_byte_level
from dynbench.workloads.datasets.base import CorpusSplit, Splits
from dynbench.workloads.datasets.registry import load_dataset
from dynbench.workloads.held_out import held_out_of
from dynbench.workloads.vocabulary import read_vocabulary

PADDED = "Take another model, or keep the padded layout (workload.layout=padded)."
_CHECKED_MB = 64
"""Data files above this together would delay the start noticeably; what is in them is left to the ranks."""


def check_inputs(config: Config) -> Splits | None:
    """Look up the paths that training reads, then read files of the user's own as the ranks will.

    Returns:
        What was read; None where that is left to the ranks.

    Raises:
        ConfigError: every path that cannot be used.
        DataError: a file that cannot be used.
        HubError: a model that packed rows ask to know, neither cached nor reachable.
        UsageError: one that is not known to be right on them.
    """
    if problems := path_problems(config):
        raise ConfigError(problems)
    workload = config.workload
    if workload.layout == "packed" and workload.reads_model:
        _check_architecture(workload)
    if workload.runs_own_code:
        return None
    if workload.tokenizer is not None and Path(workload.tokenizer).suffix == VOCABULARY:
        read_vocabulary(Path(workload.tokenizer).expanduser())
    if workload.tokenizer is not None and workload.tokenizer.endswith(BPE_VOCABULARY):
        read_byte_level(Path(workload.tokenizer).expanduser())
    paths = [Path(path).expanduser() for _, path in options_of(workload, FileOptions) if path is not None]
    if not paths or sum(path.stat().st_size for path in paths) > _CHECKED_MB * BYTES_PER_MB:
        return None
    splits = load_dataset(workload)
    for split in (splits.train, splits.eval):
        if isinstance(split, CorpusSplit):
            len(split)  # reads it to its end, where a mistake may be
    return splits


def _check_architecture(workload: Workload) -> None:
    """Refuse a model that is not known to be right on packed rows.

    Raises:
        DataError, HubError: its configuration cannot be read.
        UsageError: it is not.
    """
    from dynbench.workloads.model_config import read_config  # imports transformers, which padded runs do not need here

    known = read_config(workload.model, PADDED)
    problem = unknown_architecture(known, causal=not WORKLOADS[workload.name].classes)
    if problem is not None:
        raise UsageError(f"workload.layout: packed, and workload.model {workload.model}: {problem}", PADDED)


def check_batch(config: Config) -> None:
    """As `check_inputs`, and that a global batch can be taken from what is left to train on.

    Raises:
        ConfigError, DataError: as `check_inputs`.
        UsageError: the batch is larger than that.
    """
    splits = check_inputs(config)
    if splits is None or (config.workload.blocks and isinstance(splits.train, CorpusSplit)):
        return  # how many blocks the texts make, their tokens tell
    if batch_is_open(config.train):
        return  # the number of workers, which is not known here, decides it
    batch, rows = config.train.global_batch, len(splits.train)
    held_out = 0 if splits.eval is not None else held_out_of(rows)
    if batch > rows - held_out:
        kept = f", {held_out:,} of which are held out for evaluation" if held_out else ""
        raise UsageError(
            f"train.global_batch: {batch} is more than there is to train on: {splits.train.source} has {rows:,} "
            f"samples{kept}",
            f"Use at most {rows - held_out}" + (" or name an evaluation file (--eval-path)." if held_out else "."),
        )
