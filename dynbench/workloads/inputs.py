"""What the ranks will read, read before any of them starts, so that a mistake in it costs nothing."""

from __future__ import annotations

from pathlib import Path

from dynbench.config.paths import VOCABULARY, path_problems
from dynbench.config.schema import Config
from dynbench.errors import ConfigError
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.datasets.registry import load_dataset
from dynbench.workloads.vocabulary import read_vocabulary

_CHECKED_MB = 64
"""Data files above this together would delay the start noticeably; what is in them is left to the ranks."""


def check_inputs(config: Config) -> None:
    """Look up the paths that training reads, then read files of the user's own as the ranks will.

    Raises:
        ConfigError: every path that cannot be used.
        DataError: a file that cannot be used.
    """
    if problems := path_problems(config):
        raise ConfigError(problems)
    workload = config.workload
    if workload.tokenizer is not None and Path(workload.tokenizer).suffix == VOCABULARY:
        read_vocabulary(Path(workload.tokenizer).expanduser())
    if workload.data_path is None:
        return
    paths = [Path(path).expanduser() for path in (workload.data_path, workload.eval_path) if path is not None]
    if sum(path.stat().st_size for path in paths) <= _CHECKED_MB * BYTES_PER_MB:
        load_dataset(workload)
