"""GLUE SST-2 (Socher et al., EMNLP 2013; Wang et al., ICLR 2019) from the hub or its cache."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from huggingface_hub import snapshot_download

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets.base import Splits, TextSplit
from dynbench.workloads.hub import first_line, load_from_hub

REPOSITORY = "nyu-mll/glue"
SUBSET = "sst2"
PROBE_FILE = f"{SUBSET}/train-00000-of-00001.parquet"
WAYS_OUT = "Use a local copy (--dataset tsv --data-path FILE or --dataset jsonl) or --dataset embedded."


def load(settings: Workload) -> Splits:
    """67,349 training and 872 validation sentences.

    Raises:
        HubError: neither cached nor reachable.
        DataError: the repository does not hold what it should.
    """
    folder = load_from_hub(
        "workload.dataset", REPOSITORY, _snapshot, WAYS_OUT, probe_file=PROBE_FILE, repo_type="dataset"
    )
    return Splits(_read(folder, "train"), _read(folder, "validation"))


def _snapshot(local_only: bool) -> Path:
    """The folder of the Parquet files in the hub's cache, downloaded unless `local_only`.

    Raises:
        FileNotFoundError: a split is missing.
    """
    root = snapshot_download(
        REPOSITORY, repo_type="dataset", allow_patterns=[f"{SUBSET}/*"], local_files_only=local_only
    )
    folder = Path(root) / SUBSET
    for split in ("train", "validation"):
        if not any(folder.glob(f"{split}-*.parquet")):
            raise FileNotFoundError(f"no {split} file in {folder}")
    return folder


def _read(folder: Path, split: str) -> TextSplit:
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # its errors reach the user as ours
    files = sorted(str(path) for path in folder.glob(f"{split}-*.parquet"))
    try:
        rows = datasets.Dataset.from_parquet(files, columns=["sentence", "label"])
        texts, labels = list(rows["sentence"]), np.asarray(rows["label"], dtype=np.int64)
    except (ValueError, KeyError, datasets.exceptions.DatasetGenerationError) as error:
        reason = first_line(error.__cause__ or error)
        raise DataError(f"{files[0]}: expected Parquet with columns sentence and label: {reason}", WAYS_OUT) from error
    return TextSplit(texts, labels, f"hub:{REPOSITORY}/{SUBSET}, {split}")
