"""What the ranks will read, read before any of them starts, so that a mistake in it costs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dynbench.config.paths import TORCH_WEIGHTS, path_problems
from dynbench.config.schema import Config, Workload
from dynbench.errors import ConfigError, DataError, UsageError
from dynbench.kernels.packed_models import unknown_architecture
from dynbench.plugins import DATASETS, WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.cache import cache_folder, cached_contents
from dynbench.workloads.data import held_out_of
from dynbench.workloads.datasets.base import CorpusSplit, Split, Splits, load_dataset
from dynbench.workloads.tokenizer import load_tokenizer, padding_of

PADDED = "Take another model, or keep the padded layout (workload.layout=padded)."
WAYS_OUT = "Name a folder that transformers saved a model in (--model FOLDER), or use --weights random."
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Files of a folder that transformers reads weights of."""
_CHECKED_MB = 64
"""Data files above this together would delay the start noticeably; what is in them is left to the ranks."""
FEWEST_GENERATED = 4096
"""No data set that we generate has fewer training samples."""


def check_inputs(config: Config) -> Splits | None:
    """Look up and read as the ranks will: files of the user's own, then model and tokenizer.

    Returns:
        As `read_files`.

    Raises:
        ConfigError: as `read_files`.
        DataError: a file or a folder that cannot be used.
        HubError: a model or a tokenizer that is neither cached nor reachable.
        UsageError: a model that is not known to be right on packed rows, or a tokenizer that cannot be used.
    """
    splits, workload = read_files(config), config.workload
    if workload.reads_model and not (workload.runs_own_code and workload.layout == "padded"):
        _check_model(workload)
    if not workload.runs_own_code and DATASETS[workload.dataset].of_texts:
        tokenizer = load_tokenizer(workload)
        if WORKLOADS[workload.name].classes:
            padding_of(tokenizer)
    return splits


def read_files(config: Config) -> Splits | None:
    """Look up the paths that training reads, then read files of the user's own.

    Returns:
        What was read; None where that is left to the ranks.

    Raises:
        ConfigError: every path that cannot be used.
        DataError: a file that cannot be used.
    """
    if problems := path_problems(config):
        raise ConfigError(problems)
    workload = config.workload
    if workload.runs_own_code:
        return None
    paths = [Path(path).expanduser() for _, path in options_of(workload, FileOptions) if path is not None]
    if not paths or sum(path.stat().st_size for path in paths) > _CHECKED_MB * BYTES_PER_MB:
        return None
    splits = load_dataset(workload)
    return Splits(_read(splits.train, workload), None if splits.eval is None else _read(splits.eval, workload))


def _read(split: Split, workload: Workload) -> Split:
    """Texts that are read as a stream are read to their end, where a mistake may be, unless an earlier run has."""
    if not isinstance(split, CorpusSplit):
        return split
    cached = cached_contents(cache_folder(workload), split)
    return replace(split, texts=len(split) if cached is None else cached.texts)


def _check_model(workload: Workload) -> None:
    """Refuse a model that is none, lacks the weights that are asked for, or is not known to be right on packed rows.

    Raises:
        DataError, HubError: its configuration cannot be read, or its folder holds no weights.
        UsageError: nobody knows it to be right.
    """
    if workload.model.endswith(TORCH_WEIGHTS):
        return
    from dynbench.workloads.models import (
        EXPECTED,
        KEY,
        read_config,  # imports transformers
    )

    padded = workload.layout == "padded"
    known = read_config(workload.model, WAYS_OUT if padded else PADDED)
    folder = Path(workload.model).expanduser()
    if workload.weights == "pretrained" and folder.is_dir() and not any(map(any, map(folder.glob, WEIGHTS))):
        raise DataError(f"{KEY}: {folder}: expected {EXPECTED}: it holds no weights", WAYS_OUT)
    if padded:
        return
    problem = unknown_architecture(known, causal=not WORKLOADS[workload.name].classes)
    if problem is not None:
        raise UsageError(f"workload.layout: {workload.layout}, and workload.model {workload.model}: {problem}", PADDED)


def check_batch(config: Config, splits: Splits | None) -> None:
    """Refuse a global batch that cannot be taken from what is left to train on.

    Args:
        config: its batch decided.
        splits: as `check_inputs` gave them; where there are none, generated samples are counted, others by the ranks.

    Raises:
        UsageError: the batch is larger than that.
    """
    dataset, batch = DATASETS[config.workload.dataset], config.train.global_batch
    if dataset.generated and not dataset.of_files and not config.workload.runs_own_code and batch > FEWEST_GENERATED:
        splits = load_dataset(config.workload)
    if splits is None or (config.workload.blocks and isinstance(splits.train, CorpusSplit)):
        return  # how many blocks the texts make, their tokens tell
    rows, worker = len(splits.train), config.train.batch_per_worker
    held_out = 0 if splits.eval is not None else held_out_of(rows)
    left = min(rows - held_out, config.workload.subset or rows)
    if batch <= left:
        return
    eval_part = f", {held_out:,} of which are held out for evaluation" if held_out else ""
    chosen = f", workload.subset {config.workload.subset} of which are chosen" if left < rows - held_out else ""
    each = "" if worker is None else f" (train.batch_per_worker {worker})"
    raise UsageError(
        f"train.global_batch: {batch}{each} is more than there is to train on: {splits.train.source} has "
        f"{rows:,} samples{eval_part}{chosen}",
        f"Use at most {left} over all workers" + (" or name an evaluation file (--eval-path)." if held_out else "."),
    )
