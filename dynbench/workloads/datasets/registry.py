"""The datasets by name; adding one is one file, one line here, and its name in the schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.datasets import embedded, jsonl, lengths, lognormal, sst2, tsv
from dynbench.workloads.datasets.base import Splits

REGISTRY: dict[str, Callable[[Workload], Splits]] = {
    "embedded": embedded.load,
    "lognormal": lognormal.load,
    "sst2": sst2.load,
    "tsv": tsv.load,
    "jsonl": jsonl.load,
    "lengths": lengths.load,
}

_CHECKED_MB = 64


def load_dataset(settings: Workload) -> Splits:
    """The samples of `workload.dataset`.

    Raises:
        DataError: a file that cannot be used.
        HubError: hub data that are neither cached nor reachable.
    """
    return REGISTRY[settings.dataset](settings)


def check_files(settings: Workload) -> None:
    """Read files of the user's own as the ranks will, so that a mistake in them is told before any rank starts.

    Files above 64 MB together would delay the start noticeably; they are left to the ranks.

    Raises:
        DataError: a file that cannot be used.
    """
    if settings.data_path is None:
        return
    paths = [Path(path).expanduser() for path in (settings.data_path, settings.eval_path) if path is not None]
    if sum(path.stat().st_size for path in paths if path.is_file()) <= _CHECKED_MB * BYTES_PER_MB:
        load_dataset(settings)
