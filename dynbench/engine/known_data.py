"""A run's data where they are at hand before any rank starts: generated, or in small files of the user's own."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from dynbench.config import schema
from dynbench.config.paths import BYTES
from dynbench.plugins import DATASETS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.base import Workload
from dynbench.workloads.cache import progress_logger
from dynbench.workloads.datasets.base import LengthSplit, load_dataset
from dynbench.workloads.registry import build_workload

_SMALL_MB = 4
"""Text that is tokenised in about a second."""
_SMALL_TOKENS = 2**23
"""Tokens that are generated in about a second; a small trace may stand for a hundred times as many."""


def data_at_hand(config: schema.Config) -> bool:
    """Whether the data can be had without the network and without a wait.

    Raises:
        DataError: a trace of lengths that cannot be used.
    """
    workload = config.workload
    if workload.runs_own_code or (workload.reads_model and not _is_local(workload.model)):
        return False
    dataset = DATASETS[workload.dataset]
    if dataset.folder:
        return False  # its files may be many, and a broken one is looked for in all of them
    generated = dataset.generated
    paths = [Path(path).expanduser() for _, path in options_of(workload, FileOptions) if path is not None]
    if generated and not paths:
        return True
    small = sum(path.stat().st_size for path in paths if path.is_file()) <= _SMALL_MB * BYTES_PER_MB
    if not paths or not small:
        return False
    return _few_tokens(workload) if generated else _is_local(workload.tokenizer_name)


def known_workload(config: schema.Config) -> Workload | None:
    """The workload as the ranks will load it, its model not built; None where it is not at hand.

    Nothing is written, and what the ranks will warn of is left to them.

    Raises:
        DynbenchError: as `build_workload`.
    """
    if not data_at_hand(config):
        return None
    return _build(config.workload, config.train.seed if config.workload.subset is not None else 0)


@lru_cache(maxsize=4)
def _build(settings: schema.Workload, seed: int) -> Workload:
    with warnings_left_to_the_ranks(), tempfile.TemporaryDirectory(prefix="dynbench-") as cache:
        workload = settings.model_copy(update={"cache_dir": cache})
        train = schema.Train(seed=seed)
        return build_workload(schema.Config().model_copy(update={"workload": workload, "train": train}))


def _few_tokens(settings: schema.Workload) -> bool:
    """Whether a data set of which only lengths are stored is generated at once."""
    splits = load_dataset(settings)
    lengths = [split.lengths for split in (splits.train, splits.eval) if isinstance(split, LengthSplit)]
    return sum(int(np.minimum(each, settings.max_length).sum()) for each in lengths) <= _SMALL_TOKENS


def _is_local(name: str) -> bool:
    return name == BYTES or Path(name).expanduser().exists()


@contextmanager
def warnings_left_to_the_ranks() -> Iterator[None]:
    """Inside it nothing is said of the data but how far the preparing of them has got."""
    logger = logging.getLogger("dynbench.workloads")
    before, paced = logger.level, progress_logger.level
    progress_logger.setLevel(progress_logger.getEffectiveLevel())
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
        progress_logger.setLevel(paced)
